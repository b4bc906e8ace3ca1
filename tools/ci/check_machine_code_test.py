"""Tests check-machine-code on short listings with and without its faults."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from machine_code import sass
from machine_code.arrivals import Arrivals
from machine_code.fragments import Fragments

TOOLS = pathlib.Path(__file__).resolve().parent
PRODUCT = "HGMMA.64x16x16.F32 R24, R4, gdesc[UR8], R24, gsb0"
WAIT_FOR_ALL = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
WAIT_FOR_ALL_BUT_ONE = "WARPGROUP.DEPBAR.LE gsb0, 0x1"
ARRIVAL = "SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R3+URZ], RZ"


def control(sets=7, waits=()):
    """A control word that releases the scoreboard `sets` and waits for the scoreboards `waits`."""
    return sets << 5 | sum(1 << board for board in waits) << 11


def listing(code):
    """The output of cuobjdump for instructions, each a text or a text and its control word."""
    lines = ["\tFunction : kernel"]
    for i, instruction in enumerate(code):
        text, word = instruction if isinstance(instruction, tuple) else (instruction, control())
        lines.append(f"        /*{16 * i:04x}*/   {text} ;   /* 0x{0:016x} */")
        lines.append(f"                                 /* 0x{word << 41:016x} */")
    return "\n".join(lines) + "\n"


def faults(check, code):
    [(_, parsed)] = sass.parse(listing(code))
    return [f"{address:04x}: {fault}" for address, fault in check.faults(parsed)]


class CheckMachineCodeTest(unittest.TestCase):
    def fragments(self, *code):
        return faults(Fragments(), code)

    def arrivals(self, *code):
        return faults(Arrivals(), code)

    def run_tool(self, *code):
        """Exit status and output of the tool."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "listing"
            path.write_text(listing(code))
            program = pathlib.Path(folder) / "cuobjdump"
            program.write_text('#!/bin/sh\ncat "$2"\n')
            program.chmod(0o755)
            result = subprocess.run(
                [sys.executable, str(TOOLS / "check-machine-code"), str(path)],
                env={**os.environ, "CUOBJDUMP": str(program)},
                capture_output=True, text=True, check=False)
        return result.returncode, result.stdout + result.stderr

    def test_both_are_looked_for(self):
        status, said = self.run_tool(PRODUCT, WAIT_FOR_ALL, ARRIVAL, "EXIT")
        self.assertEqual((status, said), (0, "1 arrivals, 1 products: 0 faults\n"))
        status, said = self.run_tool(PRODUCT, "MOV R4, RZ", ARRIVAL, "EXIT")
        self.assertEqual(status, 1)
        self.assertIn(": kernel at 0010: MOV R4, RZ\n1 arrivals, 1 products: 1 faults\n", said)

    def test_code_without_what_it_looks_for_proves_nothing(self):
        self.assertEqual(self.run_tool(PRODUCT, WAIT_FOR_ALL, "EXIT")[0], 1)
        self.assertEqual(self.run_tool(ARRIVAL, "EXIT")[0], 1)
        other = "QGMMA.64x16x32.F32.E4M3.E4M3 R24, R4, R8"
        status, said = self.run_tool(PRODUCT, WAIT_FOR_ALL, ARRIVAL, other, "EXIT")
        self.assertEqual((status, said), (1, f"a product of a form that is not known: {other}\n"))

    def test_weights_are_loaded_behind_the_wait(self):
        self.assertEqual(
            self.fragments(
                "LDSM.16.M88.4 R4, [R9]", PRODUCT, WAIT_FOR_ALL, "LDSM.16.M88.4 R4, [R9+0x100]",
                "EXIT"),
            [])

    def test_weights_are_loaded_too_early(self):
        # The load writes four registers, the last of which is the product's first.
        load = "LDSM.16.M88.4 R1, [R9]"
        self.assertEqual(self.fragments(PRODUCT, load, WAIT_FOR_ALL, "EXIT"), [f"0010: {load}"])

    def test_sums_are_read_and_written_too_early(self):
        for text in ("FADD R40, R31, R41", "@P0 MOV R24, RZ", "STG.E desc[UR4][R2.64], R30"):
            self.assertEqual(
                self.fragments(PRODUCT, text, WAIT_FOR_ALL, "EXIT"), [f"0010: {text}"])
            self.assertEqual(self.fragments(PRODUCT, WAIT_FOR_ALL, text, "EXIT"), [])

    def test_other_registers_may_be_touched(self):
        self.assertEqual(
            self.fragments(
                PRODUCT, "IMAD.WIDE R2, R4, R9, R10", "MOV R32, R7", WAIT_FOR_ALL, "EXIT"),
            [])

    def test_a_wait_leaves_the_youngest_groups(self):
        younger = PRODUCT.replace("R4,", "R8,")
        first, second = "MOV R4, RZ", "MOV R8, RZ"
        wait = WAIT_FOR_ALL_BUT_ONE
        self.assertEqual(
            self.fragments(PRODUCT, younger, wait, first, WAIT_FOR_ALL, second, "EXIT"), [])
        self.assertEqual(
            self.fragments(PRODUCT, younger, wait, second, "EXIT"), [f"0030: {second}"])

    def test_what_a_loop_carries_round_is_seen(self):
        loop = ["MOV R4, R9", PRODUCT, "@P0 BRA 0x0", WAIT_FOR_ALL, "EXIT"]
        self.assertEqual(self.fragments(*loop), ["0000: MOV R4, R9"])
        loop[2:4] = [WAIT_FOR_ALL, "@P0 BRA 0x0"]
        self.assertEqual(self.fragments(*loop), [])

    def test_a_place_is_given_back_behind_its_loads(self):
        load = ("LDS R4, [R9]", control(sets=2))
        use = ("FADD R5, R4, R4", control(waits=[2]))
        self.assertEqual(self.arrivals(load, use, ARRIVAL), [])
        self.assertEqual(
            self.arrivals(load, ("FADD R5, R6, R6", control(waits=[1])), ARRIVAL),
            ["0020: on their way are 0000 LDS R4, [R9]"])


if __name__ == "__main__":
    unittest.main()
