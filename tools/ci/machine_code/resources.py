"""Reads from cuobjdump what kernels take of a GPU, and knows the limits of every GPU since compute
capability 8.0 (CUDA C++ Programming Guide, "Compute Capabilities")."""

import collections
import os
import pathlib
import re
import shutil
import subprocess

from machine_code import sass

# Registers of an SM, which are given to warps in units of 256; threads of a block without bounds.
REGISTERS = 65_536
REGISTERS_UNIT = 256
MOST_THREADS = 1024
# Static shared memory that a launch gets without asking for more, in bytes. From compute capability
# 9.0 on the system's 1024 bytes are counted with it.
STATIC_SHARED = 48 * 1024
# Local memory of a thread in bytes: spilled registers and frames of functions. A few words beside a
# loop cost nothing; an array that was meant to be in registers takes more.
MOST_STACK = 256
# The PTX from which drivers make code for GPUs that come later.
PTX = "80"

Kernel = collections.namedtuple("Kernel", "name registers stack shared threads")
# A library: kernels by target, and names of kernels by the target of their PTX.
Library = collections.namedtuple("Library", "kernels ptx")

KIND = re.compile(r"^Fatbin (elf|ptx) code:")
ARCH = re.compile(r"^arch = sm_(\w+)")
USAGE_OF = re.compile(r"^ Function (\S+):$")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
INFO_OF = re.compile(r"^\.nv\.info\.(\S+)$")
THREADS = re.compile(r"^\s*Value:\s+0x([0-9a-f]+) 0x([0-9a-f]+) 0x([0-9a-f]+)")
ENTRY = re.compile(r"\.entry (\w+)\(")


class Unreadable(Exception):
    pass


def wanted(argument):
    """(library, targets) of LIBRARY=TARGET,…."""
    path, _, targets = argument.partition("=")
    return pathlib.Path(path), targets.split(",") if targets else []


def of_build(root=sass.ROOT):
    """(library, targets) of each library of kernels in build/release."""
    build = root / "build" / "release"
    cache = build / "CMakeCache.txt"
    found = re.search(
        r"^ORCD_GPU_TARGETS:\w+=(.+)$", cache.read_text() if cache.exists() else "", re.MULTILINE)
    libraries = [
        (build / "cuda" / "liborcd_portable_kernels.a", found[1].split(";") if found else []),
        (build / "cuda" / "liborcd_kernels.a", ["90a"]),
    ]
    for path, targets in libraries:
        if not targets or not path.exists():
            raise Unreadable(f"no {path.name}; build it first (tools/build release --cuda)")
    return libraries


def lines_of(path, option):
    """The lines of cuobjdump's output, without what is not needed of its dump of a whole file."""
    with subprocess.Popen(
        [sass.cuobjdump(), option, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        for line in program.stdout:
            yield line.rstrip("\n")
    if program.returncode != 0:
        raise Unreadable(f"cuobjdump {option} {path} failed")


def with_targets(lines):
    """Yields (kind, target, line)."""
    kind = target = None
    for line in lines:
        if found := KIND.match(line):
            kind = found[1]
        elif found := ARCH.match(line):
            target = found[1]
        else:
            yield kind, target, line


def usage(lines):
    """Yields (target, kernel, registers, stack, shared memory)."""
    kernel = None
    for kind, target, line in with_targets(lines):
        if found := USAGE_OF.match(line):
            kernel = found[1]
        elif kind == "elf" and kernel is not None and (found := USAGE.search(line)):
            registers, stack, shared, local = map(int, found.groups())
            yield target, kernel, registers, stack + local, shared
            kernel = None


def launch_bounds(lines):
    """Most threads of a block by (target, kernel), where the kernel says so."""
    bounds = {}
    kernel = None
    expected = False
    for kind, target, line in with_targets(lines):
        if kind != "elf":
            continue
        if found := INFO_OF.match(line):
            kernel = found[1]
        elif "EIATTR_MAX_THREADS" in line or "EIATTR_REQNTID" in line:
            expected = True
        elif expected and (found := THREADS.match(line)):
            x, y, z = (int(number, 16) for number in found.groups())
            bounds[target, kernel] = x * y * z
            expected = False
    return bounds


def ptx_entries(lines):
    """Names of the kernels in PTX, by its target."""
    entries = collections.defaultdict(set)
    for kind, target, line in with_targets(lines):
        if kind == "ptx" and (found := ENTRY.search(line)):
            entries[target].add(found[1])
    return entries


def read(path):
    bounds = launch_bounds(lines_of(path, "-elf"))
    kernels = collections.defaultdict(list)
    for target, name, registers, stack, shared in usage(lines_of(path, "--dump-resource-usage")):
        threads = bounds.get((target, name), MOST_THREADS)
        kernels[target].append(Kernel(name, registers, stack, shared, threads))
    if not kernels:
        raise Unreadable(f"{path} has no kernels")
    return Library(kernels, ptx_entries(lines_of(path, "-ptx")))


def readable(names):
    """The names as the source has them, without arguments."""
    program = shutil.which("c++filt")
    if not program or not names:
        return list(names)
    out = subprocess.run(
        [program], input="\n".join(names), check=True, stdout=subprocess.PIPE, text=True).stdout
    return [re.sub(r"^void |orcd::cuda::|\(anonymous namespace\)::|\((?!anonymous).*$", "", name)
            for name in out.splitlines()]


def table(library):
    rows = [("target", "kernels", "most registers", "static shared", "with a stack", "most stack")]
    for target, kernels in sorted(library.kernels.items(), key=lambda item: (len(item[0]), item[0])):
        rows.append((
            f"sm_{target}", len(kernels), max(k.registers for k in kernels),
            max(k.shared for k in kernels), sum(k.stack > 0 for k in kernels),
            max(k.stack for k in kernels)))
    for target, names in sorted(library.ptx.items()):
        rows.append((f"PTX {target}", len(names), "", "", "", ""))
    return "\n".join("  ".join(f"{cell:>14}" for cell in row).rstrip() for row in rows)


def faults_of(kernel):
    a_warp = -(-kernel.registers * 32 // REGISTERS_UNIT) * REGISTERS_UNIT
    warps = -(-kernel.threads // 32)
    if a_warp * warps > REGISTERS:
        yield (f"{kernel.registers} registers in each of {kernel.threads} threads are more than "
               f"the {REGISTERS} of an SM")
    if kernel.shared > STATIC_SHARED:
        yield f"{kernel.shared} bytes of static shared memory are more than {STATIC_SHARED}"
    if kernel.stack > MOST_STACK:
        yield f"{kernel.stack} bytes of stack are more than {MOST_STACK}"


def faults(library, targets):
    """What is wrong, each as a text. Every kernel must be there for each of the targets; if one of
    them is a target that others share (90 and not 90a), also as PTX."""
    kernels = {target: {k.name: k for k in library.kernels.get(target, [])} for target in targets}
    everything = sorted(set().union(*kernels.values(), *library.ptx.values()))
    names = dict(zip(everything, readable(everything)))
    for target in targets:
        for name in everything:
            if name not in kernels[target]:
                yield f"sm_{target} lacks {names[name]}"
        for kernel in kernels[target].values():
            for fault in faults_of(kernel):
                yield f"sm_{target}, {names[kernel.name]}: {fault}"
    if any(target.isdigit() for target in targets):
        for name in everything:
            if name not in library.ptx.get(PTX, ()):
                yield f"PTX of compute_{PTX} lacks {names[name]}"
