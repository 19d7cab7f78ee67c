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

from scheduling.evaluation.work import PhaseCosts, SliceCost, datasets

MAX_MEASUREMENTS = 20
UPPER_QUANTILE = 2 / 3
MIN_CORRECTED_GUESSES = 3  # guesses that were measured, before they say something of the others
DEFAULT_SAMPLE_S = 0.2  # of a dataset that nobody knows anything of
DEFAULT_SCORE_S = 0.002


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """A dataset as its suite describes it."""

    name: str
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ShardMeasurement:
    """One shard that was run. The newest come first."""

    dataset: str
    gpu_model: str
    weights_gb: float
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@cache
def phases() -> PhaseCosts:
    return PhaseCosts.calibrate()


def expected_costs(
    known: Iterable[DatasetDescription], seen: Iterable[ShardMeasurement], gpu_model: str, weights_gb: float
) -> dict[str, SliceCost]:
    """By the dataset's name, each for all its samples."""
    found = list(known)
    rates = _measured_rates(seen, gpu_model, weights_gb)
    guesses = {one.name: guess(one, weights_gb) for one in found}
    off_infer = _guess_correction(
        [(rates[one.name][0], guesses[one.name].infer / one.samples) for one in found if one.name in rates]
    )
    return {
        one.name: _expected_cost(one, rates.get(one.name, (None, None)), guesses[one.name], off_infer) for one in found
    }


def _expected_cost(
    one: DatasetDescription, rates: tuple[float | None, float | None], guessed: SliceCost, off: float
) -> SliceCost:
    infer, score = rates
    return SliceCost(
        prepare=0.0,
        infer=infer * one.samples if infer is not None else guessed.infer * off,
        score=score * one.samples if score is not None else guessed.score,
    )


def guess(one: DatasetDescription, weights_gb: float) -> SliceCost:
    """Before anything was measured: what the suite says, the table of well-known datasets, or next to nothing."""
    table = {dataset.name: dataset for dataset in datasets()}
    size = weights_gb / phases().weights_gb
    if one.name in table:
        cost = phases().cost(table[one.name], one.samples)
        plain = SliceCost(prepare=0.0, infer=cost.gpu_s * size, score=cost.score)
    else:
        plain = SliceCost(prepare=0.0, infer=one.samples * DEFAULT_SAMPLE_S * size, score=one.samples * DEFAULT_SCORE_S)
    return SliceCost(
        prepare=0.0,
        infer=plain.infer if one.infer_s is None else one.infer_s,
        score=plain.score if one.score_s is None else one.score_s,
    )


def _measured_rates(
    seen: Iterable[ShardMeasurement], gpu_model: str, weights_gb: float
) -> Mapping[str, tuple[float | None, float | None]]:
    """Seconds a sample, by dataset: of inference and of the metric, which no GPU and no model changes."""
    infer: dict[str, list[float]] = defaultdict(list)
    score: dict[str, list[float]] = defaultdict(list)
    for one in seen:
        if one.infer_s is not None and one.gpu_model == gpu_model and len(infer[one.dataset]) < MAX_MEASUREMENTS:
            infer[one.dataset].append(one.infer_s / one.samples * weights_gb / one.weights_gb)
        if one.score_s is not None and len(score[one.dataset]) < MAX_MEASUREMENTS:
            score[one.dataset].append(one.score_s / one.samples)
    return {name: (_upper_value(infer[name]), _upper_value(score[name])) for name in {*infer, *score}}


def _upper_value(values: list[float]) -> float | None:
    return sorted(values)[int(UPPER_QUANTILE * (len(values) - 1) + 0.5)] if values else None


def _guess_correction(pairs: Iterable[tuple[float | None, float]]) -> float:
    ratios = [seen / guessed for seen, guessed in pairs if seen is not None and guessed > 0]
    return median(ratios) if len(ratios) >= MIN_CORRECTED_GUESSES else 1.0
