"""Compare several runs: the summaries of `replay.report` as rows for a table or a file. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from jobs.core.slurm_notation import format_duration
from scheduling.whatif.comparison.verdict import SAME_BELOW_PCT, percent_change, percent_text

MAX_COMPARED_RUNS = 4
RunSummary = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ComparisonCell:
    """A value with its text and the length of its bar."""

    value: float | None
    words: str
    share: float  # in percent of the largest value in its row
    best: bool
    change: str = ""  # to the baseline, in percent; empty for the baseline itself
    run: str = ""  # the heading of its column
    trend: str = ""  # better, worse or same; empty if neither direction is better


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One figure for all runs."""

    name: str
    unit: str
    cells: tuple[ComparisonCell, ...]
    least: bool | None = True  # whether less is better; None if neither is


@dataclass(frozen=True, kw_only=True)
class ComparisonSection:
    """Rows under one heading."""

    name: str
    rows: tuple[ComparisonRow, ...]


def sections(
    runs: Sequence[RunSummary], baseline: int | None = None, names: Sequence[str] = ()
) -> list[ComparisonSection]:
    """All sections that have rows. A replay without faults, for example, has no section about them. `baseline`: the
    run to which the others are compared. `names` are the headings of the columns.
    """
    named_rows = [
        ("Queue delay", [*_percentile_rows(runs, "queue_s"), *_kind_rows(runs)]),
        ("Completion time", _percentile_rows(runs, "jct_s")),
        ("Cluster", _cluster_rows(runs)),
        ("Power", _power_rows(runs)),
        ("GPU-hours", _gpu_hour_rows(runs)),
        ("Fairness", _fairness_rows(runs)),
        ("Faults", _fault_rows(runs)),
    ]
    return [
        ComparisonSection(name=name, rows=tuple(_with_names(_with_changes(row, baseline), names) for row in rows))
        for name, section_rows in named_rows
        if (rows := tuple(section_rows))
    ]


def _with_changes(row: ComparisonRow, baseline: int | None) -> ComparisonRow:
    if baseline is None or (usual := row.cells[baseline].value) is None:
        return row
    cells = [
        cell if number == baseline or cell.value is None else _with_change(cell, cell.value, usual, row.least)
        for number, cell in enumerate(row.cells)
    ]
    return replace(row, cells=tuple(cells))


def _with_names(row: ComparisonRow, names: Sequence[str]) -> ComparisonRow:
    if not names:
        return row
    return replace(row, cells=tuple(replace(cell, run=name) for cell, name in zip(row.cells, names, strict=True)))


def _with_change(cell: ComparisonCell, value: float, baseline: float, least: bool | None) -> ComparisonCell:
    change = percent_change(value, baseline)
    if change is not None and abs(change) < SAME_BELOW_PCT:
        return replace(cell, change="0%", trend="same")
    grows = value > baseline
    trend = "" if least is None else "worse" if grows == least else "better"
    return replace(cell, change="" if change is None else percent_text(change), trend=trend)


def _percentile_rows(runs: Sequence[RunSummary], of: str) -> Iterator[ComparisonRow]:
    for name in ("mean", "p50", "p90", "p99", "max"):
        if any(name in run[of] for run in runs):  # stored by an older version without it
            yield comparison_row(name, "s", [run[of].get(name) for run in runs])


def _kind_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    """The mean queue delay per kind of job. A run without jobs of a kind has no value."""
    names = dict.fromkeys(name for run in runs for name in run["by_kind"])
    if len(names) < 2:
        return
    for name in names:
        summaries = [run["by_kind"].get(name) for run in runs]
        yield comparison_row(f"mean, {name}", "s", [summary and summary["queue_s"]["mean"] for summary in summaries])


def _cluster_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    yield comparison_row("utilization", "%", [100 * run["utilisation"] for run in runs], least=False)
    yield comparison_row("fragmentation", "%", [_percent(run["fragmentation"]) for run in runs])
    yield comparison_row("makespan", "s", [run["makespan_s"] for run in runs])
    yield comparison_row("preemptions", "", [run["preemptions"] for run in runs])
    deadlines = [run.get("deadlines", {}) for run in runs]  # missing in runs of older versions
    if any(one.get("jobs") for one in deadlines):
        yield comparison_row("deadlines missed", "", [one.get("missed") for one in deadlines])
    packing = [run.get("packing") or {} for run in runs]
    if any(packing):
        yield comparison_row("jobs that shared GPUs", "", [one.get("packed_jobs") for one in packing], least=None)
        yield comparison_row("time lost by sharing", "h", [one.get("slowed_h") for one in packing], least=None)
    yield comparison_row("finished jobs", "", [run["jobs"] for run in runs], least=None)


def _percent(part: float | None) -> float | None:
    return None if part is None else 100 * part


def _power_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    """Runs without figures of power, such as the record, have no values."""
    power = [run.get("power") or {} for run in runs]
    sleep = [one.get("sleep") or {} for one in power]
    table: list[tuple[str, str, Sequence[Mapping[str, Any]], str, bool | None]] = [
        ("energy", "kWh", power, "kwh", True),
        ("energy cost", "price", power, "cost", True),
        ("peak power", "kW", power, "peak_kw", True),
        ("power budget", "kW", power, "budget_kw", None),
        ("time above the budget", "s", power, "above_budget_s", True),
        ("energy with sleeping nodes", "kWh", sleep, "kwh", True),
        ("energy cost with sleeping nodes", "price", sleep, "cost", True),
        ("node wake-ups", "", sleep, "node_wakes", None),
        ("unplanned wake-ups", "", sleep, "unplanned_wakes", True),
    ]
    for name, unit, figures, key, least in table:
        values = [one.get(key) for one in figures]
        if any(value is not None for value in values):
            yield comparison_row(name, unit, values, least=least)


def _gpu_hour_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    for name in dict.fromkeys(name for run in runs for name in run["gpu_hours"]):
        values = [run["gpu_hours"].get(name) for run in runs]
        if any(value and abs(value) >= 0.005 for value in values):
            yield comparison_row(name.replace("_", " "), "h", values, least=None)


def _fairness_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    yield comparison_row("Jain over users", "ratio", [run["fairness"]["jain"] for run in runs], least=False)
    yield comparison_row("mean slowdown", "ratio", [run["fairness"]["mean_slowdown"] for run in runs])
    yield comparison_row("worst user's slowdown", "ratio", [run["fairness"]["worst_user_slowdown"] for run in runs])
    yield comparison_row("finish-time ratio", "ratio", [run["fairness"]["finish_time_ratio_mean"] for run in runs])


def _fault_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    if any(run["faults"]["nodes"] for run in runs):
        yield comparison_row("node failures", "", [run["faults"]["nodes"] for run in runs], least=None)
        yield comparison_row("interrupted jobs", "", [run["faults"]["jobs"] for run in runs])


def comparison_row(name: str, unit: str, values: Sequence[float | None], *, least: bool | None = True) -> ComparisonRow:
    """A row with its best value marked. `least`: whether less is better; None if neither is. Equal values have
    no best.
    """
    present = [value for value in values if value is not None]
    largest = max(present, default=0)
    largest = largest if largest > 1e-9 else 1  # rounding errors of a sum that should be 0 get no bar
    best = None if least is None or len(set(present)) < 2 else min(present) if least else max(present)
    return ComparisonRow(
        name=name,
        unit=unit,
        least=least,
        cells=tuple(
            ComparisonCell(
                value=value,
                words=format_figure(value, unit),
                share=0.0 if value is None else max(0.0, 100 * value / largest),
                best=best is not None and value == best,
            )
            for value in values
        ),
    )


def format_figure(value: float | None, unit: str) -> str:
    """The value as text with its unit."""
    if value is None:
        return "–"
    match unit:
        case "s":
            return format_duration(timedelta(seconds=round(value)))
        case "%":
            return f"{value:.1f}%"
        case "ratio":
            return f"{value:.3f}" if value < 10 else f"{value:,.0f}"
        case "h":
            return f"{value:,.0f}"
        case "kWh" | "kW":
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:,.1f} {unit}"
        case "price":
            return f"{value:,.2f}"
        case _:
            return f"{value:,}"


def csv_rows(names: Sequence[str], comparison: Sequence[ComparisonSection]) -> Iterator[list[str]]:
    """Rows of a CSV file: bare numbers, with the unit in a separate column."""
    yield ["section", "figure", "unit", *names]
    for section in comparison:
        for row in section.rows:
            yield [
                section.name,
                row.name,
                row.unit,
                *("" if cell.value is None else f"{cell.value:g}" for cell in row.cells),
            ]
