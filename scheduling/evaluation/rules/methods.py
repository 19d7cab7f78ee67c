"""Methods to evaluate one checkpoint on many datasets: the baseline, other tools, and each of our techniques.

| method | trials | model from | metrics |
|---|---|---|---|
| baseline | one per dataset, in the order of the suite | storage | on the GPU |
| size | OpenCompass' size partitioner: split above a cap, merged below it | storage | on the GPU |
| num_worker | OpenCompass' worker partitioner: every dataset split over all GPUs | storage | on the GPU |
| staging | like the baseline | the node's memory | on the GPU |
| metrics_off_gpu | like the baseline | storage | CPU jobs |
| priors | one per GPU, slices by predicted run time (`dispatch`) | storage | on the GPU |
| acme | like priors | the node's memory | CPU jobs |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.evaluation.rules.dispatch import DatasetSlice, DatasetTask
from scheduling.evaluation.rules.forecast import WorkQueueSource
from scheduling.evaluation.rules.simulate import (
    EvaluationSimulator,
    SimulatedTrial,
    SimulationOutcome,
    TrialPiece,
    TrialSource,
)
from scheduling.evaluation.rules.work import (
    AnswerStyle,
    BenchmarkDataset,
    EvaluationSite,
    PhaseCosts,
    SliceCost,
)

DatasetPart = tuple[int, int]  # a dataset and the number of its samples


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    site: EvaluationSite
    phases: PhaseCosts
    datasets: Sequence[BenchmarkDataset]
    priors: Sequence[SliceCost]  # the planner's estimate for each dataset

    def cost(self, dataset: int, samples: int) -> SliceCost:
        return self.phases.cost(self.datasets[dataset], samples)

    def piece(self, part: DatasetPart) -> TrialPiece:
        dataset, samples = part
        return TrialPiece(name=self.datasets[dataset].name, cost=self.cost(dataset, samples))


class FixedBatches:
    """Trials with fixed pieces. Each goes to the first free GPU."""

    def __init__(self, setting: StudySetting, batches: Sequence[Sequence[DatasetPart]]) -> None:
        self._setting = setting
        self._queue = deque(batches)

    def trial(self, node: int) -> SimulatedTrial | None:
        if not self._queue:
            return None
        pieces = iter([self._setting.piece(part) for part in self._queue.popleft()])
        return SimulatedTrial(checkpoint=0, more=lambda: next(pieces, None))

    def record_piece(self, piece: TrialPiece) -> None:
        pass


def work_queue_source(setting: StudySetting) -> WorkQueueSource:
    tasks = [
        DatasetTask(checkpoint=0, dataset=number, samples=dataset.samples, prior=prior, is_measured=False)
        for number, (dataset, prior) in enumerate(zip(setting.datasets, setting.priors, strict=True))
    ]

    def slice_piece(taken: DatasetSlice, task: DatasetTask) -> TrialPiece:
        name = setting.datasets[task.dataset].name
        return TrialPiece(name=name, cost=setting.cost(task.dataset, taken.samples), handle=taken)

    return WorkQueueSource(tasks, setting.site, slice_piece)


def one_trial_per_dataset(setting: StudySetting) -> list[list[DatasetPart]]:
    return [[(number, dataset.samples)] for number, dataset in enumerate(setting.datasets)]


SIZE_CAP = 40_000
GENERATION_FACTOR = 20
LONG_ANSWERS = ("bbh", "gsm8k", "math", "strategyqa", "agieval")


def partition_by_size(setting: StudySetting) -> list[list[DatasetPart]]:
    """Return the trials of the size partitioner, the largest first. Datasets above the cap are split evenly; smaller
    ones are merged."""
    sized = sorted(((_dataset_size(dataset), number) for number, dataset in enumerate(setting.datasets)), reverse=True)
    return [*_split_large(setting, sized), *_merge_small(setting, [entry for entry in sized if entry[0] <= SIZE_CAP])]


def _dataset_size(dataset: BenchmarkDataset) -> int:
    factor = GENERATION_FACTOR if dataset.style == AnswerStyle.GENERATE else dataset.answer
    return dataset.samples * factor * (10 if dataset.name in LONG_ANSWERS else 1)


def _split_large(setting: StudySetting, sized: Sequence[tuple[int, int]]) -> Iterator[list[DatasetPart]]:
    for size, number in sized:
        if size > SIZE_CAP:
            parts = math.ceil(size / SIZE_CAP)
            yield from ([part] for part in _even_parts(number, setting.datasets[number].samples, parts))


def _merge_small(setting: StudySetting, sized: Sequence[tuple[int, int]]) -> Iterator[list[DatasetPart]]:
    batch: list[DatasetPart] = []
    total = 0
    for size, number in sized:
        if batch and total + size > SIZE_CAP:
            yield batch
            batch, total = [], 0
        batch.append((number, setting.datasets[number].samples))
        total += size
    if batch:
        yield batch


MIN_PART_SAMPLES = 16


def partition_by_worker(setting: StudySetting) -> list[list[DatasetPart]]:
    """Return one trial per GPU, each with a share of at least 16 samples of the datasets."""
    workers = setting.site.gpus
    buckets: list[list[DatasetPart]] = [[] for _ in range(workers)]
    dealt = 0
    for number, dataset in enumerate(setting.datasets):
        for part in _even_parts(number, dataset.samples, min(workers, max(1, dataset.samples // MIN_PART_SAMPLES))):
            buckets[dealt % workers].append(part)
            dealt += 1
    return [bucket for bucket in buckets if bucket]


def _even_parts(number: int, samples: int, parts: int) -> list[DatasetPart]:
    return [(number, samples * (part + 1) // parts - samples * part // parts) for part in range(parts)]


@dataclass(frozen=True, kw_only=True)
class EvaluationMethod:
    source: Callable[[StudySetting], TrialSource]
    staged: bool = False
    off_gpu: bool = False

    def run(self, setting: StudySetting, *, chart: bool = False) -> SimulationOutcome:
        source = self.source(setting)
        play = EvaluationSimulator(
            setting.site, setting.phases, source, staged=self.staged, off_gpu=self.off_gpu, chart=chart
        )
        return play.run()


METHODS: dict[str, EvaluationMethod] = {
    "baseline": EvaluationMethod(source=lambda setting: FixedBatches(setting, one_trial_per_dataset(setting))),
    "size": EvaluationMethod(source=lambda setting: FixedBatches(setting, partition_by_size(setting))),
    "num_worker": EvaluationMethod(source=lambda setting: FixedBatches(setting, partition_by_worker(setting))),
    "staging": EvaluationMethod(
        source=lambda setting: FixedBatches(setting, one_trial_per_dataset(setting)), staged=True
    ),
    "metrics_off_gpu": EvaluationMethod(
        source=lambda setting: FixedBatches(setting, one_trial_per_dataset(setting)), off_gpu=True
    ),
    "priors": EvaluationMethod(source=work_queue_source),
    "acme": EvaluationMethod(source=work_queue_source, staged=True, off_gpu=True),
}
