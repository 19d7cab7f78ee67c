"""Charts and table of a run's scores over steps, for the page of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.template.defaultfilters import floatformat

from scheduling.evaluation.reads.score_history import DatasetHistory, score_history
from scheduling.evaluation.rules.checkpoint_paths import checkpoint_place
from scheduling.evaluation.rules.regressions import MIN_ERRORS, Regression, Score, standard_error
from scheduling.evaluation.rules.score_chart import ChartDot, ChartScore, ScoreChart, score_chart
from scheduling.models import Campaign

MAX_CHARTS = 24
MAX_STEPS_SHOWN = 40
MAX_RUNS = 4


@dataclass(frozen=True, kw_only=True)
class ScoreText:
    """A cell of the table, and the tooltip of a dot. `drop` is empty unless the score is a regression."""

    step: int
    score: str
    error: str
    drop: str
    campaign: str

    @property
    def title(self) -> str:
        error = f" ± {self.error}" if self.error else ""
        return f"Step {self.step:,}: {self.score}{error}. {self.drop}".strip()


@dataclass(frozen=True, kw_only=True)
class DatasetScores:
    """A dataset with its chart and its row of the table."""

    dataset: str
    metric: str
    has_error: bool
    cells: list[ScoreText | None]
    texts: list[ScoreText]
    chart: ScoreChart
    regressions: int

    @property
    def first(self) -> ScoreText:
        return self.texts[0]

    @property
    def newest(self) -> ScoreText:
        return self.texts[-1]

    @property
    def dots(self) -> list[tuple[ChartDot, ScoreText]]:
        return list(zip(self.chart.dots, self.texts, strict=True))

    @property
    def label(self) -> str:
        drops = " ".join(text.drop for text in self.texts if text.drop)
        low, high = (
            f"{self.first.score} at step {self.first.step:,}",
            f"{self.newest.score} at step {self.newest.step:,}",
        )
        return f"{self.dataset}, {self.metric}: from {low} to {high}. {drops}".strip()


@dataclass(frozen=True, kw_only=True)
class RunScores:
    """The scores of one run, with the datasets that have regressions first."""

    run: str
    steps: list[int]
    datasets: list[DatasetScores]

    @property
    def charts(self) -> list[DatasetScores]:
        return self.datasets[:MAX_CHARTS]

    @property
    def regressions(self) -> int:
        return sum(dataset.regressions for dataset in self.datasets)


def campaign_scores(campaign: Campaign) -> list[RunScores]:
    """The scores of the runs whose checkpoints the campaign evaluates: those with results at several steps."""
    runs = list(dict.fromkeys(checkpoint_place(path).run for path in campaign.checkpoints))[:MAX_RUNS]
    found = [run_scores(run, score_history(campaign.suite, campaign.team_id, run)) for run in runs]
    return [scores for scores in found if len(scores.steps) > 1]


def run_scores(run: str, histories: Sequence[DatasetHistory]) -> RunScores:
    every = sorted({score.step for history in histories for score in history.scores})
    steps = every[-MAX_STEPS_SHOWN:]
    datasets = [_dataset_scores(history, steps) for history in histories]
    shown = [dataset for dataset in datasets if dataset is not None]
    return RunScores(run=run, steps=steps, datasets=sorted(shown, key=lambda dataset: not dataset.regressions))


def _dataset_scores(history: DatasetHistory, steps: Sequence[int]) -> DatasetScores | None:
    scores = [score for score in history.scores if score.step >= steps[0]]
    if not scores:
        return None
    texts = {score.step: _score_text(score, history) for score in scores}
    dots = [
        ChartScore(
            step=score.step, value=score.value, margin=_margin(score, history),
            is_regression=score.step in history.regressions,
        )
        for score in scores
    ]  # fmt: skip
    return DatasetScores(
        dataset=history.dataset,
        metric=history.metric,
        has_error=history.scale is not None,
        cells=[texts.get(step) for step in steps],
        texts=list(texts.values()),
        chart=score_chart(dots),
        regressions=sum(bool(text.drop) for text in texts.values()),
    )


def _margin(score: Score, history: DatasetHistory) -> float:
    return MIN_ERRORS * standard_error(score, history.scale) if history.scale else 0.0


def _score_text(score: Score, history: DatasetHistory) -> ScoreText:
    regression = history.regressions.get(score.step)
    return ScoreText(
        step=score.step,
        score=score_number(score.value),
        error=score_number(_margin(score, history)) if history.scale else "",
        drop=regression_text(regression) if regression else "",
        campaign=history.campaigns[score.step],
    )


def regression_text(found: Regression) -> str:
    drop, margin = score_number(found.drop), score_number(found.margin)
    return f"Down {drop} since step {found.since_step:,}; sampling explains at most {margin}."


def score_number(value: float) -> str:
    return floatformat(value, "4" if abs(value) <= 1 else "2")
