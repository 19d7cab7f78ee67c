"""Divides the samples of a simulated campaign among its trials, as the coordinator would have done. Pure.

The simulation decides when trials run and how they end. Here the benchmarks are cut into shards that fill these times:
the longest benchmark first. What a failed trial had in work goes to the next trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from random import Random

from jobs.core.lifecycle import JobKind
from scheduling.simulation.drill.checkpoint_campaigns import (
    READY_S,
    CheckpointCampaign,
    answering_s,
    benchmark_cost_s,
    samples_by_benchmark,
)
from scheduling.simulation.drill.history import CANCELLED
from scheduling.simulation.drill.job_logs import START_S
from scheduling.simulation.drill.jobs import AttemptLife, DrillJob
from scheduling.simulation.machines.scripts.evaluation_jobs import dataset_cost
from scheduling.simulation.machines.scripts.training_runs import ModelShape

LONGEST_SHARD_S = 900.0
SHARD_SPREAD = 0.1
MIN_ANSWERED_SHARE = 0.9  # a campaign whose trials answered less is left out
TRIALS_PER_SCORING = 4  # whose shards one CPU job scores
SCORING_DELAY_S, SCORING_START_S = 3.0, 2.5


@dataclass(frozen=True, kw_only=True)
class SampleRange:
    dataset: str
    start: int
    samples: int
    losses: int = 0  # trials that ended before they had answered it


@dataclass(frozen=True, kw_only=True)
class AnsweredShard:
    """Some samples of a benchmark, and the jobs that answered and scored them. Times count from the start of a job."""

    range: SampleRange
    trial: DrillJob
    infer_s: float
    inferred_at_s: float
    scoring: DrillJob | None = None
    score_s: float = 0.0
    scored_at_s: float = 0.0


def answered_shards(campaign: CheckpointCampaign, shape: ModelShape) -> list[AnsweredShard]:
    """The shards in the order of their answers; none if the trials did not answer nearly all samples."""
    trials = sorted(filter(answering_s, campaign.trials), key=lambda trial: trial.lives[-1].promised)
    samples = samples_by_benchmark()
    rates = {name: benchmark_cost_s(name, count, shape, campaign.gpus) / count for name, count in samples.items()}
    work_s = sum(rates[name] * count for name, count in samples.items())
    pace = sum(map(answering_s, trials)) / work_s
    good = [number for number, trial in enumerate(trials) if not has_failed(trial)]
    if pace < MIN_ANSWERED_SHARE or not good:
        return []
    longest_first = sorted(samples, key=lambda name: -rates[name] * samples[name])
    queue = deque(SampleRange(dataset=name, start=0, samples=samples[name]) for name in longest_first)
    shards: list[AnsweredShard] = []
    for number, trial in enumerate(trials[: good[-1] + 1]):
        taken = _take(queue, work_s if number == good[-1] else answering_s(trial) / pace, rates)
        if has_failed(trial) and taken:
            lost = taken.pop()
            queue.appendleft(replace(lost, losses=lost.losses + 1))
        shards += _answers_of_trial(trial, taken, rates)
    return shards


def has_failed(trial: DrillJob) -> bool:
    return trial.lives[-1].cause not in ("", CANCELLED)


def _take(queue: deque[SampleRange], wanted_s: float, rates: Mapping[str, float]) -> list[SampleRange]:
    """Take as many samples from the queue as are answered in so many seconds."""
    taken: list[SampleRange] = []
    while queue:
        first = queue.popleft()
        count = min(first.samples, int(max(0.0, min(wanted_s, LONGEST_SHARD_S)) / rates[first.dataset]))
        if first.losses and count:
            count = first.samples  # a shard keeps its samples when it is retried
        if not count:
            queue.appendleft(first)
            break
        taken.append(replace(first, samples=count))
        if count < first.samples:
            queue.appendleft(replace(first, start=first.start + count, samples=first.samples - count))
        wanted_s -= count * rates[first.dataset]
    return taken


def _answers_of_trial(
    trial: DrillJob, taken: Sequence[SampleRange], rates: Mapping[str, float]
) -> Iterator[AnsweredShard]:
    """Spread the time of a trial over its ranges, in proportion to their work."""
    dice, life = Random(f"shards:{trial.name}"), trial.lives[-1]
    weights = [part.samples * rates[part.dataset] * dice.lognormvariate(0, SHARD_SPREAD) for part in taken]
    assert life.first_step is not None  # or it answered nothing
    at_s = life.first_step - life.promised - START_S + READY_S
    used_s = min(answering_s(trial), 1.2 * sum(weights)) if has_failed(trial) else answering_s(trial)
    for part, weight in zip(taken, weights, strict=True):
        took_s = used_s * weight / sum(weights)
        at_s += took_s
        yield AnsweredShard(range=part, trial=trial, infer_s=took_s, inferred_at_s=at_s)


def scored_shards(answers: Iterable[AnsweredShard], first_number: int) -> list[AnsweredShard]:
    """The shards with the CPU jobs that score them: one job for the shards of a few trials."""
    by_trial = [list(group) for _, group in groupby(answers, key=lambda shard: shard.trial.name)]
    by_trial.sort(key=lambda group: group[0].trial.lives[-1].ended or 0.0)
    scored: list[AnsweredShard] = []
    for number, first in zip(count(first_number), range(0, len(by_trial), TRIALS_PER_SCORING), strict=False):
        batch = by_trial[first : first + TRIALS_PER_SCORING]
        scored += _scored_batch([shard for group in batch for shard in group], number)
    return scored


def _scored_batch(shards: Sequence[AnsweredShard], number: int) -> Iterator[AnsweredShard]:
    trial, dice = shards[-1].trial, Random(f"scores:{number}")
    ended = trial.lives[-1].ended
    assert ended is not None  # its shards are answered
    costs_s = [
        dataset_cost(part.dataset, part.samples).score * dice.lognormvariate(0, SHARD_SPREAD)
        for part in (shard.range for shard in shards)
    ]
    promised = ended + SCORING_DELAY_S
    node, end = trial.lives[-1].nodes[0], promised + START_S + SCORING_START_S + sum(costs_s)
    life = AttemptLife(
        promised=promised, base=0, number=number, nodes=(node,), places=((node, 0),), first_step=promised + START_S,
        ended=end, keeps_work=True,
    )  # fmt: skip
    scoring = DrillJob(
        name=f"score-{number}", team=trial.team, kind=JobKind.EVALUATION, gpus=0, submitted=promised - 1.0,
        need_s=end - promised, group=trial.group, number=number, over=True, lives=[life],
    )  # fmt: skip
    at_s = SCORING_START_S
    for shard, cost_s in zip(shards, costs_s, strict=True):
        at_s += cost_s
        yield replace(shard, scoring=scoring, score_s=cost_s, scored_at_s=at_s)
