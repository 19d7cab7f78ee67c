"""How a job of an evaluation campaign plays: it says in its log what the real program would, at the times it would.

What it is to do stands in its environment, as for the program (`checks/evaluate.py`). How long a shard takes does not
come from what the coordinator expects but from the cost model and the dice of the dataset's name, so that expectations
can be wrong. A model that is no copy on its node is loaded over the node's link, and a command that scores holds its
GPU meanwhile. What others load slows nobody. Asked to give way it does as the program: after the shard that it is at if
that is expected to end soon, else at once. Times are those of the wall, divided by `speed`. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from scheduling.evaluation import orders, priors
from scheduling.evaluation.priors import DatasetDescription
from scheduling.evaluation.work import SliceCost

EVALUATION_VARIABLE = "ACME_EVALUATION"
COPY_S = 4.5  # 14 GB over 25 Gb/s
LOAD_S = 1.4  # the same from the host's memory
REMOVE_S = 0.5
SHARD_SPREAD = 0.15  # of one shard's time around what its dataset usually takes
DATASET_SPREAD = 0.3  # of a dataset around the cost model

TimedLines = tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True)
class TrialOutput:
    """What it says and when, in seconds since it began, and when it ends."""

    said: TimedLines
    ends_s: float


def trial_output(environment: Mapping[str, str], has_gpus: bool, dice: str, speed: float = 1.0) -> TrialOutput | None:
    """None for a job that is none of a campaign."""
    try:
        what = json.loads(environment[EVALUATION_VARIABLE])
        said = tuple(
            _log_line(what, at / speed, values) for at, values in _order_events(what, has_gpus, Random(dice), speed)
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    return TrialOutput(said=said, ends_s=said[-1][0] + 0.3 / speed) if said else None


def preempted_end_s(environment: Mapping[str, str], moments: Sequence[float], asked_s: float) -> float | None:
    """When a trial ends that is asked at `asked_s` to give way. `moments` are those of its lines: its model is there,
    and each shard is done. None for what is no trial, or through with all it has to do."""
    try:
        what = json.loads(environment[EVALUATION_VARIABLE])
        expected = [float(part["expected_s"]) for part in what["parts"]]
        grace_s = float(what["grace_s"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    over = [moment for moment in moments if moment <= asked_s]
    if not over:
        return asked_s
    if len(over) > len(expected):
        return None
    left_s = expected[len(over) - 1] - (asked_s - over[-1])
    return moments[len(over)] if left_s <= grace_s else asked_s


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
        result = _draw_scores(str(what["model"]), part) if scores else None
        yield at, {"part": part["id"], "code": 0, "took": round(took / speed, 3), "scores": result, "why": ""}


def _model_ready_s(model: str) -> float:
    return priors.phases().start + (LOAD_S if orders.is_copy(model) else COPY_S + LOAD_S)


def _shard_duration_s(part: Mapping[str, Any], has_gpus: bool, scores: bool) -> float:
    cost = dataset_cost(str(part["dataset"]), int(part["samples"]))
    return (cost.gpu_s if has_gpus else 0.0) + (cost.score if scores else 0.0)


def dataset_cost(dataset: str, samples: int) -> SliceCost:
    """What a dataset usually takes here, which only its name tells."""
    odd = Random(f"pace of {dataset}").lognormvariate(0, DATASET_SPREAD)
    return priors.guess(DatasetDescription(name=dataset, samples=samples), priors.phases().weights_gb).times(odd)


def _draw_scores(model: str, part: Mapping[str, Any]) -> dict[str, float]:
    """A checkpoint is somewhat better at everything or somewhat worse; shards of a dataset scatter around it."""
    usual = Random(f"level of {part['dataset']}").uniform(0.25, 0.75)
    better = Random(f"quality of {model}").uniform(-0.08, 0.08)
    near = Random(f"{model}:{part['dataset']}:{part['start']}").gauss(0, 0.01)
    return {"accuracy": round(min(1.0, max(0.0, usual + better + near)), 4)}


def _log_line(what: Mapping[str, Any], at: float, values: Mapping[str, Any]) -> tuple[float, str]:
    return at, f"acme:{what['nonce']} {json.dumps({**values, 'at': round(at, 3)})}"
