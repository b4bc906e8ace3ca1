"""The behaviour of smg and its clients when workers are killed, stopped, restarted, drained,
loading or full. docs/smg.md has the table; ORCD_WRITE_DOCS=1 rewrites it.

smg_states_test.py BIN_DIR ROOT
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

from smg_under_test import SmgUnderTest
from worker_under_test import NANO, WorkerUnderTest

BIN_DIR = None
ROOT = None
# smg pings a silent worker after 30 s and waits 10 s for an answer; a loaded machine takes longer.
SILENCE_S = 40
PATIENCE_S = 150
BEGIN, END = "<!-- states -->\n", "<!-- /states -->\n"


class Stream:
    """A completion, streaming or not, as its client sees it."""

    def __init__(self, smg, prompt, tokens, stream=True):
        self.prompt = prompt
        self._smg, self._stream = smg, stream
        self._body = {"model": "nano", "prompt": prompt, "max_tokens": tokens, "stream": stream}
        # The same prompt gets the same tokens, whichever worker answers.
        self._body |= {"ignore_eos": True, "seed": 7}
        self.status, self.error, self.finish_reason = None, None, None
        self.begun = threading.Event()
        self.text = ""
        self._sent = time.monotonic()
        self.took = None

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._smg.port, timeout=PATIENCE_S)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(self._body), headers)
            response = connection.getresponse()
            self.status = response.status
            if response.status != 200:
                self.error = json.loads(response.read())["error"]["message"]
            elif self._stream:
                for line in response:
                    self._take(line)
            else:
                self._take_choices(json.loads(response.read()))
        finally:
            connection.close()
            self.took = time.monotonic() - self._sent
        return self

    def _take(self, line):
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            return
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            self.error = event["error"]["message"]
        self._take_choices(event)

    def _take_choices(self, event):
        for choice in event.get("choices", []):
            self.text += choice.get("text") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if self.text:
            self.begun.set()

    @property
    def complete(self):
        return self.status == 200 and not self.error and self.finish_reason == "length"


class SmgStatesTest(unittest.TestCase):
    rows = {}

    def setUp(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.addCleanup(self.pool.shutdown)
        self.smg = SmgUnderTest(["--policy", "round_robin", "--log-level", "warn"])
        self.addCleanup(self.smg.close)

    def worker(self, *args, loaded=True):
        # A token takes 50 ms, so a stream lasts long enough for the test to act on it.
        flags = ["--orchestrator", self.smg.url, "--backend", "null", "--null-step", "50ms"]
        flags += [*args, *(["--model", NANO] if loaded else [])]
        worker = WorkerUnderTest(BIN_DIR, flags)
        self.addCleanup(worker.close)
        return worker

    def workers(self, count, *args):
        workers = [self.worker(*args) for _ in range(count)]
        self.smg.wait_for_workers([worker.address for worker in workers])
        return workers

    def start(self, prompt, tokens, stream=True):
        """Starts a stream and returns it with a future of its end."""
        asked = Stream(self.smg, prompt, tokens, stream)
        return asked, self.pool.submit(asked.run)

    def ask(self, prompt, tokens=3):
        return Stream(self.smg, prompt, tokens).run()

    def ask_until_answered(self, prompt):
        """The first complete answer to repeated requests, and the time until then."""
        begun = time.monotonic()
        while not (asked := self.ask(prompt)).complete:
            self.assertLess(time.monotonic() - begun, PATIENCE_S, asked.error)
            self.assertIn(asked.status, (404, 503), asked.error)
            time.sleep(0.1)
        return time.monotonic() - begun

    def running(self, count, tokens):
        """Starts `count` streams, waits until they have begun, and returns futures of their
        ends."""
        started = [self.start(f"running {i}", tokens) for i in range(count)]
        for stream, _ in started:
            self.assertTrue(stream.begun.wait(PATIENCE_S))
        return [end for _, end in started]

    def wait_until_running(self, worker, requests):
        command = [pathlib.Path(BIN_DIR) / "orcdctl", "--json", "--address", worker.address, "health"]

        def running():
            health = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
            return json.loads(health)["status"]["queue"]["running_requests"] == requests

        self.smg.wait_for(running, f"{requests} do not run there")

    def record(self, state, listed, running, new):
        self.rows[state] = (listed, running, new)

    def test_killed(self):
        one, other = self.workers(2)
        ends = self.running(4, 100)
        whole = [self.start(f"whole {i}", 60, stream=False)[1] for i in range(2)]
        self.wait_until_running(one, 3)
        one.kill()
        for end in whole:
            self.assertTrue(end.result().complete, end.result().error)
        results = [end.result() for end in ends]
        lost = [result for result in results if result.error]
        self.assertEqual(len(lost), 2, "half of them were its")
        self.assertTrue(all(result.complete for result in results if not result.error))
        # The partial answers were correct.
        for result in lost:
            again = self.ask(result.prompt, 100)
            self.assertTrue(again.complete, again.error)
            self.assertTrue(again.text.startswith(result.text), (again.text, result.text))
        for i in range(6):
            answered = self.ask(f"new {i}")
            self.assertTrue(answered.complete, answered.error)
        other.kill()
        refused = self.ask("nobody is left")
        self.assertEqual(refused.status, 503)
        self.assertLess(refused.took, SILENCE_S)
        one.start()
        self.ask_until_answered("it is back")
        self.record(
            "killed (SIGKILL)",
            "as `ready` until its health checks fail; once it is started again it is out for 5 s, "
            "then `ready`",
            "an error event at once; without streaming it is done anew elsewhere",
            "answered by another worker; without one 503 within a second",
        )

    def test_stopped(self):
        one, other = self.workers(2)
        ends = self.running(2, 100)
        one.signal(signal.SIGSTOP)
        begun = time.monotonic()
        _, waiting = self.start("asked of the stopped one, or the other", 3)
        _, waiting_too = self.start("asked of the other, or the stopped one", 3)
        for future in (waiting, waiting_too):
            result = future.result()
            self.assertTrue(result.complete, result.error)
        self.assertLess(time.monotonic() - begun, 3 * SILENCE_S)
        ended, running = concurrent.futures.wait(ends, 3 * SILENCE_S)
        self.assertFalse(running, "its stream did not end")
        self.assertEqual(sum(bool(end.result().error) for end in ended), 1)
        for i in range(4):
            answered = self.ask(f"new {i}")
            self.assertTrue(answered.complete, answered.error)
            self.assertLess(answered.took, SILENCE_S)
        one.signal(signal.SIGCONT)
        self.smg.wait_for_workers([one.address, other.address])
        self.record(
            "stopped (SIGSTOP)",
            "as `ready`, `not_ready` after 3 health checks of 60 s; `ready` when it goes on",
            "an error event after 40 s: smg pings after 30 and waits for 10",
            "what was sent to it: after 40 s by another worker; what comes later: at once. Without "
            "another worker 503 after 5 attempts, 200 s",
        )

    def test_drained(self):
        one, other = self.workers(2, "--drain-timeout", "100s", "--settle", "2s")
        ends = self.running(4, 100)
        one.signal(signal.SIGTERM)
        for i in range(20):
            answered = self.ask(f"new {i}")
            self.assertTrue(answered.complete, answered.error)
        for end in ends:
            self.assertTrue(end.result().complete, end.result().error)
        self.assertEqual(one.wait(), 0)
        self.smg.wait_for_workers([other.address])
        other.signal(signal.SIGTERM)
        self.smg.wait_for(lambda: self.ask("nobody is left").status == 503, "it was answered")
        self.record(
            "drained (SIGTERM, `orcdctl drain`)",
            "`draining` at once, gone 5 s later",
            "come to their end",
            "answered by another worker; without one 503 at once",
        )

    def test_loading(self):
        worker = self.worker(loaded=False)
        self.smg.wait_for(lambda: "once the worker is ready" in worker.log(), "it was not seen")
        refused = self.ask("nobody has it")
        self.assertEqual(refused.status, 404)
        self.assertEqual(self.smg.workers(), {})
        command = [pathlib.Path(BIN_DIR) / "orcdctl", "--address", worker.address, "load", NANO]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        self.ask_until_answered("it is there")
        self.record(
            "without a model, loading",
            "not there; `ready` at once when its model is",
            "",
            "404 where no other worker has the model",
        )

    def test_full(self):
        (one,) = self.workers(1, "--max-seqs", "1", "--max-waiting", "1")
        started = [self.start(f"one of many {i}", 40) for i in range(6)]
        results = [end.result() for _, end in started]
        refused = [result for result in results if result.error]
        self.assertGreaterEqual(len(refused), 1)
        self.assertTrue(all(result.status == 429 for result in refused))
        self.assertIn("the queue is full", refused[0].error)
        self.assertGreaterEqual(sum(result.complete for result in results), 2)
        # The worker was full, not unhealthy.
        self.assertTrue(self.ask("after that").complete)
        self.smg.wait_for_workers([one.address, self.worker().address])
        started = [self.start(f"of two workers {i}", 20) for i in range(6)]
        for _, end in started:
            self.assertTrue(end.result().complete, end.result().error)
        self.record(
            "full (`--max-waiting`)",
            "`ready`",
            "go on",
            "answered by another worker; without one 429 with the worker's message, after 5 attempts "
            "within a second",
        )

    @classmethod
    def tearDownClass(cls):
        # A test that failed has no row, and reports its own failure.
        if len(cls.rows) < 5:
            return
        path = ROOT / "docs" / "smg.md"
        text = path.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        _, tail = rest.split(END)
        table = "| the worker is | smg lists it | its streams | new requests |\n|---|---|---|---|\n"
        for state, cells in sorted(cls.rows.items()):
            table += f"| {state} | {' | '.join(cells)} |\n"
        if os.environ.get("ORCD_WRITE_DOCS"):
            path.write_text(f"{head}{BEGIN}{table}{END}{tail}", encoding="utf-8")
        elif table not in text:
            raise AssertionError(f"docs/smg.md has another table; ORCD_WRITE_DOCS=1 writes:\n{table}")


if __name__ == "__main__":
    BIN_DIR, ROOT = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main()
