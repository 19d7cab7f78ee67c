"""Submit jobs as the users of the demo datacenter, with the rates and kinds of the Acme trace, until stopped.

The command stores no state, so it can be restarted at any time. It pauses while the queue is long.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from acmeweb.common import metrics_store
from jobs.models import Cluster, Job, clock
from scheduling.bundled import demo
from scheduling.bundled.history import write
from scheduling.clusters.simulator import SimulatorError
from scheduling.models import Campaign
from scheduling.slurmsim import workload
from scheduling.slurmsim.workload import SampledJob

log = logging.getLogger(__name__)
PROGRESS_LIFETIME_S = 60


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--speed", type=float, default=20.0, help="speed of the trace: one hour takes 3600/SPEED seconds"
        )
        parser.add_argument("--longest", type=float, default=900.0, help="maximum run time of a job, in seconds")
        parser.add_argument("--load", type=float, default=0.9, help="offered load as a share of the GPUs")
        parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")

    def handle(self, *, speed: float, longest: float, load: float, seed: int, **_: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        cluster = Cluster.objects.get(name=demo.DEMO_CLUSTER)
        while not (target := demo.workload_target(cluster, speed=speed, longest_s=longest)):
            if stopped.wait(0.5):
                return
        demo.set_quotas(cluster, target.gpus)
        if settings.DEMO_HISTORY_DAYS:
            threading.Thread(target=_add_history, args=[cluster], daemon=True).start()
        # The seed depends on the jobs so far, so that a restart does not repeat the same jobs
        dice = Random(f"{seed}:{Job.objects.order_by('-id').values_list('id', flat=True).first()}")
        if demo.is_mostly_idle(cluster, target):
            for job in demo.initial_jobs(dice, target):
                _submit(cluster, job, dice)
        next_checkpoint = clock.now()
        for gap in workload.interarrival_times_s(dice, target, load):
            if stopped.wait(gap):
                return
            if clock.now() >= next_checkpoint and not Campaign.objects.unfinished().exists():
                demo.evaluate(cluster, clock.now())
                next_checkpoint = clock.now() + timedelta(seconds=demo.CHECKPOINT_EVERY_S)
            if Job.objects.waiting().filter(cluster=cluster).count() < demo.MAX_WAITING_JOBS:
                _submit(cluster, workload.sample_job(dice, target), dice)


def _submit(cluster: Cluster, job: SampledJob, dice: Random) -> None:
    try:
        demo.submit(cluster, job, dice, clock.now())
    except SimulatorError as error:
        log.warning("No job was submitted. %s", error)


def _add_history(cluster: Cluster) -> None:
    """Write the history of the demo beside the submissions. It is one transaction, so it may be cut off anywhere."""
    os.nice(10)  # of this thread only
    try:
        jobs = write.write_history(
            cluster, clock.now(), partial(_report_progress, cluster), days=settings.DEMO_HISTORY_DAYS
        )
        log.info("The history of the demo has %d new jobs", jobs)
    except Exception:
        log.exception("The history of the demo could not be written; the next start tries again")
    finally:
        connection.close()


def _report_progress(cluster: Cluster, share: float) -> None:
    metrics_store.store_figures("history", cluster.name, {"share": share}, PROGRESS_LIFETIME_S)
