"""Random node failures and repairs at given rates, and the cost of a failure. Pure and seeded.

A node runs for an exponentially distributed time, and its repair takes another. Its jobs restart from their last
checkpoint after `restart_s` without progress; kinds of jobs that write no checkpoints restart from zero. Each
checkpoint delays a job by `stall_s`, whether nodes fail or not.

Defaults: 6.5 failures per 1,000 node-days as on Meta's RSC-1 (Kokolis et al., "Revisiting Reliability in Large-Scale
Machine Learning Research Clusters") and a checkpoint every 30 minutes as in the Acme study. Repairs of four hours,
restarts of five minutes and saves of ten seconds are our assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random

from acmeweb.common.errors import InvalidField
from scheduling.engine.job import EngineJob
from scheduling.whatif.replay.kernel import Outage

DAY_S = 86_400.0
CHECKPOINTING_KINDS = frozenset({"pretrain", "sft", "mllm", ""})  # and jobs of unknown kind


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """Rates and durations of faults and checkpoints."""

    per_1000_node_days: float = 6.5
    repair_s: float = 4 * 3600.0
    restart_s: float = 300.0
    checkpoint_s: float = 1800.0  # between two checkpoints
    stall_s: float = 10.0  # duration of a checkpoint

    @staticmethod
    def parse(text: str) -> FaultRates:
        """Parse `rates` (the defaults) or comma-separated `name=number` pairs."""
        if text == "rates":
            return FaultRates()
        names = {rate.name for rate in fields(FaultRates)}
        rates: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in names:
                raise InvalidField(
                    "faults", f"{name!r} is not one of {', '.join(sorted(names))}. Use these names or the word rates"
                )
            rates[name] = _rate_value(name, value)
        return FaultRates(**rates)

    def stalls_s(self, runtime_s: float) -> float:
        """The time a job spends writing checkpoints. The last one, at its end, is not written."""
        return self.stall_s * max(0, -int(-runtime_s // self.checkpoint_s) - 1)


def _rate_value(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        raise InvalidField("faults", f"{name}={value} is not a number") from None
    lowest = 1e-9 if name in ("repair_s", "checkpoint_s") else 0.0
    if not lowest <= number < 1e12:
        raise InvalidField("faults", f"{name}={value} must be {'above' if lowest else 'at least'} 0 and finite")
    return number


class RandomOutages:
    """The outages of one replay."""

    def __init__(self, rates: FaultRates, saves: list[bool], seed: int) -> None:
        self._rates, self._saves, self._seed = rates, saves, seed
        self._dice: dict[int, Random] = {}
        self._overhead: dict[int, float] = {}  # by job: the restart delay of its current run
        self.lost_s = [0.0] * len(saves)

    def outage(self, node: int, since: float) -> Outage:
        dice = self._dice.setdefault(node, Random(f"{self._seed}:{node}"))
        a_day = self._rates.per_1000_node_days / 1000
        at = since + dice.expovariate(a_day / DAY_S) if a_day else float("inf")
        return Outage(at=at, until=at + dice.expovariate(1 / self._rates.repair_s), node=node)

    def failure_cost_s(self, job: EngineJob, now: float) -> float:
        ran, waited = now - job.began, self._overhead.get(job.number, 0.0)
        worked = max(0.0, ran - waited)
        saved = worked - worked % (self._rates.checkpoint_s + self._rates.stall_s) if self._saves[job.number] else 0.0
        self.lost_s[job.number] += worked - saved
        self._overhead[job.number] = self._rates.restart_s
        return self._rates.restart_s + ran - waited - saved
