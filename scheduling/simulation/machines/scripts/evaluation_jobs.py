"""Simulates a job of an evaluation campaign: it writes the log lines of the real program at realistic times.

Its environment contains the same task as for the real program (`scheduling/evaluation/program.py`). The duration of a
shard does not come from the coordinator's estimate but from the cost model and a random draw by dataset name, so that
estimates can be wrong. A model without a copy on the node is loaded over the network, and a scoring command holds its
GPU meanwhile. Loads do not slow each other. On preemption the job stops like the real program: after the current shard
if that is expected to end soon, otherwise at once. Times are wall times divided by `speed`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from scheduling.evaluation.rules import orders, priors
from scheduling.evaluation.rules.priors import DatasetDescription
from scheduling.evaluation.rules.work import SliceCost

from .benchmark_scores import draw_score

EVALUATION_VARIABLE = "ACME_EVALUATION"
COPY_S = 4.5  # 14 GB over 25 Gb/s
LOAD_S = 1.4  # the same from host memory
REMOVE_S = 0.5
SHARD_SPREAD = 0.15  # spread of a shard's time around the usual time of its dataset
DATASET_SPREAD = 0.3  # spread of a dataset's time around the cost model

TimedLines = tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True)
class TrialOutput:
    """The log lines with their times in seconds since the start, and the time of the end."""

    lines: TimedLines
    ends_s: float


def trial_output(environment: Mapping[str, str], has_gpus: bool, dice: str, speed: float = 1.0) -> TrialOutput | None:
    """The output of a campaign job; None for other jobs."""
    try:
        what = json.loads(environment[EVALUATION_VARIABLE])
        lines = tuple(
            _log_line(what, at / speed, values) for at, values in _order_events(what, has_gpus, Random(dice), speed)
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return TrialOutput(lines=lines, ends_s=lines[-1][0] + 0.3 / speed) if lines else None


def preempted_end_s(environment: Mapping[str, str], moments: Sequence[float], preempted_s: float) -> float | None:
    """When a trial ends that is preempted at `preempted_s`; None for other jobs, and if all shards are done by then.

    `moments` are the times of its lines: first the model is ready, then each shard is done.
    """
    try:
        what = json.loads(environment[EVALUATION_VARIABLE])
        expected = [float(part["expected_s"]) for part in what["parts"]]
        grace_s = float(what["grace_s"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    past = [moment for moment in moments if moment <= preempted_s]
    if not past:
        return preempted_s
    if len(past) > len(expected):
        return None
    remaining_s = expected[len(past) - 1] - (preempted_s - past[-1])
    return moments[len(past)] if remaining_s <= grace_s else preempted_s


def _order_events(
    what: Mapping[str, Any], has_gpus: bool, dice: Random, speed: float
) -> Iterator[tuple[float, dict[str, Any]]]:
    match what["do"]:
        case "stage":
            yield COPY_S * dice.uniform(1.0, 1.6), {"staged": what["to"], "gb": 14.0}
        case "remove":
            yield REMOVE_S, {"removed": what["to"]}
        case "run":
            yield from _shard_events(what, has_gpus, dice, speed)


def _shard_events(
    what: Mapping[str, Any], has_gpus: bool, dice: Random, speed: float
) -> Iterator[tuple[float, dict[str, Any]]]:
    at = _model_ready_s(str(what["model"])) if has_gpus else 0.5
    yield at, {"ready": True}
    for part in what["parts"]:
        scores = bool(part["scores"])
        took = _shard_duration_s(part, has_gpus, scores) * dice.lognormvariate(0, SHARD_SPREAD)
        at += took
        result = _draw_scores(str(what["checkpoint"]), part) if scores else None
        yield at, {"part": part["id"], "code": 0, "took": round(took / speed, 3), "scores": result, "why": ""}


def _model_ready_s(model: str) -> float:
    return priors.phases().start + (LOAD_S if orders.is_copy(model) else COPY_S + LOAD_S)


def _shard_duration_s(part: Mapping[str, Any], has_gpus: bool, scores: bool) -> float:
    cost = dataset_cost(str(part["dataset"]), int(part["samples"]))
    return (cost.gpu_s if has_gpus else 0.0) + (cost.score if scores else 0.0)


def dataset_cost(dataset: str, samples: int) -> SliceCost:
    """The actual cost of a dataset in this simulation; it depends only on the name and the number of samples."""
    factor = Random(f"pace of {dataset}").lognormvariate(0, DATASET_SPREAD)
    return priors.guess(DatasetDescription(name=dataset, samples=samples), priors.phases().checkpoint_gb).times(factor)


def _draw_scores(checkpoint: str, part: Mapping[str, Any]) -> dict[str, float]:
    return {"accuracy": draw_score(checkpoint, str(part["dataset"]), int(part["start"]), int(part["samples"]))}


def _log_line(what: Mapping[str, Any], at: float, values: Mapping[str, Any]) -> tuple[float, str]:
    return at, f"acme:{what['nonce']} {json.dumps({**values, 'at': round(at, 3)})}"
