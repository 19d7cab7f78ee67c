"""What breaks in the machine room, how often, and whom it hits. Pure; every draw is a function of seed and number.

A Trouble is the truth of what happened: kept with the world, shown by telemetry and kernel logs as real machines show
it, and told plainly to nobody but whoever asks the cluster's own list of troubles. A Blow is what it does to one job.

The rate is per node and day. Hosts of the Llama 3 training run had 419 unexpected interruptions in 54 days on 2,048
nodes ("The Llama 3 Herd of Models", table 5), which is 0.004; the mix below follows that table where it has a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

DAY_S = 86_400.0
REPAIR_S = (600.0, 7200.0)
OUTAGE_S = (300.0, 3600.0)
SHOWS_WITHIN_S = (1.0, 5.0)  # wall time: a device error is seen at once, whatever the speed
STORAGE_HITS = 0.7  # of the running jobs; the others read nothing while it lasts
SLOWDOWN = 1.8


class Breakage(StrEnum):
    DEATH = "death"
    OFF_BUS = "off_bus"
    ECC = "ecc"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    HANG = "hang"
    SLOW = "slow"
    STORAGE = "storage"
    LOSS = "loss"


MIX: Mapping[Breakage, int] = {
    Breakage.OFF_BUS: 148,  # "faulty GPU"
    Breakage.ECC: 91,  # HBM3 and SRAM
    Breakage.FABRIC: 42,  # switch, cable, NIC
    Breakage.DEATH: 60,  # host maintenance, power, chassis, CPU, memory
    Breakage.NVLINK: 24,
    Breakage.HANG: 7,
    Breakage.SLOW: 12,
    Breakage.STORAGE: 3,
    Breakage.LOSS: 6,
}
OF_A_GPU = frozenset({Breakage.OFF_BUS, Breakage.ECC, Breakage.NVLINK, Breakage.SLOW})
LASTING = frozenset({Breakage.OFF_BUS, Breakage.NVLINK, Breakage.SLOW, Breakage.STORAGE})  # hits who comes later too
# What a job that it ends has to say for itself (reasons.py)
REASON_OF: Mapping[Breakage, str] = {
    Breakage.OFF_BUS: "gpu_off_bus",
    Breakage.ECC: "ecc_error",
    Breakage.NVLINK: "nvlink_error",
    Breakage.FABRIC: "network_error",
    Breakage.STORAGE: "s3_storage_error",
}
XID_OF: Mapping[Breakage, int] = {Breakage.OFF_BUS: 79, Breakage.ECC: 48, Breakage.NVLINK: 74}


@dataclass(frozen=True, kw_only=True)
class Trouble:
    number: int
    kind: Breakage
    at: float
    until: float  # when it heals by itself; a node that is resumed after a repair heals at once
    node: str = ""
    gpu: int = -1
    jobs: tuple[int, ...] = ()  # whom it hit

    def lasts(self, now: float) -> bool:
        return self.at <= now < self.until

    def touches(self, node: str, gpu: int) -> bool:
        return self.node == node and (self.gpu == gpu or self.gpu < 0)


@dataclass(frozen=True, kw_only=True)
class Blow:
    """What a trouble does to a job, from `at` on."""

    kind: Breakage
    at: float
    until: float
    node: str = ""
    gpu: int = -1


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often, and the seed that picks what and whom."""

    per_node_day: float = 0.0
    seed: int = 0
    speed: float = 1.0

    def gap(self, number: int, nodes: int) -> float:
        return self._dice(number, "gap").expovariate(self.per_node_day * self.speed * nodes / DAY_S)

    def kind(self, number: int) -> Breakage:
        return self._dice(number, "kind").choices(list(MIX), weights=list(MIX.values()))[0]

    def victim(self, number: int, names: Sequence[str]) -> str:
        return self._dice(number, "victim").choice(names)

    def gpu(self, number: int, count: int) -> int:
        return self._dice(number, "gpu").randrange(count) if count else -1

    def repair_s(self, number: int) -> float:
        return self._dice(number, "repair").uniform(*REPAIR_S) / self.speed

    def lasts_s(self, number: int, kind: Breakage) -> float:
        if kind == Breakage.STORAGE:
            return self._dice(number, "outage").uniform(*OUTAGE_S) / self.speed
        return self.repair_s(number)

    def hits_reader(self, number: int, job_id: int) -> bool:
        return self._dice(number, f"reads:{job_id}").random() < STORAGE_HITS

    def blow(self, trouble: Trouble, job_id: int, now: float) -> Blow:
        shows = now + self._dice(trouble.number, f"shows:{job_id}").uniform(*SHOWS_WITHIN_S)
        return Blow(kind=trouble.kind, at=shows, until=trouble.until, node=trouble.node, gpu=trouble.gpu)

    def _dice(self, number: int, what: str) -> Random:
        return Random(f"{self.seed}:{number}:{what}")
