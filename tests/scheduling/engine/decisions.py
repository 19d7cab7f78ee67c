"""Print what the engine of this process decides: python -m tests.scheduling.engine.decisions

Covers every policy over jobs drawn like those of Acme and over jobs that arrive together, with node failures, costs and
quotas; and live turns with borrowers, reservations and start estimates. Numbers are printed in full, so two engines
with equal output are equal.
"""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np

from jobs.core.lifecycle import JobKind
from jobs.traces.trace import trace_from_columns
from scheduling.compiled import engine_mode
from scheduling.engine.cluster import ClusterSnapshot, NodeView, QuotaView, ResourceRequest, RunningJob, WaitingJob
from scheduling.engine.policies import LIVE_POLICIES, POLICY_RULES
from scheduling.whatif.replay import acme_trace
from scheduling.whatif.replay.outages import FaultRates
from scheduling.whatif.replay.policies import REPLAY_POLICIES
from scheduling.whatif.replay.run import JOB_COLUMNS, ReplaySetting, run_policy
from scheduling.whatif.replay.start_estimates import start_estimates

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def digest(*told):
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def crowd(jobs):
    dice = np.random.default_rng(5)
    columns = {"runtime_s": dice.integers(1, 9_000, jobs), "gpus": dice.choice([1, 1, 2, 4, 8, 12, 16, 40], jobs)}
    kinds = dice.choice(["evaluation", "pretrain", "debug"], jobs).tolist()
    teams = dice.choice(["a", "b"], jobs).tolist()
    return trace_from_columns("crowd", submit_s=np.sort(dice.random(jobs) * 9_000), kinds=kinds, pools=teams, **columns)


def replays():
    site = acme_trace.PUBLISHED_CLUSTERS["kalos"]
    drawn, some = acme_trace.draw_trace(site, "kalos", jobs=800, seed=3), crowd(300)
    quotas = (QuotaView(team="a", kind=JobKind.PRETRAIN, gpus=48), QuotaView(team="b", kind=None, gpus=60))
    hard = ReplaySetting(
        nodes=12, preemption_cost="helios", nodes_per_leaf=4, faults=FaultRates(), checkpoint_s=1800, seed=2
    )
    for policy in REPLAY_POLICIES:
        settings = [
            (drawn, ReplaySetting(nodes=site.nodes)),
            (some, hard),
            (some, ReplaySetting(nodes=96, placement="count")),
        ]
        if policy in ("acme", "easy", "conservative", "fifo-skip"):
            settings.append((some, ReplaySetting(nodes=12, quotas=quotas, cpus_per_node=96)))
        for history, setting in settings:
            done = run_policy(history, policy, setting)
            columns = [getattr(done, name).tolist() for name in JOB_COLUMNS]
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
        RunningJob(id=n, name=f"r{n}", team=f"t{n % 3}", kind=JobKind.OTHER, gpus=min(4, 8 - free), priority=0,
                   started_at=NOON, time_limit=timedelta(hours=n % 30 + 1), places={n: min(4, 8 - free)},
                   preemptible=n % 3 == 0)
        for n, free in enumerate(frees) if free < 8
    ]  # fmt: skip
    waiting = [
        WaitingJob(id=100 + n, name=f"j{n}", team=f"t{n % 3}", kind=JobKind.OTHER, priority=n % 2, submitted_at=NOON,
                   need=ResourceRequest(nodes=max(1, gpus // 8), gpus=min(gpus, 8), cpus=4), preemptible=n % 4 == 0,
                   time_limit=timedelta(minutes=int(dice.integers(5, 3000))))
        for n, gpus in enumerate(dice.choice([1, 1, 2, 4, 8, 64], 200).tolist())
    ]  # fmt: skip
    whole = ClusterSnapshot(now=NOON, nodes=tuple(nodes), waiting=tuple(waiting), running=tuple(running))
    yield whole
    yield dataclasses.replace(whole, quotas=(QuotaView(team="t1", kind=None, gpus=30),))


def turns():
    for number, picture in enumerate(pictures()):
        for policy, decide in LIVE_POLICIES.items():
            yield policy, number, digest(decide(picture), start_estimates(picture, POLICY_RULES[policy], draws=2))


if __name__ == "__main__":
    for row in (*replays(), *turns()):
        print(*row)
    print("engine:", engine_mode())
