"""Make the demo datacenter known: its cluster, teams and people. Run at each start; it only adds what is missing."""

from __future__ import annotations

from typing import Any

from scheduling.bundled import demo
from scheduling.bundled.seed import SeedCommand


class Command(SeedCommand):
    help = __doc__

    def handle(self, **given: Any) -> None:
        cluster, new = self.upsert_cluster(demo.DEMO_CLUSTER, "Demo datacenter (simulated)", given)
        if new:
            demo.create_teams_and_users()
            demo.enable_automatic_recovery(cluster)
