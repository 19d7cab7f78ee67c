"""Register the demo datacenter: its cluster, teams and users. Run at each start; existing rows are kept."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from scheduling.bundled import demo
from scheduling.bundled.history import write
from scheduling.bundled.seed import SeedCommand


class Command(SeedCommand):
    help = __doc__

    def handle(self, **options: Any) -> None:
        cluster, new = self.upsert_cluster(demo.DEMO_CLUSTER, "Demo datacenter (simulated)", options)
        if new:
            if settings.DEMO_HISTORY_DAYS:
                write.reserve_keys()  # first: the next lines write Events
            demo.create_teams_and_users()
            demo.enable_automatic_recovery(cluster)
