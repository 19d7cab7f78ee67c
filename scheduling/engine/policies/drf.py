"""Dominant resource fairness (Ghodsi et al., NSDI'11): the account with the smallest dominant share goes first.

The dominant share of an account is the largest of its fractions of all GPUs, CPUs and memory. Differences: whole gangs
start, while the paper starts one task after the other, and a job that does not fit is skipped instead of blocking. CPUs
and memory count only if the cluster reports how much it has.
"""

from __future__ import annotations

from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.engine import Engine, PolicyRules
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.turns.sharing import sharing_turn

HeldResources = tuple[int, int, int]  # thousandths of a GPU, CPUs, MB of memory
NO_RESOURCES: HeldResources = (0, 0, 0)


class DrfRules(PolicyRules):
    """Orders accounts by dominant share, jobs of an account by submission."""

    name = "drf"

    def __init__(self) -> None:
        self._held: dict[object, HeldResources] = {}

    @property
    def queues_by_account(self) -> bool:
        return True

    def turn(self, engine: Engine, now: float) -> None:
        sharing_turn(engine, now)

    def share(self, group: RequestGroup, engine: Engine, now: float) -> float:
        milli, cpus, memory_mb = self._held.get(group.account, NO_RESOURCES)
        all_gpus, all_cpus, all_memory_mb = engine.resources.whole
        beside = max(_fraction_of(cpus, all_cpus), _fraction_of(memory_mb, all_memory_mb))
        return max(_fraction_of(milli, all_gpus * WHOLE_GPU), beside)

    def on_job_start(self, job: EngineJob, now: float) -> None:
        self._change_held(job, 1)

    def on_job_release(self, job: EngineJob, now: float) -> None:
        self._change_held(job, -1)

    def _change_held(self, job: EngineJob, sign: int) -> None:
        need, account = job.group.need, job.group.account
        nodes = need.nodes + bool(need.rest)
        milli, cpus, memory_mb = self._held.get(account, NO_RESOURCES)
        self._held[account] = (
            milli + sign * job.group.charged_milli,
            cpus + sign * nodes * need.cpus,
            memory_mb + sign * nodes * need.memory_mb,
        )


def _fraction_of(held: int, whole: int) -> float:
    return held / whole if whole else 0.0
