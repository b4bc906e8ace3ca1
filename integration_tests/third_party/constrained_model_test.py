"""The real model's documents under JSON Schemas are valid, and nearly all of them are complete.

    constrained_model_test.py BIN_DIR SOURCE_DIR

tools/measure-constraints generates thousands; this generates one for every eighth schema.
"""

import os
import pathlib
import sys
import time
import unittest

import constrained_documents as documents
from reflected_worker import reflected
from worker_under_test import PATIENCE_S, WorkerUnderTest

BIN_DIR = None
SOURCE_DIR = None
MODEL_FILE = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
MODEL_DIR = pathlib.Path(
    os.environ.get("ORCD_MODEL_CACHE") or pathlib.Path.home() / ".cache/orcd/models"
)
EVERY = 8
MAX_TOKENS = 250
AT_ONCE = 16
LEAST_COMPLETE = 0.8


class ConstrainedModelTest(unittest.TestCase):
    def test_documents_are_valid(self):
        worker = WorkerUnderTest(
            BIN_DIR,
            ["--model", MODEL_FILE, "--backend", "cpu", "--max-context", "4096"],
            model_dir=MODEL_DIR,
        )
        self.addCleanup(worker.close)
        orcd, channel = reflected(worker.address)
        self.addCleanup(channel.close)
        deadline = time.monotonic() + PATIENCE_S
        while not orcd.status().HasField("model"):
            self.assertLess(time.monotonic(), deadline, worker.log())
            time.sleep(0.05)
        # Long schemas are long prompts, which take longer than what is tested.
        cases = [c for c in documents.read_corpus(SOURCE_DIR) if len(c.schema) < 1500][::EVERY]
        tally = documents.generate_all(
            orcd, cases, lambda case: documents.chat_request(case, 7, MAX_TOKENS), AT_ONCE
        )
        print(tally)
        self.assertEqual(tally.failed, [])
        self.assertEqual(tally.invalid, [])
        self.assertGreaterEqual(tally.complete, LEAST_COMPLETE * len(cases))


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    SOURCE_DIR = pathlib.Path(sys.argv.pop(1))
    if not (MODEL_DIR / MODEL_FILE).is_file():
        print(f"SKIPPED: {MODEL_DIR / MODEL_FILE} is not there; fetch it with tools/fetch-model")
        sys.exit(77)
    unittest.main()
