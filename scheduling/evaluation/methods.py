"""Ways to run one checkpoint over many datasets: what is done today, what others do, and each of our techniques.

| method | trials | model from | metrics |
|---|---|---|---|
| baseline | one for each dataset, in the order of the suite | storage | on the GPU |
| size | OpenCompass' size partitioner: split above a cap, merged below it | storage | on the GPU |
| num_worker | OpenCompass' worker partitioner: every dataset dealt out to all GPUs | storage | on the GPU |
| staging | as the baseline | the node's memory | on the GPU |
| metrics_off_gpu | as the baseline | storage | CPU jobs |
| priors | one for each GPU, slices by predicted run time (`line`) | storage | on the GPU |
| acme | as priors | the node's memory | CPU jobs |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.evaluation.line import Slice, Task
from scheduling.evaluation.plan import Pulled
from scheduling.evaluation.play import Outcome, Piece, Play, Source, Trial
from scheduling.evaluation.work import Cost, Dataset, Phases, Site, Style

Part = tuple[int, int]  # a dataset, and how many of its samples


@dataclass(frozen=True, kw_only=True)
class Setting:
    site: Site
    phases: Phases
    datasets: Sequence[Dataset]
    priors: Sequence[Cost]  # what the planner believes of each dataset

    def cost(self, dataset: int, samples: int) -> Cost:
        return self.phases.cost(self.datasets[dataset], samples)

    def piece(self, part: Part) -> Piece:
        dataset, samples = part
        return Piece(name=self.datasets[dataset].name, cost=self.cost(dataset, samples))


class Batches:
    """Trials whose pieces are known beforehand; each goes to the first GPU that is free."""

    def __init__(self, setting: Setting, batches: Sequence[Sequence[Part]]) -> None:
        self._setting = setting
        self._queue = deque(batches)

    def trial(self, node: int) -> Trial | None:
        if not self._queue:
            return None
        pieces = iter([self._setting.piece(part) for part in self._queue.popleft()])
        return Trial(checkpoint=0, more=lambda: next(pieces, None))

    def learn(self, piece: Piece) -> None:
        pass


def pulled(setting: Setting) -> Pulled:
    tasks = [
        Task(checkpoint=0, dataset=number, samples=dataset.samples, prior=prior, measured=False)
        for number, (dataset, prior) in enumerate(zip(setting.datasets, setting.priors, strict=True))
    ]

    def piece(taken: Slice, task: Task) -> Piece:
        name = setting.datasets[task.dataset].name
        return Piece(name=name, cost=setting.cost(task.dataset, taken.samples), handle=taken)

    return Pulled(tasks, setting.site, piece)


def one_each(setting: Setting) -> list[list[Part]]:
    return [[(number, dataset.samples)] for number, dataset in enumerate(setting.datasets)]


SIZE_CAP = 40_000
GENERATED = 20
LONG_ANSWERS = ("bbh", "gsm8k", "math", "strategyqa", "agieval")


def by_size(setting: Setting) -> list[list[Part]]:
    """Largest first; above the cap a dataset is split evenly, below it neighbours share a trial."""
    sized = sorted(((_size(dataset), number) for number, dataset in enumerate(setting.datasets)), reverse=True)
    return [*_split(setting, sized), *_merged(setting, [entry for entry in sized if entry[0] <= SIZE_CAP])]


def _size(dataset: Dataset) -> int:
    factor = GENERATED if dataset.style == Style.GENERATE else dataset.answer
    return dataset.samples * factor * (10 if dataset.name in LONG_ANSWERS else 1)


def _split(setting: Setting, sized: Sequence[tuple[int, int]]) -> Iterator[list[Part]]:
    for size, number in sized:
        if size > SIZE_CAP:
            parts = math.ceil(size / SIZE_CAP)
            yield from ([part] for part in _even(number, setting.datasets[number].samples, parts))


def _merged(setting: Setting, sized: Sequence[tuple[int, int]]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    total = 0
    for size, number in sized:
        if batch and total + size > SIZE_CAP:
            yield batch
            batch, total = [], 0
        batch.append((number, setting.datasets[number].samples))
        total += size
    if batch:
        yield batch


FEWEST = 16


def by_worker(setting: Setting) -> list[list[Part]]:
    """As many trials as GPUs, each with its share of every dataset of at least 16 samples."""
    workers = setting.site.gpus
    buckets: list[list[Part]] = [[] for _ in range(workers)]
    dealt = 0
    for number, dataset in enumerate(setting.datasets):
        for part in _even(number, dataset.samples, min(workers, max(1, dataset.samples // FEWEST))):
            buckets[dealt % workers].append(part)
            dealt += 1
    return [bucket for bucket in buckets if bucket]


def _even(number: int, samples: int, parts: int) -> list[Part]:
    return [(number, samples * (part + 1) // parts - samples * part // parts) for part in range(parts)]


@dataclass(frozen=True, kw_only=True)
class Method:
    source: Callable[[Setting], Source]
    staged: bool = False
    off_gpu: bool = False

    def run(self, setting: Setting, *, chart: bool = False) -> Outcome:
        source = self.source(setting)
        play = Play(setting.site, setting.phases, source, staged=self.staged, off_gpu=self.off_gpu, chart=chart)
        return play.run()


METHODS: dict[str, Method] = {
    "baseline": Method(source=lambda setting: Batches(setting, one_each(setting))),
    "size": Method(source=lambda setting: Batches(setting, by_size(setting))),
    "num_worker": Method(source=lambda setting: Batches(setting, by_worker(setting))),
    "staging": Method(source=lambda setting: Batches(setting, one_each(setting)), staged=True),
    "metrics_off_gpu": Method(source=lambda setting: Batches(setting, one_each(setting)), off_gpu=True),
    "priors": Method(source=pulled),
    "acme": Method(source=pulled, staged=True, off_gpu=True),
}
