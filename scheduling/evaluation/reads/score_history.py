"""Scores of one training run over its steps, from all campaigns of a team with one version of a suite."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.evaluation.reads.campaigns import headline_score
from scheduling.evaluation.rules.checkpoint_paths import checkpoint_place
from scheduling.evaluation.rules.regressions import Regression, Score, find_regressions, score_scale
from scheduling.models import CampaignState, Evaluation, Suite

MAX_ROWS = 20_000


@dataclass(frozen=True, kw_only=True)
class DatasetHistory:
    """The scores of a dataset in the order of steps. `scale` is None if the sampling error of the metric is unknown."""

    dataset: str
    metric: str
    scale: float | None
    scores: list[Score]
    campaigns: Mapping[int, str]  # the public id by step
    regressions: Mapping[int, Regression]


def score_history(suite: Suite, team_id: int, run: str) -> list[DatasetHistory]:
    """The history of each dataset with results of the run, in the order of the suite.

    If a checkpoint was evaluated several times, its newest result counts. Scores with another metric than the newest
    cannot be compared with it and are left out.
    """
    rows = Evaluation.objects.filter(
        dataset__suite=suite, campaign__team=team_id, state=CampaignState.COMPLETED, reused=None,
        checkpoint__startswith=run.rstrip("/") + "/",
    )  # fmt: skip
    newest: dict[int, dict[int, tuple[dict[str, Any], str]]] = defaultdict(dict)
    columns = ("checkpoint", "dataset_id", "scores", "campaign__public_id")
    for checkpoint, dataset, scores, campaign in reversed(rows.order_by("-id").values_list(*columns)[:MAX_ROWS]):
        place = checkpoint_place(checkpoint)
        if place.run == run and place.step is not None:
            newest[dataset].pop(place.step, None)
            newest[dataset][place.step] = scores, campaign
    datasets = suite.datasets.values_list("pk", "name", "samples")
    histories = (_history(name, samples, newest[pk]) for pk, name, samples in datasets if newest[pk])
    return [history for history in histories if history.scores]


def _history(name: str, samples: int, results: Mapping[int, tuple[dict[str, Any], str]]) -> DatasetHistory:
    headlines = {step: headline_score(scores) for step, (scores, _) in results.items()}
    metric = next(reversed(headlines.values()))[0]
    scores = [
        Score(step=step, value=value, samples=samples)
        for step, (its_metric, value) in sorted(headlines.items())
        if its_metric == metric and value is not None
    ]
    scale = score_scale(metric, [score.value for score in scores])
    return DatasetHistory(
        dataset=name,
        metric=metric,
        scale=scale,
        scores=scores,
        campaigns={score.step: results[score.step][1] for score in scores},
        regressions=find_regressions(scores, scale),
    )
