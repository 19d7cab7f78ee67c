"""Scores of a simulated checkpoint: they rise with training, differ by benchmark and carry the error of the sample.

A benchmark starts at the score of guessing, rises with its own speed and approaches what a model of its size reaches.
The limits are about those published for open models with 7 billion parameters. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import exp, log2, sqrt
from random import Random

from .training_runs import shape_of_name

STEP_PATTERN = re.compile(r"(?:step|iter|global_step|checkpoint)[-_=]?0*(\d{1,9})", re.IGNORECASE)
DEFAULT_STEP = 100_000  # of a checkpoint whose path names none
DOUBLING_GAIN = 0.04  # of the score that twice as many parameters add
CHECKPOINT_SPREAD = 0.004


@dataclass(frozen=True, kw_only=True)
class BenchmarkCurve:
    chance: float
    limit: float  # of a model with 7 billion parameters
    half_steps: int  # steps in which half of the remaining rise happens

    def expected_score(self, step: int, parameters: int) -> float:
        limit = min(0.97, self.limit + DOUBLING_GAIN * log2(parameters / 7e9))
        return self.chance + (max(limit, self.chance) - self.chance) * (1 - exp(-step * 0.693 / self.half_steps))


CURVES = {
    "mmlu": BenchmarkCurve(chance=0.25, limit=0.52, half_steps=90_000),
    "ceval": BenchmarkCurve(chance=0.25, limit=0.54, half_steps=80_000),
    "race_middle": BenchmarkCurve(chance=0.25, limit=0.72, half_steps=60_000),
    "hellaswag": BenchmarkCurve(chance=0.25, limit=0.76, half_steps=25_000),
    "arc_challenge": BenchmarkCurve(chance=0.25, limit=0.47, half_steps=40_000),
    "openbookqa": BenchmarkCurve(chance=0.25, limit=0.44, half_steps=35_000),
    "commonsenseqa": BenchmarkCurve(chance=0.20, limit=0.61, half_steps=50_000),
    "truthfulqa": BenchmarkCurve(chance=0.22, limit=0.36, half_steps=60_000),
    "piqa": BenchmarkCurve(chance=0.50, limit=0.79, half_steps=15_000),
    "boolq": BenchmarkCurve(chance=0.50, limit=0.77, half_steps=35_000),
    "winogrande": BenchmarkCurve(chance=0.50, limit=0.70, half_steps=30_000),
    "triviaqa": BenchmarkCurve(chance=0.0, limit=0.56, half_steps=45_000),
    "bbh": BenchmarkCurve(chance=0.10, limit=0.40, half_steps=70_000),
    "gsm8k": BenchmarkCurve(chance=0.0, limit=0.31, half_steps=110_000),
    "humaneval": BenchmarkCurve(chance=0.0, limit=0.18, half_steps=80_000),
    "mbpp": BenchmarkCurve(chance=0.0, limit=0.24, half_steps=75_000),
}


def benchmark_curve(dataset: str) -> BenchmarkCurve:
    """The curve of a known benchmark; for any other name always the same drawn one."""
    known = CURVES.get(dataset.lower().replace("-", "_"))
    dice = Random(f"curve of {dataset}")
    return known or BenchmarkCurve(
        chance=dice.choice((0.0, 0.25)), limit=dice.uniform(0.35, 0.75), half_steps=dice.randrange(20_000, 100_000)
    )


def draw_score(checkpoint: str, dataset: str, start: int, samples: int) -> float:
    """The score of a checkpoint on some samples. Two draws of the same samples are equal."""
    steps = STEP_PATTERN.findall(checkpoint)
    step = int(steps[-1]) if steps else DEFAULT_STEP
    expected = benchmark_curve(dataset).expected_score(step, shape_of_name(checkpoint).parameters)
    expected += Random(f"{checkpoint}:{dataset}").gauss(0, CHECKPOINT_SPREAD)
    error = sqrt(max(expected * (1 - expected), 1e-4) / max(samples, 1))
    score = expected + Random(f"{checkpoint}:{dataset}:{start}").gauss(0, error)
    return round(min(1.0, max(0.0, score)), 4)
