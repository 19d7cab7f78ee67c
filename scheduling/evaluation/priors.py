"""What a dataset is expected to cost, from what was measured and, before anything was, from arithmetic.

A measurement counts for its dataset on the same type of GPU, in proportion to the size of the model and to the samples.
Of the newest ones the upper third is taken, not the mean: a slice that takes longer than planned holds up more than one
that takes less. Where a dataset has never been seen, its guess is corrected by how far the guesses of the campaign's
other datasets were off: so a prior that is wrong twenty times over is wrong for the first slices only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from scheduling.evaluation.work import Cost, Phases, datasets

NEWEST = 20
UPPER = 2 / 3
ENOUGH = 3  # guesses that were measured, before they say something of the others
SAMPLE_S = 0.2  # of a dataset that nobody knows anything of
SCORE_S = 0.002


@dataclass(frozen=True, kw_only=True)
class Known:
    """A dataset as its suite describes it."""

    name: str
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One shard that was run. The newest come first."""

    dataset: str
    gpu_model: str
    weights_gb: float
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@cache
def phases() -> Phases:
    return Phases.anchored()


def costs(known: Iterable[Known], seen: Iterable[Measured], gpu_model: str, weights_gb: float) -> dict[str, Cost]:
    """By the dataset's name, each for all its samples."""
    found = list(known)
    rates = _rates(seen, gpu_model, weights_gb)
    guesses = {one.name: guess(one, weights_gb) for one in found}
    off_infer = _off(
        [(rates[one.name][0], guesses[one.name].infer / one.samples) for one in found if one.name in rates]
    )
    return {one.name: _cost(one, rates.get(one.name, (None, None)), guesses[one.name], off_infer) for one in found}


def _cost(one: Known, rates: tuple[float | None, float | None], guessed: Cost, off: float) -> Cost:
    infer, score = rates
    return Cost(
        prepare=0.0,
        infer=infer * one.samples if infer is not None else guessed.infer * off,
        score=score * one.samples if score is not None else guessed.score,
    )


def guess(one: Known, weights_gb: float) -> Cost:
    """Before anything was measured: what the suite says, the table of well-known datasets, or next to nothing."""
    table = {dataset.name: dataset for dataset in datasets()}
    size = weights_gb / phases().weights_gb
    if one.name in table:
        cost = phases().cost(table[one.name], one.samples)
        plain = Cost(prepare=0.0, infer=cost.on_gpu * size, score=cost.score)
    else:
        plain = Cost(prepare=0.0, infer=one.samples * SAMPLE_S * size, score=one.samples * SCORE_S)
    return Cost(
        prepare=0.0,
        infer=plain.infer if one.infer_s is None else one.infer_s,
        score=plain.score if one.score_s is None else one.score_s,
    )


def _rates(
    seen: Iterable[Measured], gpu_model: str, weights_gb: float
) -> Mapping[str, tuple[float | None, float | None]]:
    """Seconds a sample, by dataset: of inference and of the metric, which no GPU and no model changes."""
    infer: dict[str, list[float]] = defaultdict(list)
    score: dict[str, list[float]] = defaultdict(list)
    for one in seen:
        if one.infer_s is not None and one.gpu_model == gpu_model and len(infer[one.dataset]) < NEWEST:
            infer[one.dataset].append(one.infer_s / one.samples * weights_gb / one.weights_gb)
        if one.score_s is not None and len(score[one.dataset]) < NEWEST:
            score[one.dataset].append(one.score_s / one.samples)
    return {name: (_upper(infer[name]), _upper(score[name])) for name in {*infer, *score}}


def _upper(values: list[float]) -> float | None:
    return sorted(values)[int(UPPER * (len(values) - 1) + 0.5)] if values else None


def _off(pairs: Iterable[tuple[float | None, float]]) -> float:
    ratios = [seen / guessed for seen, guessed in pairs if seen is not None and guessed > 0]
    return median(ratios) if len(ratios) >= ENOUGH else 1.0
