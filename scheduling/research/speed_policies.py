"""The policies of the replays with speeds, as docs/zoo.md writes them: `widths pollux`, `rounds las-aware`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from acmeweb.common.errors import InvalidInput
from scheduling.research.rounds.allox import AlloX
from scheduling.research.rounds.finish_time import AwareFinishTimeFairness, FinishTimeFairness
from scheduling.research.rounds.gandiva import RandomPairs
from scheduling.research.rounds.least_attained import AwareLeastAttained, LeastAttained, PackedLeastAttained
from scheduling.research.rounds.max_sum import AwareMaxSum, MaxSum
from scheduling.research.rounds.values import RoundPolicy
from scheduling.research.widths.afs import PairwiseGains
from scheduling.research.widths.dorm import EqualParts
from scheduling.research.widths.earliest_deadline import EarliestDeadline
from scheduling.research.widths.elasticflow import GuaranteedDeadlines
from scheduling.research.widths.equal_delays import EqualDelays
from scheduling.research.widths.gandiva import GrowToIdleGpus
from scheduling.research.widths.most_steps import MostSteps
from scheduling.research.widths.optimus import MarginalGains
from scheduling.research.widths.pollux import HarmonicSpeedups
from scheduling.research.widths.shockwave import FairProgress
from scheduling.research.widths.sia import GoodputByType
from scheduling.research.widths.tiresias import TwoQueues
from scheduling.research.widths.turns import EqualTime
from scheduling.research.widths.values import WidthPolicy

# What they need to know -> policy -> summary
POLICY_GROUPS: Mapping[str, Mapping[type[WidthPolicy] | type[RoundPolicy], str]] = {
    "No speeds": {
        TwoQueues: "two queues by GPU time so far, at the requested widths",
        EqualTime: "equal time for all jobs, at the requested widths",
        GrowToIdleGpus: "equal time for all jobs; once none waits, jobs grow to idle GPUs",
        EqualParts: "equally many GPUs for all jobs, with few changes of widths",
        LeastAttained: "the same part of all GPUs for each job, whatever their type",
    },
    "Speed at the requested width": {
        MostSteps: "as many steps per second as possible",
        MaxSum: "the same, whatever the types of the GPUs",
    },
    "Speed and time left at the requested width": {
        FairProgress: "equal progress, and no job ends much later than the others",
        EqualDelays: "the largest delay by sharing is as small as possible",
        FinishTimeFairness: "the same, whatever the types of the GPUs",
    },
    "Speed by width": {
        HarmonicSpeedups: "the harmonic mean of the jobs' speed-ups is as high as possible",
    },
    "Speed by width, and time left": {
        MarginalGains: "each GPU goes where it saves the most run time",
        PairwiseGains: "each GPU goes where it shortens the mean completion time most, compared in pairs",
    },
    "Deadlines, and speed by width": {
        EarliestDeadline: "the earliest deadline first, on as many GPUs as make it faster",
        GuaranteedDeadlines: "jobs are admitted while all deadlines can be met; each is as narrow as its own permits",
    },
    "Speed by width and GPU type": {
        GoodputByType: "type and width together, for the highest sum of speed-ups, small jobs first",
    },
    "Speed by GPU type at the requested width": {
        AwareLeastAttained: "the smallest share of any job is as large as possible",
        AwareMaxSum: "as many steps per second as possible",
        AwareFinishTimeFairness: "the largest delay by sharing is as small as possible",
        AlloX: "the shortest sum of completion times, for jobs of one GPU",
    },
    "Speed of two jobs on the same GPUs": {
        PackedLeastAttained: "the smallest share of any job is as large as possible; two jobs may share GPUs",
        RandomPairs: "random pairs of jobs share GPUs while there are more jobs than GPUs",
    },
}
WIDTHS: dict[str, type[WidthPolicy]] = {
    policy.name: policy for group in POLICY_GROUPS.values() for policy in group if issubclass(policy, WidthPolicy)
}
ROUNDS: dict[str, type[RoundPolicy]] = {
    policy.name: policy for group in POLICY_GROUPS.values() for policy in group if issubclass(policy, RoundPolicy)
}
SEVERAL_TYPES = {GoodputByType.name}  # policies for widths that decide on GPUs of several types
PAIRED = (PackedLeastAttained.name, RandomPairs.name)  # policies for rounds that put two jobs on the same GPUs
SINGLE_GPU = (AlloX.name,)  # policies for rounds that plan jobs of one GPU
NAMES = (*(f"widths {name}" for name in WIDTHS), *(f"rounds {name}" for name in ROUNDS))


def parse_policies(text: str) -> list[str]:
    """The names without duplicates, in the given order."""
    chosen = list(dict.fromkeys(" ".join(part.split()) for part in text.split(",") if part.strip()))
    if unknown := next((name for name in chosen if name not in NAMES), None):
        raise InvalidInput(f"policy: {unknown[:40]!r} is not one of {', '.join(NAMES)}.")
    if not chosen:
        raise InvalidInput(f"policy: must be at least one of {', '.join(NAMES)}.")
    return chosen


def widths_of(policies: Sequence[str]) -> list[str]:
    return [name.removeprefix("widths ") for name in policies if name.startswith("widths ")]


def rounds_of(policies: Sequence[str]) -> list[str]:
    return [name.removeprefix("rounds ") for name in policies if name.startswith("rounds ")]


def policy_lines() -> Iterator[str]:
    """All policies, with the groups as headings."""
    for group, policies in POLICY_GROUPS.items():
        yield f"{group}:"
        yield from (f"  {full_name(policy):26}{text}" for policy, text in policies.items())


def full_name(policy: type[WidthPolicy] | type[RoundPolicy]) -> str:
    """The name with the replay, as users type it."""
    return f"{'widths' if issubclass(policy, WidthPolicy) else 'rounds'} {policy.name}"
