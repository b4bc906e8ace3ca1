"""A Prometheus server scrapes a real worker and fires the alerts of the chart.

prometheus_test.py BIN_DIR ROOT
"""

import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import grpc_by_hand
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
ROOT = None

# Only a worker on a GPU has these; metrics_test.cc knows them.
OF_GPUS = {"orcd_gpu_row_remap"}
# Names of metrics in an expression, and the suffixes of a histogram's series.
METRIC = re.compile(r"\borcd_[a-z0-9_]+\b")
HISTOGRAM_SERIES = re.compile(r"_(bucket|sum|count)$")
# These names are vLLM's; tools that scrape vLLM expect them unchanged.
VLLM_NAME_FAULT = re.compile(r"vllm:\w+ metric names should not contain ':'")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class PrometheusTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="orcd-prometheus-")
        self.addCleanup(folder.cleanup)
        # CA of a collector that receives nothing; with it the worker has metrics of certificate
        # expiry.
        authority = pathlib.Path(folder.name, "ca.pem")
        subprocess.run(
            ["openssl", "req", "-x509", "-subj", "/CN=collector", "-nodes", "-newkey", "rsa:2048"]
            + ["-keyout", pathlib.Path(folder.name, "ca.key"), "-out", authority],
            check=True,
            capture_output=True,
        )
        self.worker = WorkerUnderTest(
            BIN_DIR,
            ["--metrics-listen", "127.0.0.1:0", "--max-seqs", "1", "--max-waiting", "0"]
            + ["--otlp-ca", authority],
        )
        self.addCleanup(self.worker.close)
        self.files = ROOT / "deploy" / "helm" / "worker-orcd" / "files"

    def scrape(self):
        url = f"http://{self.worker.side_address('metrics')}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def test_alerts_and_dashboard_name_only_metrics_that_exist(self):
        families = set(re.findall(r"^# TYPE (\S+) ", self.scrape(), re.MULTILINE))
        self.assertGreater(len(families), 20)
        for name in ["alerts.yaml", "dashboard.json"]:
            used = set(METRIC.findall((self.files / name).read_text(encoding="utf-8")))
            self.assertGreater(len(used), 5)
            for metric in used - OF_GPUS:
                known = metric in families or HISTOGRAM_SERIES.sub("", metric) in families
                self.assertTrue(known, f"{name} names {metric}, which a worker does not have")

    def test_promtool_takes_the_metrics(self):
        grpc_by_hand.call(self.worker.address, "orcd.v1.Worker/Load", {"model": NANO})
        result = subprocess.run(
            ["promtool", "check", "metrics"],
            input=self.scrape(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        # Exit status 3 means that the text is valid and only its style has faults.
        self.assertIn(result.returncode, [0, 3], result.stdout + result.stderr)
        faults = [line for line in (result.stdout + result.stderr).splitlines() if line]
        others = [line for line in faults if not VLLM_NAME_FAULT.fullmatch(line)]
        self.assertEqual(others, [])

    def start_prometheus(self):
        folder = tempfile.TemporaryDirectory(prefix="orcd-prometheus-")
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name)
        # The chart's rules, except for the time that each must hold.
        rules = (self.files / "alerts.yaml").read_text(encoding="utf-8")
        (path / "rules.yaml").write_text(re.sub(r"\bfor: \w+", "for: 1s", rules))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {
                    "job_name": "worker-orcd",
                    "static_configs": [{"targets": [self.worker.side_address("metrics")]}],
                }
            ],
        }
        (path / "prometheus.yaml").write_text(json.dumps(config))
        self.url = f"http://127.0.0.1:{free_port()}"
        with open(path / "log", "wb") as log:
            process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={path / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={path / 'data'}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def ask(self, path, **parameters):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                found = condition()
            except OSError:
                found = None
            if found:
                return found
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.2)

    def value(self, query):
        result = self.ask("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else None

    def firing(self, name):
        alerts = self.ask("alerts")["alerts"]
        return any(
            alert["labels"]["alertname"] == name and alert["state"] == "firing" for alert in alerts
        )

    def test_scrapes_and_fires(self):
        self.start_prometheus()
        self.wait_for(lambda: self.value("up") == 1)
        grpc_by_hand.call(self.worker.address, "orcd.v1.Worker/Load", {"model": NANO})
        prompt = {"tokens": {"ids": [1, 2, 3]}, "stop": {"max_tokens": 9, "ignore_eog": True}}
        grpc_by_hand.call(self.worker.address, "orcd.v1.Worker/Generate", prompt)
        self.wait_for(lambda: self.value("orcd_generated_tokens_total") == 9)
        self.assertEqual(self.value("orcd_prompt_tokens_total"), 3)
        self.wait_for(lambda: self.value('orcd_worker_state{state="WORKER_STATE_READY"}') == 1)
        self.assertFalse(self.firing("OrcdWorkerDown"))
        self.assertEqual(self.worker.terminate(), 0)
        self.wait_for(lambda: self.firing("OrcdWorkerDown"))


if __name__ == "__main__":
    BIN_DIR, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main()
