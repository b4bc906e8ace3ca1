"""An OpenTelemetry collector receives a real worker's spans.

otelcol_test.py BIN_DIR
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

import grpc_by_hand
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"


class OtelcolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="orcd-otelcol-")
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name) / "log"
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.endpoint = f"127.0.0.1:{found.getsockname()[1]}"
        config = pathlib.Path(folder.name) / "config.yaml"
        config.write_text(
            json.dumps(
                {
                    "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.endpoint}}}},
                    "exporters": {"debug": {"verbosity": "detailed"}},
                    "service": {
                        "telemetry": {"metrics": {"level": "none"}},
                        "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
                    },
                }
            )
        )
        with open(self.log, "wb") as log:
            process = subprocess.Popen(
                ["otelcol", f"--config={config}"], stdout=log, stderr=subprocess.STDOUT
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def wait_for(self, pattern):
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.log.read_text(encoding="utf-8")):
            self.assertLess(time.monotonic(), deadline, self.log.read_text(encoding="utf-8"))
            time.sleep(0.1)

    def test_spans_of_the_callers_trace(self):
        self.wait_for("Everything is ready")
        worker = WorkerUnderTest(BIN_DIR, ["--otlp-endpoint", self.endpoint])
        self.addCleanup(worker.close)
        flags = ["-H", f"traceparent: 00-{TRACE_ID}-{PARENT_ID}-01"]
        grpc_by_hand.call(worker.address, "orcd.v1.Worker/Load", {"model": NANO}, flags)
        prompt = {"tokens": {"ids": [1]}, "stop": {"max_tokens": 3, "ignore_eog": True}}
        grpc_by_hand.call(worker.address, "orcd.v1.Worker/Generate", prompt, flags)
        self.wait_for(r"Name +: orcd.v1.Worker/Load")
        self.wait_for(r"Name +: decode")
        said = self.log.read_text(encoding="utf-8")
        self.assertIn("service.name: Str(worker-orcd)", said)
        self.assertEqual(set(re.findall(r"Trace ID +: (\w+)", said)), {TRACE_ID})
        self.assertRegex(said, rf"Parent ID +: {PARENT_ID}")


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
