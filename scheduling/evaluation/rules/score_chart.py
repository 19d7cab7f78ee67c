"""Geometry of the chart of a benchmark's scores over steps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 18


@dataclass(frozen=True, kw_only=True)
class ChartScore:
    """A score with its margin of error; the margin is 0 if it is unknown."""

    step: int
    value: float
    margin: float = 0.0
    is_regression: bool = False


@dataclass(frozen=True, kw_only=True)
class ChartDot:
    """A point of the chart in its own units; `top` and `bottom` are the ends of its error bar."""

    x: float
    y: float
    top: float
    bottom: float
    score: ChartScore

    @property
    def triangle(self) -> str:
        """The corners of the mark of a regression, which points down."""
        return f"{self.x - 5:.1f},{self.y - 5:.1f} {self.x + 5:.1f},{self.y - 5:.1f} {self.x:.1f},{self.y + 5:.1f}"


@dataclass(frozen=True, kw_only=True)
class ScoreChart:
    dots: list[ChartDot]
    low: float
    high: float

    @property
    def line(self) -> str:
        return " ".join(f"{dot.x},{dot.y}" for dot in self.dots)


def score_chart(scores: Sequence[ChartScore]) -> ScoreChart:
    """The chart of at least one score. The vertical axis covers the scores with their error bars."""
    low = min(score.value - score.margin for score in scores)
    high = max(score.value + score.margin for score in scores)
    first, last = scores[0].step, scores[-1].step

    def x(step: int) -> float:
        share = (step - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high > low else 0.5
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    dots = [
        ChartDot(
            x=x(score.step), y=y(score.value), top=y(score.value + score.margin), bottom=y(score.value - score.margin),
            score=score,
        )
        for score in scores
    ]  # fmt: skip
    return ScoreChart(dots=dots, low=low, high=high)
