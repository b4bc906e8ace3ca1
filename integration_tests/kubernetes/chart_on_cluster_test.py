"""Tests the chart on a real Kubernetes: operations on a worker, and their effect on its clients.

chart_on_cluster_test.py ROOT BIN_DIR TOOLS_DIR

Prints each observation and its duration on a line; docs/kubernetes.md quotes them.
"""

import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from cluster import NODE, Cluster

ROOT = BIN_DIR = TOOLS_DIR = None
SPACE = "inference"
TOKENS = 150


def seen(what, seconds=None):
    print(f"SEEN {what}" + ("" if seconds is None else f": {seconds:.1f} s"), flush=True)


def seconds_between(earlier, later):
    """Seconds between two times in Kubernetes' format."""
    times = [datetime.datetime.fromisoformat(t.replace("Z", "+00:00")) for t in (earlier, later)]
    return (times[1] - times[0]).total_seconds()


def ready_since(pod):
    conditions = {c["type"]: c["lastTransitionTime"] for c in pod["status"]["conditions"]}
    return conditions["Ready"]


class ChartOnClusterTest(unittest.TestCase):
    """The tests run in the order of their names, on one cluster."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(TOOLS_DIR)
        cls.addClassCleanup(cls.cluster.remove)
        cls.addClassCleanup(cls.cluster.down)
        began = time.monotonic()
        cls.cluster.up()
        seen("control plane, kubelet and GPU up", time.monotonic() - began)
        cls.import_images()
        cls.make_models()
        began = time.monotonic()
        cls.helm("install")
        seen("helm install --wait, from nothing to Ready", time.monotonic() - began)

    @classmethod
    def import_images(cls):
        stage = cls.cluster.folder / "stage"
        subprocess.run([ROOT / "tools" / "stage-image", stage, "release"], check=True)
        worker = {"User": "65532:65532", "Entrypoint": ["/usr/bin/worker-orcd"]}
        cls.cluster.import_image("localhost/worker-orcd:test", stage, worker)
        pause = cls.cluster.folder / "pause-root"
        pause.mkdir()
        (pause / "pause").write_bytes((TOOLS_DIR / "pause").read_bytes())
        (pause / "pause").chmod(0o755)
        cls.cluster.import_image(
            "localhost/pause:1", pause, {"User": "65532:65532", "Entrypoint": ["/pause"]}
        )

    @classmethod
    def make_models(cls):
        models = cls.cluster.folder / "models"
        models.mkdir()
        # Random weights, in a model large enough for a stream to last.
        cls.model_file = models / "model.gguf"
        subprocess.run(
            [BIN_DIR / "make-model", "--size", "0.5b", "--type", "Q4_0", "--out", cls.model_file],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        cls.cluster.folder.chmod(0o755)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        cls.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE, "labels": labels}},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": "models"},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadOnlyMany"],
                    "storageClassName": "",
                    "hostPath": {"path": str(models)},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "models", "namespace": SPACE},
                "spec": {
                    "accessModes": ["ReadOnlyMany"],
                    "storageClassName": "",
                    "volumeName": "models",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        )

    @classmethod
    def helm(cls, verb, **sets):
        values = {
            "image.repository": "localhost/worker-orcd",
            "image.tag": "test",
            "model.existingClaim": "models",
            "model.file": "model.gguf",
            "resources.requests.cpu": "500m",
            "resources.requests.memory": "1Gi",
            "resources.limits.memory": "4Gi",
            "termination.preStopSeconds": "2",
            "termination.settleSeconds": "1",
            "termination.drainSeconds": "120",
            "env.ORCD_KV_CACHE_BYTES": "64MiB",
        } | sets
        words = []
        for key, value in values.items():
            # Environment variables must be strings, whatever they look like.
            words += ["--set-string" if key.startswith("env.") else "--set", f"{key}={value}"]
        cls.cluster.run(
            *["helm", verb, "w", ROOT / "deploy" / "helm" / "worker-orcd", "-n", SPACE, *words],
            *["--wait", "--timeout", "5m"],
            timeout=400,
        )

    # Helpers.

    def pods(self):
        return self.cluster.get("pods", "-n", SPACE)["items"]

    def ready_pod(self):
        """The one pod that is ready and not terminating, or None."""
        for pod in self.pods():
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
            if conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]:
                return pod
        return None

    def wait_until_ready(self):
        return self.cluster.wait_for("a pod is ready", self.ready_pod)

    def restarts(self, pod_name):
        pod = self.cluster.get("pod", pod_name, "-n", SPACE)
        return pod["status"]["containerStatuses"][0]["restartCount"]

    def grpcurl(self, address, method, fields):
        """Starts a call in the background."""
        return subprocess.Popen(
            self.cluster.inside(
                *["grpcurl", "-plaintext", "-max-time", "170", "-d", json.dumps(fields)],
                *[address, method],
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.cluster.environment,
        )

    def start_stream(self, pod):
        """Starts a stream of TOKENS tokens and waits for its first output."""
        stop = {"max_tokens": TOKENS, "ignore_eog": True}
        request = {"tokens": {"ids": [1, 2, 3]}, "stop": stop, "sampling": {"seed": 7}}
        address = f"{pod['status']['podIP']}:50051"
        stream = self.grpcurl(address, "orcd.v1.Worker/Generate", request)
        said = ""
        while "delta" not in said:
            line = stream.stdout.readline()
            self.assertTrue(line, "the stream ended before it began")
            said += line
        return stream, said

    def finish_stream(self, stream, said):
        """The tokens of a stream, which must end well."""
        # communicate() would miss the lines that readline() has buffered.
        with stream:
            rest, errors = stream.stdout.read(), stream.stderr.read()
        self.assertEqual(stream.returncode, 0, errors)
        self.assertIn("FINISH_REASON_MAX_TOKENS", rest)
        ids = []
        for block in re.findall(r'"token_ids": \[([^\]]*)\]', said + rest):
            ids += re.findall(r"\d+", block)
        return ids

    # Tests of operations on a worker.

    def test_1_the_restricted_policy_accepts_it_and_it_has_the_gpu(self):
        pod = self.ready_pod()
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        self.assertEqual(limits["nvidia.com/gpu"], "1")
        forbidden = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
        forbidden["spec"] = {"containers": [{"name": "x", "image": "localhost/pause:1"}]}
        path = self.cluster.folder / "forbidden.json"
        path.write_text(json.dumps(forbidden))
        with self.assertRaisesRegex(RuntimeError, "violates PodSecurity"):
            self.cluster.kubectl("apply", "-n", SPACE, "-f", path)
        seen("restricted Pod Security accepts the worker, and refuses a pod that asks for nothing")

    def test_2_grpcurl_through_a_port_forward(self):
        deployment = "deployment/w-worker-orcd"
        forward = self.cluster.start(
            "forward", "kubectl", "port-forward", "-n", SPACE, deployment, "15051:50051"
        )
        try:
            address = "127.0.0.1:15051"
            answers = lambda: "orcd.v1.Worker" in self.cluster.run(
                "grpcurl", "-plaintext", address, "list", check=False
            )
            self.cluster.wait_for("the forward is there", answers)
            health = self.cluster.run("grpcurl", "-plaintext", address, "orcd.v1.Worker/Health")
            self.assertIn("WORKER_STATE_READY", health)
            self.assertIn(self.ready_pod()["metadata"]["name"], health)
        finally:
            forward.terminate()
        seen("grpcurl list and Health through kubectl port-forward")

    def test_3_a_stream_outlives_the_deletion_of_its_pod(self):
        pod = self.ready_pod()
        stream, said = self.start_stream(pod)
        began = time.monotonic()
        self.cluster.kubectl(
            "delete", "pod", pod["metadata"]["name"], "-n", SPACE, "--wait=false"
        )
        ids = self.finish_stream(stream, said)
        self.assertEqual(len(ids), TOKENS)
        took = time.monotonic() - began
        seen(f"under kubectl delete pod a stream came to the last of {TOKENS} tokens", took)
        self.wait_until_ready()
        seen("the next pod was ready after", time.monotonic() - began)

    def test_4_an_upgrade_on_a_full_fleet_does_not_deadlock(self):
        before = self.ready_pod()["metadata"]["name"]
        began = time.monotonic()
        self.helm("upgrade", **{"env.ORCD_MAX_SEQS": "8"})
        seen("helm upgrade --wait on a node with one GPU", time.monotonic() - began)
        self.assertNotEqual(self.ready_pod()["metadata"]["name"], before)

    def test_5_the_budget_lets_a_node_be_drained(self):
        stream, said = self.start_stream(self.ready_pod())
        began = time.monotonic()
        self.cluster.kubectl(
            "drain", NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=170s"
        )
        seen("kubectl drain", time.monotonic() - began)
        self.assertEqual(len(self.finish_stream(stream, said)), TOKENS)
        seen("and the stream that ran came to its last token")
        self.cluster.kubectl("uncordon", NODE)
        self.wait_until_ready()

    def test_6_a_worker_that_hangs_is_started_again(self):
        name = self.ready_pod()["metadata"]["name"]
        self.assertEqual(self.restarts(name), 0)
        began = time.monotonic()
        os.kill(self.worker_process(), signal.SIGSTOP)
        self.cluster.wait_for("it was started again", lambda: self.restarts(name) == 1, 300)
        self.wait_until_ready()
        seen("stopped by SIGSTOP, found by the liveness probe, ready again", time.monotonic() - began)

    def worker_process(self):
        """The id of the worker's process. The worker runs only in a container of this cluster."""
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                command = (folder / "cmdline").read_bytes()
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if command.startswith(b"/usr/bin/worker-orcd") and b"POD_NAME=w-worker-orcd" in environment:
                return int(folder.name)
        self.fail("no worker runs")

    def test_7_the_startup_probe_tolerates_a_slow_load(self):
        # A small share of a core makes the load slow; the worker answers probes all the time.
        self.helm("upgrade", **{"resources.limits.cpu": "50m", "resources.requests.cpu": "50m"})
        pod = self.ready_pod()
        container = pod["spec"]["containers"][0]
        liveness = container["livenessProbe"]
        window = liveness["periodSeconds"] * liveness["failureThreshold"]
        status = pod["status"]["containerStatuses"][0]
        took = seconds_between(status["state"]["running"]["startedAt"], ready_since(pod))
        self.assertEqual(self.restarts(pod["metadata"]["name"]), 0)
        seen(
            f"a Load at a twentieth of a core, without a restart; liveness alone allows {window} s,"
            " the Load took",
            took,
        )
        self.assertGreater(took, window, "liveness alone would have tolerated it")
        self.helm("upgrade")

    def test_8_a_gpu_that_fails_takes_no_more_pods(self):
        self.wait_until_ready()
        name = self.ready_pod()["metadata"]["name"]
        self.cluster.flip_gpu_health()
        self.cluster.wait_for("the GPU is gone", lambda: self.cluster.gpus() == 0)
        self.assertEqual(self.ready_pod()["metadata"]["name"], name)
        self.cluster.kubectl("delete", "pod", name, "-n", SPACE)
        pending = lambda: [pod["status"]["phase"] for pod in self.pods()] == ["Pending"]
        self.cluster.wait_for("the next pod waits", pending)
        seen("with its GPU unhealthy the pod ran on; the one after it stayed Pending")
        self.cluster.flip_gpu_health()
        seen("and was ready after the GPU was healthy again", self.wait_until_ready())


if __name__ == "__main__":
    ROOT, BIN_DIR, TOOLS_DIR = (pathlib.Path(sys.argv.pop(1)) for _ in range(3))
    unittest.main(verbosity=2, failfast=True)
