"""Submit jobs as the users of the demo datacenter, with the rates and kinds of the Acme trace, until stopped.

The command stores no state, so it can be restarted at any time. It pauses while the queue is long. At its first start,
another process writes the history of the demo meanwhile.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from acmeweb.common.env import ROOT
from jobs.models import Cluster, Job, clock
from scheduling.bundled import demo
from scheduling.bundled.history import write
from scheduling.clusters.simulator import SimulatorError
from scheduling.models import Campaign
from scheduling.slurmsim import workload
from scheduling.slurmsim.workload import SampledJob, WorkloadSettings

log = logging.getLogger(__name__)


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--speed",
            type=float,
            default=settings.DEMO_SPEED,
            help="speed of the trace: one hour takes 3600/SPEED seconds",
        )
        parser.add_argument(
            "--longest", type=float, default=18_000.0, help="maximum run time of a job, in seconds of the trace"
        )
        parser.add_argument("--load", type=float, default=0.9, help="offered load as a share of the GPUs")
        parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")

    def handle(self, *, speed: float, longest: float, load: float, seed: int, **_: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        cluster = Cluster.objects.get(name=demo.DEMO_CLUSTER)
        while not (target := demo.workload_target(cluster, speed=speed, longest_s=longest / speed)):
            if stopped.wait(0.5):
                return
        demo.set_quotas(cluster, target.gpus)
        # The seed depends on the jobs so far, so that a restart does not repeat the same jobs
        dice = Random(f"{seed}:{Job.objects.order_by('-id').values_list('id', flat=True).first()}")
        with _history_process():
            _submit_until(stopped, cluster, target, dice, load)


def _submit_until(
    stopped: threading.Event, cluster: Cluster, target: WorkloadSettings, dice: Random, load: float
) -> None:
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


@contextmanager
def _history_process() -> Iterator[None]:
    """Write the history beside the block, in a process of its own, which gives its memory back when it ends.

    If this process is killed, that one goes on, and the next start of this command finds the history or waits for it.
    """
    if not (settings.DEMO_HISTORY_DAYS and write.can_have_history()):
        yield
        return
    process = subprocess.Popen([sys.executable, ROOT / "manage.py", "write_demo_history"])  # noqa: S603
    threading.Thread(target=process.wait, daemon=True).start()  # or it would remain as a zombie
    try:
        yield
    finally:
        process.terminate()
        process.wait()
