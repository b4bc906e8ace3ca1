"""Registers that are touched while tensor cores still read or write them.

A product of a warpgroup (wgmma) runs beside the instructions after it until the warp waits for its
group. Until then nothing may write the registers that hold its weights, and nothing may read or
write those of its accumulator. The assembler enforces neither; a kernel that loads the next weights
a moment too early occasionally multiplies a mixture of both. The check follows every branch, with
the groups in flight.

An HGMMA reads four registers of weights, unless they are in shared memory, and adds to N / 2
accumulator registers (F32, 64 x N, over 128 threads). `gsb0` at its end closes a group, and
WARPGROUP.DEPBAR.LE gsb0, n waits until at most n groups are left. Of other instructions the check
sees only operands in the text: a vector that is stored appears as its first register.
"""

import re

PRODUCT = re.compile(r"HGMMA\.64x(\d+)x\S+ R(\d+), (?:R(\d+)|gdesc)")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x([0-9a-f]+)")
BRANCH = re.compile(r"\b(?:BRA|CALL)\b.*\b(0x[0-9a-f]+)$")
END = re.compile(r"^(?:EXIT|RET|BRX|BPT)\b")
ALWAYS = re.compile(r"^BRA 0x")
DESTINATION = re.compile(r"^(?:@!?U?P\w+ )?([A-Z][\w.]*) (?:!?U?P\w+, )?R(\d+)\b")
REGISTER = re.compile(r"\bR(\d+)\b")
WITHOUT_DESTINATION = ("ST", "BAR", "SYNCS", "RED.", "REDG", "CCTL", "WARPSYNC")
# Number of groups in flight that are kept apart; more than any wait leaves.
MOST_GROUPS = 8
NOTHING = (frozenset(), frozenset())


def written(text):
    """The registers that an instruction writes."""
    found = DESTINATION.match(text)
    if not found or found[1].startswith(WITHOUT_DESTINATION):
        return range(0)
    operation, first = found[1], int(found[2])
    if ".128" in operation or operation.startswith("LDSM") and ".4" in operation:
        return range(first, first + 4)
    if ".64" in operation or ".WIDE" in operation:
        return range(first, first + 2)
    return range(first, first + 1)


def touches(text, flight):
    """True if an instruction conflicts with a product in flight."""
    writes = written(text)
    reads = [int(register) for register in REGISTER.findall(text)]
    return any(
        not weights.isdisjoint(writes) or not sums.isdisjoint(writes)
        or not sums.isdisjoint(reads) for weights, sums in flight)


def joined(one, other):
    """The union of two groups."""
    return one[0] | other[0], one[1] | other[1]


class Fragments:
    """Finds such instructions, and counts the products that it examined."""

    counted = "products"

    def __init__(self):
        self.count = 0

    def faults(self, code):
        """Yields the instructions of a function that conflict with a product in flight: (address,
        text).

        `flight` holds the closed groups, oldest first, and then the open one; each group is the
        registers of its weights and those of its accumulators."""
        at = {address: i for i, (address, _, _) in enumerate(code)}
        targets = [at.get(int(found[1], 16)) if (found := BRANCH.search(text)) else None
                   for _, text, _ in code]
        meetings = set(targets) - {None}
        found, products, seen = {}, set(), set()
        paths = [(0, (NOTHING,))]
        while paths:
            i, flight = paths.pop()
            while i < len(code):
                # A path that reaches a branch target in a known state has been followed from there.
                if i in meetings:
                    if (i, flight) in seen:
                        break
                    seen.add((i, flight))
                address, text, _ = code[i]
                if product := PRODUCT.search(text):
                    products.add(address)
                    columns, sums, weights = (int(number or -1) for number in product.groups())
                    product = (frozenset(range(weights, weights + 4) if weights >= 0 else ()),
                               frozenset(range(sums, sums + columns // 2)))
                    flight = flight[:-1] + (joined(flight[-1], product),)
                    if "gsb0" in text:
                        flight += (NOTHING,)
                    if len(flight) > MOST_GROUPS:
                        # Joins the two oldest groups, or a loop that never waits would never end.
                        flight = (joined(*flight[:2]),) + flight[2:]
                elif "GMMA." in text:
                    raise SystemExit(f"a product of a form that is not known: {text}")
                elif wait := WAIT.search(text):
                    flight = flight[-1 - int(wait[1], 16):]
                elif touches(text, flight):
                    found[address] = text
                if END.match(text):
                    break
                if targets[i] is not None:
                    paths.append((targets[i], flight))
                    if ALWAYS.match(text):
                        break
                i += 1
        self.count += len(products)
        yield from sorted(found.items())
