"""Draws line charts and bar charts as SVG geometry, with the table and the CSV rows of the same values. Pure.

A template turns a `ChartDrawing` into SVG, inline on a page and as a file. Coordinates are in the units of the viewBox.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.core.number_texts import format_number

CHART_WIDTH = 400.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 22.0, 22.0, 36.0
PLOT_HEIGHT = 160.0
LEGEND_ROW, LEGEND_COLUMNS = 16.0, 2
LABEL_WIDTH, VALUE_WIDTH, RANGE_WIDTH, BAR_HEIGHT, BAR_GAP = 112.0, 44.0, 92.0, 9.0, 9.0
MIN_BAR, MIN_MARKED_BAR = 1.5, 8.0
MAX_LABEL = 15  # characters of a category beside its bars
MAX_X_LABELS = 7
TIME_TICKS = (
    *((1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (36_000.0, "10 h")),
    *((172_800.0, "2 d"), (1_728_000.0, "20 d"), (8_640_000.0, "100 d")),
)
Point = tuple[float, float]
Cell = float | str | None


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A named series of points, in ascending order of x. `style` selects color and dashes; curves of other pages with
    the same meaning have the same style."""

    name: str
    points: Sequence[Point]
    style: int


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Curves over a common x axis. A logarithmic axis of times begins at one second; smaller values are drawn there."""

    title: str
    x_label: str
    y_label: str
    curves: Sequence[Curve]
    log_seconds: bool = False
    y_most: float | None = None  # None: the largest value
    x_labels: Sequence[tuple[float, str]] = ()  # instead of round numbers, as many as fit


@dataclass(frozen=True, kw_only=True)
class BarSeries:
    """One value per category; None where nothing is known. `low` and `high` draw a range around the value."""

    name: str
    values: Sequence[float | None]
    style: int
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Horizontal bars: for each category one bar per series."""

    title: str
    unit: str
    categories: Sequence[str]
    series: Sequence[BarSeries]
    log: bool = False  # for values that span orders of magnitude, at least 1


@dataclass(frozen=True, kw_only=True)
class ColumnChart:
    """Stacked columns over time, with a line of one value per column. As many of the `labels` are drawn as fit."""

    title: str
    y_label: str
    labels: Sequence[str]
    series: Sequence[BarSeries]
    line: Curve | None = None  # x of a point is the number of its column


Chart = LineChart | BarChart | ColumnChart


@dataclass(frozen=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class DrawnCurve:
    name: str
    style: int
    points: str  # of an SVG polyline


@dataclass(frozen=True, kw_only=True)
class DrawnBar:
    style: int
    x: float
    y: float
    y_end: float
    width: float
    text: str
    text_x: float
    mark: float | None  # x of the value within its range


@dataclass(frozen=True, kw_only=True)
class DrawnColumn:
    """A part of a stacked column."""

    style: int
    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True, kw_only=True)
class DrawnLabel:
    text: str
    full_text: str
    y: float


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    name: str
    style: int
    x: float
    y: float

    @property
    def line(self) -> str:
        """The sample of a curve."""
        return f"{self.x:g},{self.y + 4:g} {self.x + 22:g},{self.y + 4:g}"


@dataclass(frozen=True, kw_only=True)
class ChartDrawing:
    """The geometry of a chart."""

    title: str
    height: float
    left: float
    right: float
    bottom: float
    legend: Sequence[LegendEntry]
    x_label: str = ""
    y_label: str = ""
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()
    curves: Sequence[DrawnCurve] = ()
    bars: Sequence[DrawnBar] = ()
    columns: Sequence[DrawnColumn] = ()
    labels: Sequence[DrawnLabel] = ()
    width: float = CHART_WIDTH
    top: float = TOP
    is_empty: bool = False


def draw(chart: Chart) -> ChartDrawing:
    """The geometry of a chart."""
    if isinstance(chart, ColumnChart):
        return _draw_columns(chart)
    return _draw_lines(chart) if isinstance(chart, LineChart) else _draw_bars(chart)


def csv_rows(chart: Chart) -> Iterator[Sequence[Cell]]:
    """The values of a chart in the long format: one row per point or bar."""
    if isinstance(chart, LineChart):
        yield ("series", chart.x_label, chart.y_label)
        for curve in chart.curves:
            yield from ((curve.name, f"{x:g}", f"{y:g}") for x, y in curve.points)
        return
    if isinstance(chart, ColumnChart):
        yield ("series", "column", chart.y_label)
        for series in chart.series:
            pairs = zip(chart.labels, series.values, strict=True)
            yield from ((series.name, label, _csv_number(value)) for label, value in pairs)
        return
    has_range = any(series.low for series in chart.series)
    yield ("series", "category", chart.unit, *(("low", "high") if has_range else ()))
    for series in chart.series:
        for row, category in enumerate(chart.categories):
            limits = [part[row] for part in (series.low, series.high) if part] if has_range else []
            yield (series.name, category, *(_csv_number(value) for value in (series.values[row], *limits)))


def _csv_number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


# --- lines


def _draw_lines(chart: LineChart) -> ChartDrawing:
    legend_height = _legend_height(len(chart.curves))
    xs = [x for curve in chart.curves for x, _ in curve.points]
    most = chart.y_most or _round_up(max((y for curve in chart.curves for _, y in curve.points), default=1.0))
    low, high = _x_limits(xs, chart.log_seconds)
    bottom = TOP + PLOT_HEIGHT

    def across(x: float) -> float:
        part = math.log(max(x, low) / low) / math.log(high / low) if chart.log_seconds else (x - low) / (high - low)
        return round(LEFT + part * (CHART_WIDTH - LEFT - RIGHT), 1)

    def down(y: float) -> float:
        return round(bottom - min(y, most) / most * PLOT_HEIGHT, 1)

    return ChartDrawing(
        title=chart.title,
        height=bottom + BOTTOM + legend_height,
        left=LEFT,
        right=CHART_WIDTH - RIGHT,
        bottom=bottom,
        x_label=chart.x_label,
        y_label=chart.y_label,
        x_ticks=[
            Tick(at=across(x), label=label)
            for x, label in (_thinned(chart.x_labels) or _x_ticks(low, high, chart.log_seconds))
        ],
        y_ticks=[Tick(at=down(y), label=_tick_text(y)) for y in _nice_steps(most)],
        curves=[
            DrawnCurve(
                name=curve.name, style=curve.style, points=_polyline((across(x), down(y)) for x, y in curve.points)
            )
            for curve in chart.curves
        ],
        legend=_legend([(curve.name, curve.style) for curve in chart.curves], bottom + BOTTOM + LEGEND_ROW / 2),
        is_empty=not xs,
    )


def _tick_text(value: float) -> str:
    """A number that fits beside the axis: 150k, 2M."""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if value >= 10 * size or (size == 1_000_000 and value >= size):
            return f"{value / size:g}{letter}"
    return format_number(value)


def _polyline(points: Iterable[Point]) -> str:
    """The points without repetitions: a step of a distribution has many equal values."""
    kept: list[Point] = []
    for point in points:
        if not kept or point != kept[-1]:
            kept.append(point)
    return " ".join(f"{x:g},{y:g}" for x, y in kept)


def _x_limits(xs: Sequence[float], log_seconds: bool) -> tuple[float, float]:
    if log_seconds:
        return 1.0, max(600.0, max(xs, default=0.0))
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    return low, high if high > low else low + 1.0


def _x_ticks(low: float, high: float, log_seconds: bool) -> list[tuple[float, str]]:
    if log_seconds:
        return [(at, label) for at, label in TIME_TICKS if low <= at <= high]
    return [(low + step, format_number(low + step)) for step in _nice_steps(high - low)]


def _nice_steps(most: float) -> list[float]:
    """Four to ten round values from 0 to `most`."""
    step = 10 ** math.floor(math.log10(most / 4)) if most > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    return [number * step for number in range(int(most / step + 1e-9) + 1)]


def _round_up(most: float) -> float:
    """The next round value, so that the largest point is below the upper edge."""
    if most <= 0:
        return 1.0
    steps = _nice_steps(most)
    step = steps[1] - steps[0] if len(steps) > 1 else most
    return math.ceil(most / step - 1e-9) * step


# --- columns


def _draw_columns(chart: ColumnChart) -> ChartDrawing:
    sums = [sum(series.values[row] or 0.0 for series in chart.series) for row in range(len(chart.labels))]
    line = chart.line.points if chart.line else ()
    most = _round_up(max([*sums, *(y for _, y in line)], default=1.0))
    bottom, step = TOP + PLOT_HEIGHT, (CHART_WIDTH - LEFT - RIGHT) / max(1, len(chart.labels))
    entries = [(series.name, series.style) for series in chart.series]
    entries += [(chart.line.name, chart.line.style)] if chart.line else []

    def down(y: float) -> float:
        return round(bottom - y / most * PLOT_HEIGHT, 1)

    return ChartDrawing(
        title=chart.title,
        height=bottom + BOTTOM + _legend_height(len(entries)),
        left=LEFT,
        right=CHART_WIDTH - RIGHT,
        bottom=bottom,
        y_label=chart.y_label,
        x_ticks=[
            Tick(at=round(LEFT + (row + 0.5) * step, 1), label=label)
            for row, label in _thinned(list(enumerate(chart.labels)))
        ],
        y_ticks=[Tick(at=down(y), label=_tick_text(y)) for y in _nice_steps(most)],
        columns=list(_stacked(chart, step, down)),
        curves=[DrawnCurve(name=chart.line.name, style=chart.line.style, points=_steps(line, step, down))]
        if chart.line
        else [],
        legend=_legend(entries, bottom + BOTTOM + LEGEND_ROW / 2),
        is_empty=not any(sums),
    )


def _stacked(chart: ColumnChart, step: float, down: Callable[[float], float]) -> Iterator[DrawnColumn]:
    for row, label in enumerate(chart.labels):
        height = 0.0
        for series in chart.series:
            value = series.values[row] or 0.0
            low, high = down(height), down(height + value)
            height += value
            if value:
                yield DrawnColumn(
                    style=series.style,
                    x=round(LEFT + (row + 0.15) * step, 1),
                    y=high,
                    width=round(0.7 * step, 1),
                    height=round(low - high, 1),
                    text=f"{label}, {series.name}: {format_number(value)}",
                )


def _steps(points: Sequence[Point], step: float, down: Callable[[float], float]) -> str:
    """The line as one horizontal part per column."""
    corners = [(LEFT + (x + side) * step, down(y)) for x, y in points for side in (0, 1)]
    return _polyline((round(x, 1), y) for x, y in corners)


def _thinned(labels: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    """Every second, third … label, so that the texts do not touch."""
    return labels[:: max(1, math.ceil(len(labels) / MAX_X_LABELS))]


# --- bars


def _draw_bars(chart: BarChart) -> ChartDrawing:
    row_height = len(chart.series) * BAR_HEIGHT + BAR_GAP
    bottom = TOP + len(chart.categories) * row_height
    tops = [top for series in chart.series for top in (*series.values, *series.high) if top is not None]
    most = max(tops, default=0.0) or 1.0
    value_width = RANGE_WIDTH if any(series.low for series in chart.series) else VALUE_WIDTH
    room = CHART_WIDTH - LABEL_WIDTH - value_width

    def length(value: float) -> float:
        if chart.log:
            return room * (math.log(max(1.0, value)) + 0.3) / (math.log(max(2.0, most)) + 0.3)
        return room * value / most

    bars = [
        _draw_bar(series, row, TOP + row * row_height + number * BAR_HEIGHT, length)
        for number, series in enumerate(chart.series)
        for row in range(len(chart.categories))
        if series.values[row] is not None
    ]
    return ChartDrawing(
        title=chart.title,
        height=bottom + 8 + _legend_height(len(chart.series)),
        left=LABEL_WIDTH,
        right=CHART_WIDTH - value_width,
        bottom=bottom,
        y_label=chart.unit,
        bars=bars,
        labels=[
            DrawnLabel(text=_cut(name), full_text=name, y=TOP + row * row_height + (row_height - BAR_GAP) / 2 + 4)
            for row, name in enumerate(chart.categories)
        ],
        legend=_legend([(series.name, series.style) for series in chart.series], bottom + 8 + LEGEND_ROW / 2),
        is_empty=not bars,
    )


def _draw_bar(series: BarSeries, row: int, y: float, length: Callable[[float], float]) -> DrawnBar:
    value = series.values[row] or 0.0
    low = (series.low[row] if series.low else 0.0) or 0.0
    high = (series.high[row] if series.high else value) or 0.0
    begin = length(low) if series.low else 0.0
    end = length(high)
    text = (
        f"{format_number(value)} ({format_number(low)}–{format_number(high)})" if series.low else format_number(value)
    )
    return DrawnBar(
        style=series.style,
        x=round(LABEL_WIDTH + begin, 1),
        y=round(y, 1),
        y_end=round(y + BAR_HEIGHT - 1, 1),
        width=round(max(3.0 if series.low else MIN_BAR, end - begin), 1),
        text=text,
        text_x=round(LABEL_WIDTH + max(MIN_BAR, end) + 4, 1),
        mark=round(LABEL_WIDTH + length(value), 1) if series.low and end - begin >= MIN_MARKED_BAR else None,
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"


def _legend_height(entries: int) -> float:
    return LEGEND_ROW * math.ceil(entries / LEGEND_COLUMNS) + 4


def _legend(entries: Sequence[tuple[str, int]], top: float) -> list[LegendEntry]:
    width = (CHART_WIDTH - 8) / LEGEND_COLUMNS
    return [
        LegendEntry(
            name=name,
            style=style,
            x=8 + number % LEGEND_COLUMNS * width,
            y=top + number // LEGEND_COLUMNS * LEGEND_ROW,
        )
        for number, (name, style) in enumerate(entries)
    ]
