"""Several runs side by side: what `simulator.report` says of each, as rows that a table or a file can show. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from jobs.core.slurm_notation import format_duration

MAX_COMPARED_RUNS = 4
RunSummary = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ComparisonCell:
    value: float | None
    words: str
    share: float  # of the widest in its row, in percent
    best: bool


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    name: str
    unit: str
    cells: tuple[ComparisonCell, ...]


@dataclass(frozen=True, kw_only=True)
class ComparisonSection:
    name: str
    rows: tuple[ComparisonRow, ...]


def sections(runs: Sequence[RunSummary]) -> list[ComparisonSection]:
    """Empty ones are left out: a replay without faults has nothing to say of them."""
    made = [
        ("Queue delay", [*_percentile_rows(runs, "queue_s"), *_kind_rows(runs)]),
        ("Completion time", _percentile_rows(runs, "jct_s")),
        ("Cluster", _cluster_rows(runs)),
        ("GPU-hours", _gpu_hour_rows(runs)),
        ("Fairness", _fairness_rows(runs)),
        ("Faults", _fault_rows(runs)),
    ]
    return [ComparisonSection(name=name, rows=rows) for name, found in made if (rows := tuple(found))]


def _percentile_rows(runs: Sequence[RunSummary], of: str) -> Iterator[ComparisonRow]:
    for name in ("mean", "p50", "p90", "p99"):
        yield comparison_row(name, "s", [run[of][name] for run in runs])


def _kind_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    """In the mean, for each kind of work that any of the runs had; one that has no such job has no figure."""
    names = dict.fromkeys(name for run in runs for name in run["by_kind"])
    if len(names) < 2:
        return
    for name in names:
        found = [run["by_kind"].get(name) for run in runs]
        yield comparison_row(f"mean, {name}", "s", [one and one["queue_s"]["mean"] for one in found])


def _cluster_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    yield comparison_row("utilisation", "%", [100 * run["utilisation"] for run in runs], least=False)
    yield comparison_row("fragmentation", "%", [100 * run["fragmentation"] for run in runs])
    yield comparison_row("makespan", "s", [run["makespan_s"] for run in runs])
    yield comparison_row("preemptions", "", [run["preemptions"] for run in runs])
    yield comparison_row("jobs that ended", "", [run["jobs"] for run in runs], least=None)


def _gpu_hour_rows(runs: Sequence[RunSummary]) -> Iterator[ComparisonRow]:
    for name in runs[0]["gpu_hours"] if runs else ():
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
        yield comparison_row("nodes that broke", "", [run["faults"]["nodes"] for run in runs], least=None)
        yield comparison_row("jobs broken off", "", [run["faults"]["jobs"] for run in runs])


def comparison_row(name: str, unit: str, values: Sequence[float | None], *, least: bool | None = True) -> ComparisonRow:
    """`least`: whether less is better; None where neither is. Nobody is best where all are alike."""
    there = [value for value in values if value is not None]
    most = max(there, default=0)
    most = most if most > 1e-9 else 1  # what is left of a sum that should be nothing is no bar
    best = None if least is None or len(set(there)) < 2 else min(there) if least else max(there)
    return ComparisonRow(
        name=name,
        unit=unit,
        cells=tuple(
            ComparisonCell(
                value=value,
                words=format_figure(value, unit),
                share=0.0 if value is None else max(0.0, 100 * value / most),
                best=best is not None and value == best,
            )
            for value in values
        ),
    )


def format_figure(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    match unit:
        case "s":
            return format_duration(timedelta(seconds=round(value)))
        case "%":
            return f"{value:.1f} %"
        case "ratio":
            return f"{value:.3f}" if value < 10 else f"{value:,.0f}"
        case "h":
            return f"{value:,.0f}"
        case _:
            return f"{value:,}"


def csv_rows(names: Sequence[str], found: Sequence[ComparisonSection]) -> Iterator[list[str]]:
    """For a CSV: bare numbers, with their unit in a column of its own."""
    yield ["section", "figure", "unit", *names]
    for section in found:
        for one in section.rows:
            yield [section.name, one.name, one.unit, *("" if c.value is None else f"{c.value:g}" for c in one.cells)]
