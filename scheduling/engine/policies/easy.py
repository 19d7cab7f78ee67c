"""EASY backfilling (Lifka, JSSPP'95): first come, first served, with a reservation for the first job only.

As in CQSim, other jobs may pass if that does not delay the first one according to expected run times: the true ones in
a replay unless configured otherwise, the time limits on a live cluster. Difference: the reservation is for nodes, not
for a number of GPUs, so it holds with every placement.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.turns.easy import easy_turn


class EasyRules(PolicyRules):
    """First come, first served, with a reservation for the first job."""

    name = "easy"
    plans = True

    def turn(self, engine: Engine, now: float) -> None:
        easy_turn(engine, now)
