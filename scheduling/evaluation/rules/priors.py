"""Estimates the cost of a dataset from measurements or, before there are any, from a model.

A measurement applies to its dataset on the same GPU model, in proportion to the model size and the number of samples.
The upper third of the newest measurements is used instead of the mean, because a slice that takes longer than planned
delays more than a shorter one gains. The estimate of an unmeasured dataset is corrected by the error of the estimates
of the campaign's other datasets, so an estimate that is wrong by a factor of 20 only affects the first slices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import median

from scheduling.evaluation.rules.work import PhaseCosts, SliceCost, datasets

MAX_MEASUREMENTS = 20
UPPER_QUANTILE = 2 / 3
MIN_CORRECTED_GUESSES = 3  # measured datasets that are needed for a correction of the others
DEFAULT_SAMPLE_S = 0.2  # for an unknown dataset
DEFAULT_SCORE_S = 0.002


@dataclass(frozen=True, kw_only=True)
class DatasetDescription:
    """A dataset in the description of its suite."""

    name: str
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ShardMeasurement:
    """The measured times of one shard. Lists have the newest first."""

    dataset: str
    gpu_model: str
    checkpoint_gb: float
    samples: int
    infer_s: float | None = None
    score_s: float | None = None


@cache
def phases() -> PhaseCosts:
    return PhaseCosts.calibrate()


def expected_costs(
    described_datasets: Iterable[DatasetDescription],
    measurements: Iterable[ShardMeasurement],
    gpu_model: str,
    checkpoint_gb: float,
) -> dict[str, SliceCost]:
    """Return the cost of all samples by dataset name."""
    described = list(described_datasets)
    rates = _measured_rates(measurements, gpu_model, checkpoint_gb)
    guesses = {dataset.name: guess(dataset, checkpoint_gb) for dataset in described}
    off_infer = _guess_correction(
        [
            (rates[dataset.name][0], guesses[dataset.name].infer / dataset.samples)
            for dataset in described
            if dataset.name in rates
        ]
    )
    return {
        dataset.name: _expected_cost(dataset, rates.get(dataset.name, (None, None)), guesses[dataset.name], off_infer)
        for dataset in described
    }


def _expected_cost(
    dataset: DatasetDescription, rates: tuple[float | None, float | None], guessed: SliceCost, off: float
) -> SliceCost:
    infer, score = rates
    return SliceCost(
        prepare=0.0,
        infer=infer * dataset.samples if infer is not None else guessed.infer * off,
        score=score * dataset.samples if score is not None else guessed.score,
    )


def guess(dataset: DatasetDescription, checkpoint_gb: float) -> SliceCost:
    """Estimate the cost without measurements: from the suite, from the table of known datasets, or by a default."""
    table = {dataset.name: dataset for dataset in datasets()}
    size = checkpoint_gb / phases().checkpoint_gb
    if dataset.name in table:
        cost = phases().cost(table[dataset.name], dataset.samples)
        plain = SliceCost(prepare=0.0, infer=cost.gpu_s * size, score=cost.score)
    else:
        infer_s, score_s = dataset.samples * DEFAULT_SAMPLE_S * size, dataset.samples * DEFAULT_SCORE_S
        plain = SliceCost(prepare=0.0, infer=infer_s, score=score_s)
    return SliceCost(
        prepare=0.0,
        infer=plain.infer if dataset.infer_s is None else dataset.infer_s,
        score=plain.score if dataset.score_s is None else dataset.score_s,
    )


def _measured_rates(
    measurements: Iterable[ShardMeasurement], gpu_model: str, checkpoint_gb: float
) -> Mapping[str, tuple[float | None, float | None]]:
    """Return seconds per sample of inference and metric by dataset. The metric depends on neither GPU nor model."""
    infer: dict[str, list[float]] = defaultdict(list)
    score: dict[str, list[float]] = defaultdict(list)
    for measurement in measurements:
        if (
            measurement.infer_s is not None
            and measurement.gpu_model == gpu_model
            and len(infer[measurement.dataset]) < MAX_MEASUREMENTS
        ):
            infer[measurement.dataset].append(
                measurement.infer_s / measurement.samples * checkpoint_gb / measurement.checkpoint_gb
            )
        if measurement.score_s is not None and len(score[measurement.dataset]) < MAX_MEASUREMENTS:
            score[measurement.dataset].append(measurement.score_s / measurement.samples)
    return {name: (_upper_value(infer[name]), _upper_value(score[name])) for name in {*infer, *score}}


def _upper_value(values: list[float]) -> float | None:
    return sorted(values)[int(UPPER_QUANTILE * (len(values) - 1) + 0.5)] if values else None


def _guess_correction(pairs: Iterable[tuple[float | None, float]]) -> float:
    ratios = [measured / guessed for measured, guessed in pairs if measured is not None and guessed > 0]
    return median(ratios) if len(ratios) >= MIN_CORRECTED_GUESSES else 1.0
