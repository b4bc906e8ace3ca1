"""grpcurl drives a real worker with only the information from server reflection.

grpcurl_test.py BIN_DIR
"""

import json
import subprocess
import sys
import unittest

from worker_under_test import NANO, PATIENCE_S, WorkerUnderTest

BIN_DIR = None


def parse_stream(text):
    """The consecutive JSON objects in `text`."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        if text[at].isspace():
            at += 1
        else:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
    return found


class GrpcurlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = WorkerUnderTest(BIN_DIR)
        cls.addClassCleanup(cls.worker.close)

    def run_grpcurl(self, *words, flags=()):
        return subprocess.run(
            ["grpcurl", "-plaintext", *flags, self.worker.address, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def ask(self, *words):
        result = self.run_grpcurl(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def call(self, method, **fields):
        result = self.run_grpcurl(method, flags=["-d", json.dumps(fields)])
        self.assertEqual(result.returncode, 0, result.stderr)
        return parse_stream(result.stdout)

    def load(self):
        return self.call("orcd.v1.Worker/Load", model=NANO)

    def test_list_and_describe(self):
        services = self.ask("list").split()
        self.assertIn("orcd.v1.Worker", services)
        self.assertIn("grpc.health.v1.Health", services)
        described = self.ask("describe", "orcd.v1.Worker")
        for method in ["Load", "Unload", "Generate", "Cancel", "Tokenize", "Health", "Drain"]:
            self.assertIn(f"rpc {method} ", described)
        self.assertIn("optional float top_p = 3;", self.ask("describe", "orcd.v1.SamplingParams"))

    def test_load_generate_health(self):
        model = self.load()[-1]["loaded"]
        self.assertEqual(model["architecture"], "qwen2")
        events = self.call(
            "orcd.v1.Worker/Generate",
            tokens={"ids": [1, 2, 3]},
            stop={"max_tokens": 8, "ignore_eog": True},
        )
        self.assertEqual(events[0]["started"]["prompt_tokens"], 3)
        # A delta that holds only text held back until the end has no tokens.
        deltas = [event["delta"] for event in events[1:-1]]
        self.assertEqual(sum(len(delta.get("token_ids", [])) for delta in deltas), 8)
        self.assertEqual(events[-1]["finished"]["reason"], "FINISH_REASON_MAX_TOKENS")
        self.assertEqual(events[-1]["finished"]["model_digest"], model["digest"])
        (health,) = self.call("orcd.v1.Worker/Health")
        self.assertEqual(health["status"]["state"], "WORKER_STATE_READY")
        self.assertEqual(health["status"]["model"]["digest"], model["digest"])
        self.assertEqual(self.call("grpc.health.v1.Health/Check"), [{"status": "SERVING"}])

    def test_error_details_are_readable(self):
        self.load()
        bad = {"tokens": {"ids": [1]}, "sampling": {"top_p": 1.5}}
        result = self.run_grpcurl(
            "orcd.v1.Worker/Generate", flags=["-d", json.dumps(bad), "-format-error"]
        )
        self.assertNotEqual(result.returncode, 0)
        error = json.loads(result.stderr)
        self.assertEqual(error["code"], 3)
        details = {detail["@type"].rsplit(".", 1)[-1]: detail for detail in error["details"]}
        self.assertEqual(details["ErrorInfo"]["domain"], "orcd")
        self.assertEqual(details["BadRequest"]["field_violations"][0]["field"], "sampling.top_p")


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
