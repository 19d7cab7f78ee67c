"""Write the history of the demo. It is one transaction, so the command may be stopped at any time and run again."""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from jobs.core.cluster_kinds import KUBERNETES
from jobs.models import Cluster, clock
from scheduling.ledger.loops.figures import update_ledger_metrics_once
from scheduling.simulation import client
from scheduling.simulation.demo import users
from scheduling.simulation.demo.history import progress, write
from scheduling.simulation.demo.history.logs import StoreLogs, write_log_files


class Command(BaseCommand):
    help = __doc__

    def handle(self, **_: Any) -> None:
        os.nice(10)  # pages and scheduling turns are more urgent
        gc.disable()  # the rows live until the process ends, and each collection would look at them again
        stores = {cluster: _log_store(cluster) for cluster in users.clusters_with_nodes()}
        jobs = write.write_history(stores, clock.now(), progress.store_share, days=settings.DEMO_HISTORY_DAYS)
        update_ledger_metrics_once(clock.now())  # or pages would show the figures of an empty day until the next turn
        self.stdout.write(f"The history of the demo has {jobs} new jobs.")


def _log_store(cluster: Cluster) -> StoreLogs:
    """The simulated Slurm cluster writes the logs of its jobs. Acme itself writes those of Kubernetes clusters."""
    return write_log_files if cluster.kind is KUBERNETES else partial(client.store_logs, cluster)
