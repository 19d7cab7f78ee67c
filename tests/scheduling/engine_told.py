"""Prints what the engine of this process decides: python -m tests.scheduling.engine_told

Every policy over jobs drawn like those of Acme and over a crowd that comes at once, with nodes that break, costs and
quotas; and live turns with borrowers, promises and start estimates. Numbers in full, so that two engines that print the
same are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np

from jobs.lifecycle import Kind
from jobs.traces.trace import made_of
from scheduling.compiled import runs
from scheduling.engine.cluster import Need, NodeView, Picture, QuotaView, RunningJob, WaitingJob
from scheduling.engine.policies import POLICIES, RULES
from scheduling.simulator import acme
from scheduling.simulator.forecast import start_estimates
from scheduling.simulator.run import PER_JOB, Setting, run
from scheduling.simulator.weather import Rates

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def digest(*told):
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def crowd(jobs):
    dice = np.random.default_rng(5)
    columns = {"runtime_s": dice.integers(1, 9_000, jobs), "gpus": dice.choice([1, 1, 2, 4, 8, 12, 16, 40], jobs)}
    kinds = dice.choice(["evaluation", "pretrain", "debug"], jobs).tolist()
    teams = dice.choice(["a", "b"], jobs).tolist()
    return made_of("crowd", submit_s=np.sort(dice.random(jobs) * 9_000), kinds=kinds, pools=teams, **columns)


def replays():
    site = acme.SITES["kalos"]
    drawn, some = acme.drawn(site, "kalos", jobs=800, seed=3), crowd(300)
    quotas = (QuotaView(team="a", kind=Kind.PRETRAIN, gpus=48), QuotaView(team="b", kind=None, gpus=60))
    hard = Setting(nodes=12, preemption_cost="helios", nodes_per_leaf=4, faults=Rates(), checkpoint_s=1800, seed=2)
    for policy in RULES:
        settings = [(drawn, Setting(nodes=site.nodes)), (some, hard), (some, Setting(nodes=96, placement="count"))]
        if policy in ("acme", "easy", "conservative", "fifo-skip"):
            settings.append((some, Setting(nodes=12, quotas=quotas, cpus_per_node=96)))
        for history, setting in settings:
            done = run(history, policy, setting)
            columns = [getattr(done, name).tolist() for name in PER_JOB]
            yield policy, setting.placement, digest(columns, done.events, len(done.outages))


def pictures():
    dice = np.random.default_rng(2)
    frees = dice.choice([0, 0, 0, 1, 2, 8], 60).tolist()
    nodes = [
        NodeView(id=n, name=f"n{n}", gpus=8, free_gpus=tuple(range(free)), free_cpus=99, free_memory_mb=10**6,
                 leaf=f"l{n // 8}", pod=f"p{n // 16}")
        for n, free in enumerate(frees)
    ]  # fmt: skip
    running = [
        RunningJob(id=n, name=f"r{n}", team=f"t{n % 3}", kind=Kind.OTHER, gpus=min(4, 8 - free), priority=0,
                   started_at=NOON, time_limit=timedelta(hours=n % 30 + 1), places={n: min(4, 8 - free)},
                   preemptible=n % 3 == 0)
        for n, free in enumerate(frees) if free < 8
    ]  # fmt: skip
    waiting = [
        WaitingJob(id=100 + n, name=f"j{n}", team=f"t{n % 3}", kind=Kind.OTHER, priority=n % 2, submitted_at=NOON,
                   need=Need(nodes=max(1, gpus // 8), gpus=min(gpus, 8), cpus=4), preemptible=n % 4 == 0,
                   time_limit=timedelta(minutes=int(dice.integers(5, 3000))))
        for n, gpus in enumerate(dice.choice([1, 1, 2, 4, 8, 64], 200).tolist())
    ]  # fmt: skip
    whole = Picture(now=NOON, nodes=tuple(nodes), waiting=tuple(waiting), running=tuple(running))
    yield whole
    yield dataclasses.replace(whole, quotas=(QuotaView(team="t1", kind=None, gpus=30),))


def turns():
    for number, picture in enumerate(pictures()):
        for policy, decide in POLICIES.items():
            yield policy, number, digest(decide(picture), start_estimates(picture, RULES[policy], draws=2))


if __name__ == "__main__":
    for row in (*replays(), *turns()):
        print(*row)
    print("engine:", runs())
