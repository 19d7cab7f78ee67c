"""EASY backfilling (Lifka, JSSPP'95): first come, first served, with a promise to the first only.

As in CQSim, the others may pass if that does not delay the first by what is expected: the true run time in a replay
unless it is told otherwise, the time limit on a live cluster. Difference: the promise is to nodes, not to a number of
GPUs, so that it holds under every placement.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine
from scheduling.engine.rules import PolicyRules
from scheduling.engine.turns.easy import easy_turn


class EasyRules(PolicyRules):
    name = "easy"
    plans = True

    def turn(self, engine: Engine, now: float) -> None:
        easy_turn(engine, now)
