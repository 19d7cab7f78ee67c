"""Draws what fails in a drill, when and where, at published rates. Pure and seeded: the same for every strategy.

llama3  419 unexpected interruptions in 54 days of 16,384 GPUs ("The Llama 3 Herd of Models", table 5), scaled per GPU:
        one per day for this gang. The mix follows that table where `machines.faults.FAULT_WEIGHTS` has a row. The
        table does not divide its 54 software bugs, so half are transient errors and half errors in the program.
dense   the same mix at the absolute rate of that run, an interruption of the gang every 3.1 hours, although the gang
        has an eighth of the GPUs
acme    one hardware failure per million GPU-minutes: table 3 of the Acme study (NSDI'24) has 134 of them, and its
        NVLink row (54 failures of 800 GPUs after 868 minutes, 30.25 % of the GPU time of all failures) gives a total of
        124 million GPU-minutes. Mix by the counts of that table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from jobs.core.lifecycle import JobKind
from scheduling.simulation.drill.failure_odds import EVEN_ODDS
from scheduling.simulation.drill.values import DrillFault, DrillPlan, JobFlaw
from scheduling.simulation.machines.failure_reasons import (
    REASONS_BY_NAME,
    FailureFamily,
    draw_reason,
    draw_time_to_failure_s,
)
from scheduling.simulation.machines.faults import FAULT_WEIGHTS, OUTAGE_RANGE_S, REPAIR_RANGE_S, FaultKind

DAY_S = 86_400.0
BUG = "bug"  # an error in the gang's program
TRANSIENT_REASONS = frozenset(
    {"cuda_error", "nccl_timeout_error", "nccl_remote_error"}
)  # reasons that hit a running job
# Faults that persist until they are repaired, and the probability that they do
PERSISTENCE: Mapping[str, float] = {
    FaultKind.OFF_BUS: 1.0,
    FaultKind.NVLINK: 1.0,
    FaultKind.SLOW: 1.0,
    FaultKind.ECC: 0.3,  # rows that could not be replaced
    FaultKind.HANG: 0.5,  # a network card that is stuck
    "nccl_timeout_error": 0.5,
}
RESTARTABLE_REASONS = frozenset(
    {*FaultKind, *TRANSIENT_REASONS, "connection_error", "s3_storage_error", "network_error", "checkpoint_corrupt"}
)
# Share of the jobs of the mix that fail because of an error in their program
FAILURE_SHARE = {
    JobKind.PRETRAIN: 0.35, JobKind.SFT: 0.20, JobKind.MLLM: 0.25,
    JobKind.EVALUATION: 0.07, JobKind.DEBUG: 0.40, JobKind.OTHER: 0.15,
}  # fmt: skip
LLAMA3_PER_NODE_DAY = 419 / 54 / 2048
ACME_PER_NODE_DAY = 134 / 124e6 * 8 * 1440


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    per_node_day: float
    mix: Mapping[str, float]

    def hours_between(self, nodes: int) -> float:
        """Hours between interruptions of a gang of this many nodes."""
        return 24 / (self.per_node_day * nodes)


_LLAMA3 = {**{str(kind): float(weight) for kind, weight in FAULT_WEIGHTS.items()}, "cuda_error": 27.0, BUG: 27.0}
_ACME = {
    str(FaultKind.NVLINK): 54.0, "cuda_error": 21.0, str(FaultKind.DEATH): 16.0, str(FaultKind.ECC): 12.0,
    str(FaultKind.FABRIC): 12.0, str(FaultKind.STORAGE): 10.0, "nccl_timeout_error": 6.0, "nccl_remote_error": 3.0,
}  # fmt: skip
SCENARIOS = {
    "llama3": Scenario(name="llama3", per_node_day=LLAMA3_PER_NODE_DAY, mix=_LLAMA3),
    "dense": Scenario(name="dense", per_node_day=LLAMA3_PER_NODE_DAY * 8, mix=_LLAMA3),
    "acme": Scenario(name="acme", per_node_day=ACME_PER_NODE_DAY, mix=_ACME),
}


def draw_faults(scenario: Scenario, plan: DrillPlan) -> tuple[DrillFault, ...]:
    """Draw all faults, each from its own seed, so that a strategy's actions do not change later faults."""
    faults: list[DrillFault] = []
    at, dice = 0.0, Random(f"{plan.seed}:{scenario.name}:when")
    while True:
        at += dice.expovariate(scenario.per_node_day * plan.nodes / DAY_S)
        if at >= plan.end_s:
            return tuple(faults)
        faults.append(_draw_fault(len(faults), at, scenario, plan))


def _draw_fault(number: int, at: float, scenario: Scenario, plan: DrillPlan) -> DrillFault:
    dice = Random(f"{plan.seed}:{scenario.name}:{number}")
    kind = dice.choices(list(scenario.mix), weights=list(scenario.mix.values()))[0]
    sticks = dice.random() < PERSISTENCE.get(kind, 0.0)
    lasts = dice.uniform(*(OUTAGE_RANGE_S if kind == FaultKind.STORAGE else REPAIR_RANGE_S))
    return DrillFault(
        number=number, at=at, kind=kind, node=dice.randrange(plan.nodes), gpu=dice.randrange(plan.gpus_per_node),
        lasts_s=float("inf") if sticks else lasts, factor=dice.uniform(1.2, 3.0), sticks=sticks,
    )  # fmt: skip


def draw_flaw(
    kind: JobKind, gpus: int, key: str, at_s: float = 0.0, odds: Mapping[str, float] = EVEN_ODDS
) -> JobFlaw | None:
    """The flaw for which a job of the mix fails by itself, or None. The reason is one for failures so late."""
    dice = Random(f"flaw:{key}")
    if dice.random() >= FAILURE_SHARE[kind]:
        return None
    reason = draw_reason(dice, kind, gpus, at_s, odds)
    return JobFlaw(
        reason=reason.name, after_s=draw_time_to_failure_s(dice, reason), passes=reason.name in RESTARTABLE_REASONS
    )


def draw_bug_reason(number: int) -> str:
    """The failure reason of a bug in the gang's program."""
    dice = Random(f"bug:{number}")
    rows = [
        row for row in REASONS_BY_NAME.values() if row.family is not FailureFamily.INFRASTRUCTURE and row.gpus >= 200
    ]
    rows = [row for row in rows if row.name not in {"loss_nan", "checkpoint_corrupt", "argument_error", "syntax_error"}]
    return dice.choices(rows, weights=[row.count for row in rows])[0].name
