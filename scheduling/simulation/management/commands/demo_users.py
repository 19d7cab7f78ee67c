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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from heapq import heappop, heappush
from random import Random
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from acmeweb.common.env import ROOT
from jobs.core.cluster_kinds import KUBERNETES
from jobs.models import Cluster, ClusterMode, Job, clock
from scheduling.models import Campaign
from scheduling.simulation.client import SimulatorError
from scheduling.simulation.demo import kalos, users
from scheduling.simulation.demo.history import write
from scheduling.simulation.machines import workload
from scheduling.simulation.machines.workload import SampledJob

log = logging.getLogger(__name__)

NODES_CHECK_S = 0.5
OBSERVED_CHECK_S = 10.0
WORKLOADS_CHECK_S = 300.0
LONG_RUN_CHECK_S = 60.0
MAX_NODES_WAIT_S = 60.0


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
            "--longest", type=float, default=18_000.0, help="maximum run time of a short job, in seconds of the trace"
        )
        parser.add_argument(
            "--load", type=float, default=0.7, help="offered load of short jobs, as a share of the GPUs left for them"
        )
        parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")

    def handle(self, *, speed: float, longest: float, load: float, seed: int, **_: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        sites = [
            SiteUsers(cluster, speed=speed, longest_s=longest / speed, load=load, dice=_new_dice(seed, cluster))
            for cluster in users.clusters()
        ]
        with ExitStack() as stack:
            _run_sites(stopped, sites, lambda: stack.enter_context(_history_process()))


def _new_dice(seed: int, cluster: Cluster) -> Random:
    """The seed depends on the jobs so far, so that a restart does not repeat the same jobs."""
    newest = Job.objects.filter(cluster=cluster).order_by("-id").values_list("id", flat=True).first()
    return Random(f"{seed}:{cluster}:{newest}")


def _run_sites(stopped: threading.Event, sites: Sequence[SiteUsers], start_history: Callable[[], object]) -> None:
    """Let the users of each cluster act when it is their time. The history begins when all clusters have nodes, or
    after a minute without one of them."""
    began, has_begun = time.monotonic(), False
    agenda = [(0.0, number) for number in range(len(sites))]
    while agenda:
        at_s, number = heappop(agenda)
        if stopped.wait(max(0.0, began + at_s - time.monotonic())):
            return
        heappush(agenda, (max(at_s, time.monotonic() - began) + sites[number].act(), number))
        known = [site for site in sites if site.load]
        is_late = time.monotonic() - began > MAX_NODES_WAIT_S
        if not has_begun and known and (is_late or len(known) == len(sites)):
            start_history()
            has_begun = True


class SiteUsers:
    """The users of one cluster. `act` does what is due and returns the seconds until the next time."""

    def __init__(self, cluster: Cluster, *, speed: float, longest_s: float, load: float, dice: Random) -> None:
        self.cluster = cluster
        self.load: users.DemoLoad | None = None
        self._size, self._load_share, self._dice = {"speed": speed, "longest_s": longest_s}, load, dice
        self._gaps: Iterator[float] = iter(())
        self._next_checkpoint = self._next_workloads = self._next_long_run = clock.now()

    def act(self) -> float:
        if self.cluster.kind is KUBERNETES and clock.now() >= self._next_workloads:
            self._create_other_workloads()
        if self.load is None:
            return self._begin()
        if not self._is_driven:
            return OBSERVED_CHECK_S
        if clock.now() >= self._next_checkpoint and not Campaign.objects.unfinished().exists():
            users.evaluate(self.cluster, clock.now())
            self._next_checkpoint = clock.now() + timedelta(seconds=users.CHECKPOINT_EVERY_S)
        if clock.now() >= self._next_long_run:
            self._submit(users.missing_long_runs(self.cluster, self.load, self._dice))
            self._next_long_run = clock.now() + timedelta(seconds=LONG_RUN_CHECK_S)
        if Job.objects.waiting().filter(cluster=self.cluster).count() < users.MAX_WAITING_JOBS:
            self._submit([workload.sample_job(self._dice, self.load.short_jobs)])
        return next(self._gaps)

    @property
    def _is_driven(self) -> bool:
        """Whether jobs can be submitted: operators may change the mode at any time."""
        return Cluster.objects.filter(pk=self.cluster.pk, mode=ClusterMode.DRIVE).exists()

    def _begin(self) -> float:
        """Submit the first jobs once the cluster has reported its nodes."""
        self.load = load = users.load_of(self.cluster, **self._size)
        if load is None:
            return NODES_CHECK_S
        self.cluster.refresh_from_db()  # it has reported by now whether it runs containers
        users.set_quotas(self.cluster, load.gpus)
        self._gaps = workload.interarrival_times_s(self._dice, load.short_jobs, self._load_share)
        if self._is_driven and users.is_mostly_idle(self.cluster, load.gpus):
            self._submit(users.missing_long_runs(self.cluster, load, self._dice))
            self._submit(users.queue_of_an_hour(load, self._dice))
        return next(self._gaps)

    def _create_other_workloads(self) -> None:
        try:
            kalos.create_other_workloads(self.cluster, clock.now())
            self._next_workloads = clock.now() + timedelta(seconds=WORKLOADS_CHECK_S)
        except SimulatorError as error:
            log.warning("The workloads of other teams are incomplete. %s", error)

    def _submit(self, jobs: Iterable[SampledJob]) -> None:
        for job in jobs:
            try:
                users.submit(self.cluster, job, self._dice, clock.now())
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
