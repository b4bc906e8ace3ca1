"""Loads from shared memory that are still in flight when a warp arrives at an mbarrier.

A warp that arrives at the barrier of a pipeline stage releases the stage. The arrival does not wait
for loads and can overtake them, so the assembler must put an instruction before it that does wait:
one that uses the last word loaded. Hardly any test shows a missing wait, because the stage must be
filled again within the latency of a queued load; compute-sanitizer does not show it either.

An instruction's control word has the number of the scoreboard that its result releases (7: none),
and a mask of the scoreboards that it waits for. The check does not follow branches: it reads the
code in the order of addresses, so it misses a load that a loop carries past an arrival above it. It
also ignores arrivals in other blocks of a cluster and at numbered barriers.
"""

import re

SHARED_LOAD = re.compile(r"\bLDSM?\b")
# An arrival without expected bytes.
ARRIVAL = re.compile(r"\bSYNCS\.ARRIVE\.TRANS64\.A1T0\b")
NO_SCOREBOARD = 7


class Arrivals:
    """Finds such loads, and counts the arrivals that it examined."""

    counted = "arrivals"

    def __init__(self):
        self.count = 0

    def faults(self, code):
        """Yields the faults of a function: (address, description)."""
        pending = {}
        for address, text, control in code:
            sets, waits = control >> 5 & 7, control >> 11 & 63
            pending = {board: loads for board, loads in pending.items() if not waits >> board & 1}
            if ARRIVAL.search(text):
                self.count += 1
                if pending:
                    loads = (load for of_board in pending.values() for load in of_board)
                    yield address, f"on their way are {'; '.join(loads)}"
            if SHARED_LOAD.search(text) and sets != NO_SCOREBOARD:
                pending.setdefault(sets, []).append(f"{address:04x} {text}")
