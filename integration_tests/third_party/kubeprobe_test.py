"""The kubelet's own prober asks a real worker for every health name.

kubeprobe_test.py BIN_DIR
"""

import subprocess
import sys
import unittest

import grpc_by_hand
from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None


class KubeprobeTest(unittest.TestCase):
    def setUp(self):
        self.worker = WorkerUnderTest(BIN_DIR, ["--health-listen", "127.0.0.1:0"])
        self.addCleanup(self.worker.close)

    def probe(self, service):
        host, port = self.worker.side_address("health").split(":")
        result = subprocess.run(
            ["kubeprobe", host, port, service],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        return result.returncode == 0, result.stdout

    def assert_probes(self, **expected):
        for service, succeeds in expected.items():
            with self.subTest(service=service):
                found, said = self.probe(service)
                self.assertEqual(found, succeeds, said)

    def test_every_name(self):
        ready = ["readiness", "orcd.v1.Worker", ""]
        self.assert_probes(liveness=True, startup=True, **dict.fromkeys(ready, False))
        self.assert_probes(**{"model/nano": False, "nobody": False})
        grpc_by_hand.call(self.worker.address, "orcd.v1.Worker/Load", {"model": NANO})
        self.assert_probes(liveness=True, startup=True, **dict.fromkeys(ready, True))
        self.assert_probes(**{"model/nano": True, "model/other": False})
        grpc_by_hand.call(self.worker.address, "orcd.v1.Worker/Drain", {})
        self.assert_probes(liveness=True, startup=True, **dict.fromkeys(ready, False))
        self.assertEqual(self.worker.terminate(), 0)
        self.assertFalse(self.probe("liveness")[0])


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
