"""Write the history of the demo. It is one transaction, so the command may be stopped at any time and run again."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from jobs.models import Cluster, clock
from scheduling.bundled import demo
from scheduling.bundled.history import progress, write
from scheduling.clusters import simulator
from scheduling.loops.ledger import update_ledger_metrics_once


class Command(BaseCommand):
    help = __doc__

    def handle(self, **_: Any) -> None:
        os.nice(10)  # pages and scheduling turns are more urgent
        cluster = Cluster.objects.get(name=demo.DEMO_CLUSTER)
        report = partial(progress.store_share, cluster)
        jobs = write.write_history(
            cluster, clock.now(), report, partial(simulator.store_logs, cluster), days=settings.DEMO_HISTORY_DAYS
        )
        update_ledger_metrics_once(clock.now())  # or pages would show the figures of an empty day until the next turn
        self.stdout.write(f"The history of the demo has {jobs} new jobs.")
