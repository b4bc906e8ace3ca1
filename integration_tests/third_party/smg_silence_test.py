"""smg answers a client that waits for four minutes, in the queue and for its prompt.

smg_silence_test.py BIN_DIR
"""

import concurrent.futures
import sys
import time
import unittest

from smg_under_test import SmgUnderTest
from worker_under_test import NANO, WorkerUnderTest

BIN_DIR = None
STEP_S = 125
SILENCE_S = 240
PATIENCE_S = 900


class SmgSilenceTest(unittest.TestCase):
    def test_nobody_is_dropped(self):
        smg = SmgUnderTest(["--log-level", "warn"])
        self.addCleanup(smg.close)
        # One request runs at a time, and each prompt takes one step.
        flags = ["--backend", "null", "--null-step", f"{STEP_S}s", "--watchdog", "0s"]
        flags += ["--max-seqs", "1", "--model", NANO, "--orchestrator", smg.url]
        worker = WorkerUnderTest(BIN_DIR, flags)
        self.addCleanup(worker.close)
        smg.wait_for_workers([worker.address])
        client = smg.openai(timeout=PATIENCE_S)
        begun = time.monotonic()

        def ask(stream):
            answer = client.completions.create(
                model="nano", prompt="Hello", max_tokens=1, stream=stream
            )
            choices = [c for part in answer for c in part.choices] if stream else answer.choices
            return choices[-1].finish_reason, time.monotonic() - begun

        with concurrent.futures.ThreadPoolExecutor() as pool:
            ends = list(pool.map(ask, [True, False]))
        self.assertTrue(all(reason for reason, _ in ends), ends)
        # Nothing was sent twice: each request had one step.
        self.assertEqual(worker.log().count("request ended"), len(ends), worker.log())
        self.assertGreater(sorted(took for _, took in ends)[1], SILENCE_S)
        self.assertLess(max(took for _, took in ends), (len(ends) + 1) * STEP_S)
        self.assertEqual(smg.workers(), {worker.address: "ready"})


if __name__ == "__main__":
    BIN_DIR = sys.argv.pop(1)
    unittest.main()
