"""Conservative backfilling (Mu'alem & Feitelson, TPDS'01): first come, first served, with a promise to everybody.

A job may pass others only if it delays none of them by what is expected: the true run time in a replay unless it is
told otherwise, the time limit on a live cluster. Differences: promises are to nodes, not to a number of GPUs; only the
first thousand have one; and when somebody ends early all are made anew in order, where the paper moves each up by
itself.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.conservative import conservative_turn


class ConservativeRules(PolicyRules):
    name = "conservative"
    plans = True

    def turn(self, engine: Engine, now: float) -> None:
        conservative_turn(engine, now)
