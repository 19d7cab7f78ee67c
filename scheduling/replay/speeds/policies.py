"""The policies of the replays with speeds, as docs/zoo.md writes them: `widths pollux`, `rounds las-aware`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduling.engine.widths.afs import PairwiseGains
from scheduling.engine.widths.dorm import EqualParts
from scheduling.engine.widths.earliest_deadline import EarliestDeadline
from scheduling.engine.widths.elasticflow import GuaranteedDeadlines
from scheduling.engine.widths.equal_delays import EqualDelays
from scheduling.engine.widths.equal_time import EqualTime
from scheduling.engine.widths.gandiva import GrowToIdleGpus
from scheduling.engine.widths.most_steps import MostSteps
from scheduling.engine.widths.optimus import MarginalGains
from scheduling.engine.widths.pollux import HarmonicSpeedups
from scheduling.engine.widths.shockwave import FairProgress
from scheduling.engine.widths.sia import GoodputByType
from scheduling.engine.widths.tiresias import TwoQueues
from scheduling.engine.widths.values import WidthPolicy
from scheduling.replay.rounds.allox import AlloX
from scheduling.replay.rounds.finish_time import AwareFinishTimeFairness, FinishTimeFairness
from scheduling.replay.rounds.gandiva import RandomPairs
from scheduling.replay.rounds.least_attained import AwareLeastAttained, LeastAttained, PackedLeastAttained
from scheduling.replay.rounds.max_sum import AwareMaxSum, MaxSum
from scheduling.replay.rounds.values import RoundPolicy
from scheduling.replay.speeds.workload import InvalidWorkload

WIDTHS: dict[str, Callable[[], WidthPolicy]] = {
    policy.name: policy
    for policy in (
        *(TwoQueues, MarginalGains, PairwiseGains, HarmonicSpeedups, GoodputByType, FairProgress, MostSteps),
        *(EqualDelays, EqualTime, GrowToIdleGpus, EqualParts, EarliestDeadline, GuaranteedDeadlines),
    )
}
ROUNDS: dict[str, Callable[[], RoundPolicy]] = {
    policy.name: policy
    for policy in (
        *(LeastAttained, AwareLeastAttained, PackedLeastAttained, FinishTimeFairness, AwareFinishTimeFairness),
        *(MaxSum, AwareMaxSum, AlloX, RandomPairs),
    )
}
SEVERAL_TYPES = {GoodputByType.name}  # policies for widths that decide on GPUs of several types
PAIRED = (PackedLeastAttained.name, RandomPairs.name)  # policies for rounds that put two jobs on the same GPUs
SINGLE_GPU = (AlloX.name,)  # policies for rounds that plan jobs of one GPU
NAMES = (*(f"widths {name}" for name in WIDTHS), *(f"rounds {name}" for name in ROUNDS))


def parse_policies(text: str) -> list[str]:
    """The names without duplicates, in the given order."""
    chosen = list(dict.fromkeys(" ".join(part.split()) for part in text.split(",") if part.strip()))
    if unknown := next((name for name in chosen if name not in NAMES), None):
        raise InvalidWorkload(f"policy: {unknown[:40]!r} is not one of {', '.join(NAMES)}.")
    if not chosen:
        raise InvalidWorkload(f"policy: must be at least one of {', '.join(NAMES)}.")
    return chosen


def widths_of(policies: Sequence[str]) -> list[str]:
    return [name.removeprefix("widths ") for name in policies if name.startswith("widths ")]


def rounds_of(policies: Sequence[str]) -> list[str]:
    return [name.removeprefix("rounds ") for name in policies if name.startswith("rounds ")]
