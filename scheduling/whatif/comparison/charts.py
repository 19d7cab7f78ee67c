"""The charts of compared runs: waits, completion times, queue length, use and power over time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduling.core.charts import Curve, LineChart, Point

RECORD_STYLE = 0  # the runs have the styles from 1 on
TIME_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))
MIN_UNITS = 3  # the largest unit of which the time has more than this


def comparison_charts(
    names: Sequence[str], runs: Sequence[Mapping[str, Any]], styles: Sequence[int]
) -> dict[str, LineChart]:
    """The charts by key. Runs stored without curves, by an older version, are left out."""
    columns = list(zip(names, runs, styles, strict=True))
    drawn = [(name, run["curves"], style) for name, run, style in columns if "curves" in run]
    power = [(name, run["power"]["curve"], style) for name, run, style in columns if run.get("power")]
    if not drawn:
        return {}
    unit, unit_s = _time_unit(max((at for _, curves, _ in drawn for at in curves["usage"]["at_s"]), default=0.0))
    charts = {
        "waits": _distribution_chart("Queue wait", "queue_s", drawn),
        "completion": _distribution_chart("Completion time, from submission to end", "jct_s", drawn),
        "queue": LineChart(
            title="Queue length over time",
            x_label=f"{unit} since the first submission",
            y_label="waiting jobs",
            curves=[_usage_curve(name, curves, style, "waiting", unit_s) for name, curves, style in drawn],
        ),
        "use": LineChart(
            title="GPUs in use over time",
            x_label=f"{unit} since the first submission",
            y_label="% of all GPUs",
            y_most=100.0,
            curves=[_usage_curve(name, curves, style, "held_pct", unit_s) for name, curves, style in drawn],
        ),
    }
    return charts | _power_chart(power, unit, unit_s)


def _power_chart(power: Sequence[tuple[str, Mapping[str, Any], int]], unit: str, unit_s: int) -> dict[str, LineChart]:
    """Only if a run has figures of power."""
    if not power:
        return {}
    curves = [
        Curve(name=name, style=style, points=_steps(curve["at_s"], curve["kw"], unit_s)) for name, curve, style in power
    ]
    x_label = f"{unit} since the first submission"
    return {"power": LineChart(title="Highest power over time", x_label=x_label, y_label="kW", curves=curves)}


def _distribution_chart(title: str, of: str, drawn: Sequence[tuple[str, Mapping[str, Any], int]]) -> LineChart:
    return LineChart(
        title=title,
        x_label="seconds or longer units, logarithmic",
        y_label="% of jobs",
        log_seconds=True,
        y_most=100.0,
        curves=[
            Curve(name=name, style=style, points=[(value, float(share)) for share, value in enumerate(curves[of])])
            for name, curves, style in drawn
        ],
    )


def _time_unit(longest_s: float) -> tuple[str, int]:
    return next((unit for unit in TIME_UNITS if longest_s > MIN_UNITS * unit[1]), TIME_UNITS[-1])


def _usage_curve(name: str, curves: Mapping[str, Any], style: int, of: str, unit_s: int) -> Curve:
    usage = curves["usage"]
    return Curve(name=name, style=style, points=_steps(usage["at_s"], usage[of], unit_s))


def _steps(at_s: Sequence[float], values: Sequence[float], unit_s: int) -> list[Point]:
    """A value holds until the next point."""
    points: list[Point] = []
    for at, value in zip(at_s, values, strict=True):
        if points:
            points.append((at / unit_s, points[-1][1]))
        points.append((at / unit_s, value))
    return points
