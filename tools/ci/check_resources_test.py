"""Tests check-resources on short listings with and without its faults."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
SMALL = {"registers": 64, "stack": 0, "shared": 1024, "threads": 1024}


def fatbin(kind, target, text):
    return f"\nFatbin {kind} code:\n================\narch = sm_{target}\n{text}\n"


def usage(name, kernel):
    return (f" Function {name}:\n  REG:{kernel['registers']} STACK:{kernel['stack']} "
            f"SHARED:{kernel['shared']} LOCAL:0 CONSTANT[0]:472 TEXTURE:0 SURFACE:0 SAMPLER:0")


def info(name, kernel):
    bounds = f"\tAttribute:\tEIATTR_MAX_THREADS\n\tFormat:\tEIFMT_SVAL\n\tValue:\t0x{kernel['threads']:x} 0x1 0x1 \n"
    return f".nv.info.{name}\n\tValue:\t0x7 0x7 0x7 \n{bounds if kernel['threads'] else ''}"


class CheckResourcesTest(unittest.TestCase):
    def run_tool(self, kernels, ptx=("small",), targets="80,90"):
        """Exit status and output of the tool for {(target, name): kernel}."""
        listings = {
            "--dump-resource-usage": "".join(
                fatbin("elf", target, usage(name, k)) for (target, name), k in kernels.items()),
            "-elf": "".join(
                fatbin("elf", target, info(name, k)) for (target, name), k in kernels.items()),
            "-ptx": "".join(fatbin("ptx", "80", f".visible .entry {name}(") for name in ptx),
        }
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "cuobjdump"
            program.write_text('#!/bin/sh\ncat "$(dirname "$0")/listing$1"\n')
            program.chmod(0o755)
            for option, text in listings.items():
                (pathlib.Path(folder) / f"listing{option}").write_text(text)
            result = subprocess.run(
                [sys.executable, str(TOOLS / "check-resources"), f"some.a={targets}"],
                env={**os.environ, "CUOBJDUMP": str(program)},
                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def fault_of(self, **changes):
        kernels = {("80", "small"): SMALL, ("90", "small"): {**SMALL, **changes}}
        status, output = self.run_tool(kernels)
        self.assertEqual(status, 1, output)
        self.assertIn("sm_90, small: ", output)
        return output

    def test_kernels_within_the_limits(self):
        at_the_limits = {"registers": 128, "stack": 256, "shared": 48 * 1024, "threads": 512}
        status, output = self.run_tool({("80", "small"): SMALL, ("90", "small"): at_the_limits})
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"sm_90 +1 +128 +49152 +1 +256\n")
        self.assertRegex(output, r"PTX 80 +1\n")
        self.assertIn("0 faults", output)

    def test_registers(self):
        self.assertIn("65 registers in each of 1024 threads", self.fault_of(registers=65))
        self.assertIn("72 registers in each of 928 threads", self.fault_of(registers=72, threads=928))

    def test_a_kernel_without_bounds_may_have_any_block(self):
        self.assertIn("in each of 1024 threads", self.fault_of(registers=65, threads=0))

    def test_shared_memory(self):
        self.assertIn("49153 bytes of static shared memory", self.fault_of(shared=49153))

    def test_stack(self):
        self.assertIn("264 bytes of stack", self.fault_of(stack=264))

    def test_a_target_that_lacks_a_kernel(self):
        status, output = self.run_tool({("80", "small"): SMALL})
        self.assertEqual(status, 1, output)
        self.assertIn("sm_90 lacks small", output)

    def test_a_kernel_without_ptx(self):
        kernels = {("80", "small"): SMALL, ("90", "small"): SMALL}
        status, output = self.run_tool(kernels, ptx=())
        self.assertEqual(status, 1, output)
        self.assertIn("PTX of compute_80 lacks small", output)

    def test_code_for_one_gpu_needs_no_ptx(self):
        status, output = self.run_tool({("90a", "small"): SMALL}, ptx=(), targets="90a")
        self.assertEqual(status, 0, output)

    def test_a_library_without_kernels(self):
        status, output = self.run_tool({})
        self.assertEqual(status, 1, output)
        self.assertIn("some.a has no kernels", output)


if __name__ == "__main__":
    unittest.main()
