"""The people of the demo datacenter: they submit jobs, at the pace and of the kinds of the Acme trace, until stopped.

It keeps nothing: killed and started again, they simply go on. While the queue is long they wait.
"""

from __future__ import annotations

import signal
import threading
from datetime import timedelta
from random import Random
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from jobs.models import Cluster, Job, clock
from scheduling.bundled import demo
from scheduling.models import Campaign
from scheduling.slurmsim import workload


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--speed", type=float, default=20.0, help="an hour of the trace takes 3600/SPEED seconds")
        parser.add_argument("--longest", type=float, default=900.0, help="no job of theirs takes more seconds")
        parser.add_argument("--load", type=float, default=0.9, help="offered work as a share of the GPUs")
        parser.add_argument("--seed", type=int, default=1)

    def handle(self, *, speed: float, longest: float, load: float, seed: int, **_: Any) -> None:
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        cluster = Cluster.objects.get(name=demo.DEMO_CLUSTER)
        while not (place := demo.workload_target(cluster, speed=speed, longest_s=longest)):
            if stopped.wait(0.5):
                return
        demo.set_quotas(cluster, place.gpus)
        # Another start is another day: the dice depend on how much was submitted so far
        dice = Random(f"{seed}:{Job.objects.order_by('-id').values_list('id', flat=True).first()}")
        if demo.is_mostly_idle(cluster, place):
            for wish in demo.initial_jobs(dice, place):
                demo.submit(cluster, wish, dice, clock.now())
        next_checkpoint = clock.now()
        for gap in workload.interarrival_times_s(dice, place, load):
            if stopped.wait(gap):
                return
            if clock.now() >= next_checkpoint and not Campaign.objects.unfinished().exists():
                demo.evaluate(cluster, 1000 * (1 + 2 * Campaign.objects.count()), clock.now())
                next_checkpoint = clock.now() + timedelta(seconds=demo.CHECKPOINT_EVERY_S)
            if Job.objects.waiting().filter(cluster=cluster).count() < demo.MAX_WAITING_JOBS:
                demo.submit(cluster, workload.sample_job(dice, place), dice, clock.now())
