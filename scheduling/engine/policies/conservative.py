"""Conservative backfilling (Mu'alem & Feitelson, TPDS'01): first come, first served, with a reservation for every job.

A job may pass others only if it delays none of them according to expected run times: the true ones in a replay unless
configured otherwise, the time limits on a live cluster. Differences: a reservation is for nodes, not for a number of
GPUs; only the first thousand jobs get one; and when a job ends early, all reservations are recomputed in order, while
the paper moves each one forward individually.
"""

from __future__ import annotations

from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.turns.conservative import conservative_turn


class ConservativeRules(PolicyRules):
    """First come, first served, with reservations for all jobs."""

    name = "conservative"
    plans = True

    def turn(self, engine: Engine, now: float) -> None:
        conservative_turn(engine, now)
