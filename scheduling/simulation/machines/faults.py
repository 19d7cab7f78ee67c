"""What fails in a datacenter, how often, and which jobs it hits. Pure; every draw depends only on seed and number.

A ClusterFault is the truth: it is stored with the cluster, and telemetry and kernel logs show its symptoms as real
machines do. It is reported directly only at the simulator's own `/faults`. A FaultImpact is its effect on one job.

The rate is per node and day. The Llama 3 training run had 419 unexpected interruptions in 54 days on 2,048 nodes ("The
Llama 3 Herd of Models", table 5), which is 0.004; the weights below follow that table where it has a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

DAY_S = 86_400.0
REPAIR_RANGE_S = (600.0, 7200.0)
OUTAGE_RANGE_S = (300.0, 3600.0)
SYMPTOM_DELAY_S = (1.0, 5.0)  # wall time: a device error shows at once at any speed
STORAGE_HIT_RATE = 0.7  # of the running jobs; the others read nothing during the outage
SLOW_GPU_FACTOR = 1.8


class FaultKind(StrEnum):
    DEATH = "death"
    OFF_BUS = "off_bus"
    ECC = "ecc"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    HANG = "hang"
    SLOW = "slow"
    STORAGE = "storage"
    LOSS = "loss"
    NAN = "nan"
    OUT_OF_MEMORY = "out_of_memory"
    NO_WAKE = "no_wake"  # a node that sleeps does not boot


# Faults that are never drawn, but injected on request, have no weight
FAULT_WEIGHTS: Mapping[FaultKind, int] = {
    FaultKind.OFF_BUS: 148,  # "faulty GPU"
    FaultKind.ECC: 91,  # HBM3 and SRAM
    FaultKind.FABRIC: 42,  # switch, cable, NIC
    FaultKind.DEATH: 60,  # host maintenance, power, chassis, CPU, memory
    FaultKind.NVLINK: 24,
    FaultKind.HANG: 7,
    FaultKind.SLOW: 12,
    FaultKind.STORAGE: 3,
    FaultKind.LOSS: 6,
}
GPU_FAULTS = frozenset({FaultKind.OFF_BUS, FaultKind.ECC, FaultKind.NVLINK, FaultKind.SLOW})
JOB_FAULTS = frozenset(
    {FaultKind.HANG, FaultKind.LOSS, FaultKind.NAN, FaultKind.OUT_OF_MEMORY}
)  # these can be injected into one job
PROGRAM_FAULTS = frozenset({FaultKind.NAN, FaultKind.OUT_OF_MEMORY})  # these hit one job, never a node
PERSISTENT_FAULTS = frozenset(
    {FaultKind.OFF_BUS, FaultKind.NVLINK, FaultKind.SLOW, FaultKind.STORAGE, FaultKind.NO_WAKE}
)  # these also hit jobs that start later
# The failure reason of a job that the fault ends (failure_reasons.py)
REASON_OF_FAULT: Mapping[FaultKind, str] = {
    FaultKind.OFF_BUS: "gpu_off_bus",
    FaultKind.ECC: "ecc_error",
    FaultKind.NVLINK: "nvlink_error",
    FaultKind.FABRIC: "network_error",
    FaultKind.STORAGE: "s3_storage_error",
    FaultKind.NAN: "loss_nan",
    FaultKind.OUT_OF_MEMORY: "out_of_memory_error",
}
XID_OF_FAULT: Mapping[FaultKind, int] = {FaultKind.OFF_BUS: 79, FaultKind.ECC: 48, FaultKind.NVLINK: 74}


@dataclass(frozen=True, kw_only=True)
class ClusterFault:
    number: int
    kind: FaultKind
    at: float
    until: float  # end without repair; resuming the node ends the fault at once
    node: str = ""
    gpu: int = -1
    jobs: tuple[int, ...] = ()  # job ids that it hit

    def is_active_at(self, now: float) -> bool:
        return self.at <= now < self.until


@dataclass(frozen=True, kw_only=True)
class FaultImpact:
    """The effect of a fault on a job, from `at` on."""

    kind: FaultKind
    at: float
    until: float
    node: str = ""
    gpu: int = -1


@dataclass(frozen=True, kw_only=True)
class FaultModel:
    """The rate of faults, and the seed that selects their kinds and targets."""

    per_node_day: float = 0.0
    seed: int = 0
    speed: float = 1.0

    def gap(self, number: int, nodes: int) -> float:
        return self._seeded_random(number, "gap").expovariate(self.per_node_day * self.speed * nodes / DAY_S)

    def kind(self, number: int) -> FaultKind:
        return self._seeded_random(number, "kind").choices(list(FAULT_WEIGHTS), weights=list(FAULT_WEIGHTS.values()))[0]

    def victim(self, number: int, names: Sequence[str]) -> str:
        return self._seeded_random(number, "victim").choice(names)

    def gpu(self, number: int, count: int) -> int:
        return self._seeded_random(number, "gpu").randrange(count) if count else -1

    def repair_s(self, number: int) -> float:
        return self._seeded_random(number, "repair").uniform(*REPAIR_RANGE_S) / self.speed

    def fault_duration_s(self, number: int, kind: FaultKind) -> float:
        if kind == FaultKind.STORAGE:
            return self._seeded_random(number, "outage").uniform(*OUTAGE_RANGE_S) / self.speed
        return self.repair_s(number)

    def storage_fault_hits_job(self, number: int, job_id: int) -> bool:
        return self._seeded_random(number, f"reads:{job_id}").random() < STORAGE_HIT_RATE

    def impact_on_job(self, fault: ClusterFault, job_id: int, now: float) -> FaultImpact:
        shows = now + self._seeded_random(fault.number, f"shows:{job_id}").uniform(*SYMPTOM_DELAY_S)
        return FaultImpact(kind=fault.kind, at=shows, until=fault.until, node=fault.node, gpu=fault.gpu)

    def _seeded_random(self, number: int, what: str) -> Random:
        return Random(f"{self.seed}:{number}:{what}")
