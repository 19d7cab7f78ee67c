"""Make the demo datacenter known: its cluster, teams and people. Run at each start; it only adds what is missing."""

from __future__ import annotations

from typing import Any

from scheduling import demo
from scheduling.own import SeedCommand


class Command(SeedCommand):
    help = __doc__

    def handle(self, **given: Any) -> None:
        cluster, new = self.remember(demo.CLUSTER, "Demo datacenter (simulated)", given)
        if new:
            demo.found()
            demo.let_recovery_act(cluster)
