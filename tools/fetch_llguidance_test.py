"""Tests fetch-llguidance with a cargo and a rustc that are made up."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent / "fetch-llguidance"
# The only programs that it finds, beside those made up.
PROGRAMS = "bash cat cp dirname flock mkdir mv python3 rm sed sha256sum sleep sort".split()

RUSTC = """#!/usr/bin/env bash
if [[ $1 == -vV ]]; then echo "host: x86_64-unknown-linux-gnu"; else echo "rustc {} (0 2026-01-01)"; fi
"""
# Appends a line to a log, and takes a while so that two could meet.
CARGO = """#!/usr/bin/env bash
set -e
echo "$1 with $RUSTC" >> "$HOME/log"
if [[ $1 == build ]]; then
  while [[ $1 != --target-dir ]]; do shift; done
  sleep 0.3
  mkdir -p "$2/release"
  if [[ -e $HOME/broken ]]; then exit 101; fi
  echo library > "$2/release/liborcd_llguidance.a"
else
  cat "$HOME/metadata"
fi
"""
METADATA = """{{"resolve": {{"nodes": [{{"id": "ours"}}, {{"id": "it"}}]}}, "packages": [
{{"id": "ours", "name": "orcd-llguidance", "version": "0", "license": null, "source": null,
  "manifest_path": "/nowhere/Cargo.toml"}},
{{"id": "other", "name": "windows", "version": "2", "license": "X", "source": "registry",
  "manifest_path": "/nowhere/Cargo.toml"}},
{{"id": "it", "name": "llguidance", "version": "1.9.1", "license": "MIT", "source": "registry",
  "manifest_path": "{}/Cargo.toml"}}]}}"""


class FetchLlguidanceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.cache = self.home / "cache"
        self.bin = self.home / "bin"
        self.bin.mkdir()
        for name in PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name))
        (self.home / "crate").mkdir()
        (self.home / "crate" / "LICENSE").write_text("Copyright somebody\n")
        (self.home / "crate" / "llguidance.h").write_text("// a header\n")
        (self.home / "metadata").write_text(METADATA.format(self.home / "crate"))

    def add_rust(self, release, suffix=""):
        for name, text in (("rustc", RUSTC.format(release)), ("cargo", CARGO)):
            path = self.bin / (name + suffix)
            path.write_text(text)
            path.chmod(0o755)

    def start(self, *arguments):
        environment = {"PATH": str(self.bin), "HOME": str(self.home), "ORCD_CACHE": str(self.cache)}
        return subprocess.Popen(
            [str(TOOL), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run_tool(self, *arguments):
        process = self.start(*arguments)
        said, complained = process.communicate(timeout=60)
        return process.returncode, said, complained

    def log(self):
        path = self.home / "log"
        return path.read_text().splitlines() if path.exists() else []

    def test_builds_once_for_two_at_once(self):
        self.add_rust("1.87.0")
        processes = [self.start(), self.start()]
        outputs = {process.communicate(timeout=60)[0] for process in processes}
        self.assertEqual([process.returncode for process in processes], [0, 0])
        self.assertEqual(len(outputs), 1)
        library, folder = outputs.pop().split()
        self.assertEqual(pathlib.Path(library).read_text(), "library\n")
        self.assertEqual((pathlib.Path(folder) / "llguidance.h").read_text(), "// a header\n")
        licenses = (pathlib.Path(folder) / "LICENSES").read_text()
        self.assertIn("llguidance 1.9.1: MIT", licenses)
        self.assertIn("Copyright somebody", licenses)
        self.assertNotIn("windows", licenses)
        self.assertEqual(sum(line.startswith("build") for line in self.log()), 1)

    def test_what_was_built_needs_no_rust(self):
        self.add_rust("1.90.0")
        built = self.run_tool()
        for name in ("cargo", "rustc"):
            (self.bin / name).unlink()
        self.assertEqual(self.run_tool(), (0, built[1], ""))
        self.assertEqual(self.run_tool("--check"), (0, "", ""))

    def test_copies_into_a_folder(self):
        self.add_rust("1.90.0")
        into = self.home / "build" / "llguidance"
        self.assertEqual(self.run_tool("--into", str(into))[0], 0)
        self.assertEqual(
            sorted(path.name for path in into.iterdir()),
            ["LICENSES", "liborcd_llguidance.a", "llguidance.h"],
        )

    def test_a_build_that_fails_leaves_nothing(self):
        self.add_rust("1.90.0")
        (self.home / "broken").touch()
        self.assertNotEqual(self.run_tool()[0], 0)
        (self.home / "broken").unlink()
        self.assertEqual(self.run_tool()[0], 0)

    def test_old_rust_is_refused(self):
        status, _, complained = self.run_tool("--check")
        self.assertEqual(status, 1)
        self.assertIn("found none", complained)
        self.add_rust("1.63.0")
        status, _, complained = self.run_tool("--check")
        self.assertEqual(status, 1)
        self.assertIn("at least 1.87, found 1.63.0", complained)
        self.assertNotEqual(self.run_tool()[0], 0)
        self.assertEqual(self.log(), [])

    def test_finds_a_newer_rust_with_its_version_in_its_name(self):
        self.add_rust("1.75.0")
        self.add_rust("1.9.0", "-1.9")
        self.add_rust("1.89.0", "-1.89")
        self.assertEqual(self.run_tool("--check"), (0, "", ""))
        self.assertEqual(self.run_tool()[0], 0)
        self.assertEqual(self.log()[0], f"build with {self.bin}/rustc-1.89")


if __name__ == "__main__":
    unittest.main()
