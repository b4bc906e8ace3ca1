"""Loads from shared memory that are still on their way where a warp arrives at a barrier.

A warp that arrives at the barrier of a ring's place gives the place back. Arriving does not wait
for loads and overtakes them, so that the assembler must have put something before it that does:
what uses the last word loaded. Hardly any test shows where it did not, as the place has to be
filled again within the time of a load that waits in line, and compute-sanitizer does not either.

An instruction's control word has the number of the scoreboard that its result will release (7:
none), and a mask of the scoreboards that it waits for. Branches are not followed: the code is read
in the order in which it lies, so that a load which a loop carries past an arrival above it is not
seen. Nor are arrivals in other blocks of a cluster, or at numbered barriers.
"""

import re

SHARED_LOAD = re.compile(r"\bLDSM?\b")
# Without bytes to expect.
ARRIVAL = re.compile(r"\bSYNCS\.ARRIVE\.TRANS64\.A1T0\b")
NO_SCOREBOARD = 7


class Arrivals:
    """Counts the arrivals that it has looked at."""

    counted = "arrivals"

    def __init__(self):
        self.count = 0

    def faults(self, code):
        """Yields those of a function: (address, what is wrong there)."""
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
