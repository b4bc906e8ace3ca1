"""Reads the machine code of CUDA kernels from cuobjdump."""

import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[3]
FUNCTION = re.compile(r"Function : (\S+)")
INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/")
UPPER_HALF = re.compile(r"\s+/\* 0x([0-9a-f]{16}) \*/")


def parse(text):
    """Yields (function, [(address, instruction, control word)]) from the output of cuobjdump.

    The control word is bits 105 to 125 of an instruction's 128 (Jia et al., "Dissecting the NVIDIA
    Volta GPU architecture via microbenchmarking", 2018).
    """
    function, code = None, []
    lines = text.split("\n")
    for line, following in zip(lines, lines[1:] + [""]):
        if found := FUNCTION.search(line):
            if code:
                yield function, code
            function, code = found[1], []
        elif found := INSTRUCTION.match(line):
            upper = UPPER_HALF.match(following)
            control = int(upper[1], 16) >> 41 & 0x1FFFFF
            code.append((int(found[1], 16), " ".join(found[2].split()), control))
    if code:
        yield function, code


def cuobjdump():
    """Path of the program: $CUOBJDUMP, or the one that tools/fetch-cuda finds or fetches."""
    return os.environ.get("CUOBJDUMP") or subprocess.run(
        [ROOT / "tools" / "fetch-cuda", "--cuobjdump"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def disassemble(objects):
    """Yields (path, function, code) of object files; by default of the kernels in build/release that
    have a pipeline of barriers or asynchronous products, which portable ones have not."""
    objects = objects or sorted(
        map(str, ROOT.glob("build/release/cuda/CMakeFiles/orcd_kernels.dir/kernels/sm90/*.cu.o")))
    if not objects:
        raise SystemExit("no kernels; build them first (tools/build release --cuda)")
    program = cuobjdump()
    for path in objects:
        out = subprocess.run(
            [program, "-sass", path], check=True, stdout=subprocess.PIPE, text=True)
        for function, code in parse(out.stdout):
            yield path, function, code
