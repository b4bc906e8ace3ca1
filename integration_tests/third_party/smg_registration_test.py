"""Real workers register in the list of a real smg.

smg_registration_test.py BIN_DIR
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

from smg_under_test import SmgUnderTest
from worker_under_test import NANO, WorkerUnderTest

BIN_DIR = None
# The worker's interval between reads of the list, plus the delay of a loaded machine.
REENTRY_S = 60


class SmgRegistrationTest(unittest.TestCase):
    def smg(self, *args, **options):
        smg = SmgUnderTest(args, **options)
        self.addCleanup(smg.close)
        return smg

    def worker(self, *smgs, args=(), loaded=True):
        flags = [word for smg in smgs for word in ("--orchestrator", smg.url)]
        if loaded:
            flags += ["--model", NANO]
        worker = WorkerUnderTest(BIN_DIR, flags + list(args))
        self.addCleanup(worker.close)
        return worker

    def orcdctl(self, worker, *words):
        command = [pathlib.Path(BIN_DIR) / "orcdctl", "--address", worker.address, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def test_is_listed_while_it_is_ready(self):
        smg = self.smg()
        worker = self.worker(smg, loaded=False)
        smg.wait_for(lambda: "once the worker is ready" in worker.log(), "it was not seen")
        self.assertEqual(smg.workers(), {})
        self.orcdctl(worker, "load", NANO)
        smg.wait_for_workers([worker.address])
        status, models = smg.call("GET", "/v1/models")
        self.assertEqual(status, 200)
        self.assertEqual([model["id"] for model in models["data"]], ["nano"])
        self.orcdctl(worker, "unload")
        smg.wait_for_workers([])
        self.orcdctl(worker, "load", NANO)
        smg.wait_for_workers([worker.address])

    def test_an_smg_that_was_started_again_has_all_of_them_again(self):
        smg = self.smg()
        workers = [self.worker(smg) for _ in range(2)]
        addresses = [worker.address for worker in workers]
        smg.wait_for_workers(addresses)
        smg.kill()
        smg.start()
        smg.wait_for_workers(addresses, REENTRY_S)
        self.assertEqual(workers[0].terminate(), 0)
        smg.wait_for_workers(addresses[1:])

    def test_one_that_was_killed_and_started_again_is_ready_again(self):
        smg = self.smg()
        worker = self.worker(smg)
        smg.wait_for_workers([worker.address])
        worker.kill()
        worker.start()
        smg.wait_for_workers([worker.address], REENTRY_S)
        status, answer = smg.call("GET", "/workers")
        self.assertEqual((status, answer["total"]), (200, 1))

    def test_one_that_smg_was_told_of_is_entered_once(self):
        worker = self.worker()
        smg = self.smg("--worker-urls", f"grpc://{worker.address}")
        smg.wait_for_workers([worker.address])
        worker.terminate()
        worker.start(["--orchestrator", smg.url, "--model", NANO])
        smg.wait_for(
            lambda: "registered: the worker is ready" in worker.log(), "it did not enter itself"
        )
        smg.wait_for_workers([worker.address], REENTRY_S)

    def test_the_second_smg_stands_in_for_the_first(self):
        first, second = self.smg(), self.smg()
        worker = self.worker(first, second)
        first.wait_for_workers([worker.address])
        self.assertEqual(second.workers(), {})
        first.kill()
        second.wait_for_workers([worker.address], REENTRY_S)
        self.assertEqual(worker.terminate(), 0)
        second.wait_for_workers([])

    def test_shows_the_key_that_smg_asks_for(self):
        smg = self.smg(api_key="of-the-fleet")
        folder = tempfile.TemporaryDirectory(prefix="orcd-smg-key-")
        self.addCleanup(folder.cleanup)
        key = pathlib.Path(folder.name) / "key"
        key.write_text("another\n", encoding="utf-8")
        worker = self.worker(smg, args=["--orchestrator-key-file", str(key)])
        smg.wait_for(lambda: "PERMISSION_DENIED" in worker.log(), "it was let in")
        self.assertEqual(smg.workers(), {})
        key.write_text("of-the-fleet\n", encoding="utf-8")
        smg.wait_for_workers([worker.address], REENTRY_S)

    def test_knows_smg_by_its_certificate(self):
        folder = tempfile.TemporaryDirectory(prefix="orcd-smg-tls-")
        self.addCleanup(folder.cleanup)
        certificate, key = f"{folder.name}/cert.pem", f"{folder.name}/key.pem"
        openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        openssl += ["-keyout", key, "-out", certificate, "-subj", "/CN=smg"]
        openssl += ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(openssl, check=True, capture_output=True)
        tls = ["--tls-cert-path", certificate, "--tls-key-path", key]
        smg = self.smg(*tls, scheme="https", authorities=certificate)
        stranger = self.worker(smg)
        smg.wait_for(lambda: "certificate" in stranger.log(), "it trusted a stranger")
        worker = self.worker(smg, args=["--orchestrator-ca", certificate])
        smg.wait_for_workers([worker.address])

    def test_a_wrong_address_is_said(self):
        smg = self.smg()
        worker = self.worker(smg, args=["--advertise-address", "127.0.0.1:1"])
        smg.wait_for(
            lambda: "smg has not reached the worker at grpc://127.0.0.1:1" in worker.log(),
            "nothing was said",
        )
        self.assertEqual(smg.workers(), {})
        self.assertEqual(worker.terminate(), 0)


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
