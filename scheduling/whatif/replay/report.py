"""The results of a replay: one dictionary per run, ready for JSON, and a table with one column per policy. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jobs.traces.trace import EncodedColumn, Floats
from scheduling.whatif.replay.fairness import fairness
from scheduling.whatif.replay.gpu_hours import fragmentation, gpu_hours, held_gpu_seconds
from scheduling.whatif.replay.run import PolicyRun
from scheduling.whatif.replay.usage_over_time import run_curves

JobMask = npt.NDArray[np.bool_]
SIZE_RANGES = ((1, 1), (2, 4), (5, 8), (9, 64), (65, 1 << 30))


def summary(run: PolicyRun, *, wall_s: float, peak_rss_mb: float) -> dict[str, Any]:
    """The results of one run. `queue_s` is all time without GPUs, including between a stop and the next start."""
    trace, ended = run.trace, np.isfinite(run.ended_s)
    jct = run.ended_s - trace.submit_s
    queue = jct - run.held_s
    makespan = float(run.ended_s[ended].max() - trace.submit_s[0]) if ended.any() else 0.0
    hours = gpu_hours(run, makespan)
    whole = run.setting.gpus * makespan
    return {
        "policy": run.policy,
        "jobs": int(ended.sum()),
        "jct_s": _distribution(jct[ended]),
        "queue_s": _distribution(queue[ended]),
        "makespan_s": makespan,
        "utilisation": held_gpu_seconds(run) / whole if whole else 0.0,
        "preemptions": int(run.stops.sum() - run.faults.sum()),
        "wall_s": wall_s,
        "events_per_s": run.events / wall_s if wall_s else 0.0,
        "peak_rss_mb": peak_rss_mb,
        "by_kind": _by_category(trace.kinds, jct, queue, ended),
        "by_size": _by_size(trace.gpus, jct, queue, ended),
        "by_team": _by_category(trace.pools, jct, queue, ended),
        "placement": run.setting.placement,
        "fragmentation": fragmentation(run),
        "gpu_hours": hours,
        "fairness": fairness(run),
        "faults": {"nodes": _outage_count(run, makespan), "jobs": int(run.faults.sum())},
        "prediction_error_s": run.prediction_error_s,
        "deadlines": {"jobs": int(np.isfinite(trace.deadline_s).sum()), "missed": _missed_deadlines(run)},
        "set_aside": {
            "never_ended": int((~ended).sum()),
            "wider_than_the_pool": run.too_wide,
            "without_gpus": run.no_gpus,
            "of_no_pool": run.homeless,
            "bad_rows": trace.bad_count,
        },
        "load": run.setting.load,
        "curves": run_curves(queue[ended], jct[ended], run.course, run.setting.gpus),
        "packing": _packing(run),
    }


def _packing(run: PolicyRun) -> dict[str, Any] | None:
    """How many jobs have a profile and shared GPUs, and the hours by which sharing made jobs longer; None if the policy
    does not pack.
    """
    if run.packed is None:
        return None
    table = run.setting.profiles
    return {
        "profiled_jobs": table.profiled_jobs(run.trace) if table else 0,
        "profiles_are_drawn": bool(table and table.are_drawn),
        "packed_jobs": run.packed.jobs,
        "slowed_h": float(run.packed.slowed_s.sum()) / 3600,
    }


def _missed_deadlines(run: PolicyRun) -> int:
    """Jobs that ended after their deadline or not at all. A job without a deadline has NaN, which nothing exceeds."""
    late = np.isfinite(run.trace.deadline_s) & ~(run.ended_s <= run.trace.deadline_s)
    return int(late.sum())


def _outage_count(run: PolicyRun, makespan_s: float) -> int:
    """Outages while there was work; later ones are drawn but do not count."""
    return sum(outage.at < float(run.trace.submit_s[0]) + makespan_s for outage in run.outages)


def offered_load(run: PolicyRun) -> float:
    """Requested GPU-seconds divided by available ones while jobs arrive. Above 1 the queue grows without bound."""
    trace = run.trace
    span = float(trace.submit_s[-1] - trace.submit_s[0]) if len(trace) else 0.0
    return float((trace.gpus * trace.runtime_s).sum()) / (run.setting.gpus * span) if span else 0.0


def _distribution(values: Floats) -> dict[str, float]:
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def _group_summary(chosen: JobMask, jct: Floats, queue: Floats) -> dict[str, Any]:
    return {"jobs": int(chosen.sum()), "jct_s": _distribution(jct[chosen]), "queue_s": _distribution(queue[chosen])}


def _by_category(words: EncodedColumn, jct: Floats, queue: Floats, ended: JobMask) -> dict[str, Any]:
    present = np.unique(words.codes).tolist()
    return {
        words.words[code] or "unknown": _group_summary((words.codes == code) & ended, jct, queue)
        for code in sorted(present, key=lambda code: words.words[code])
    }


def _by_size(gpus: npt.NDArray[np.int32], jct: Floats, queue: Floats, ended: JobMask) -> dict[str, Any]:
    parts = {}
    for low, high in SIZE_RANGES:
        chosen = (gpus >= low) & (gpus <= high) & ended
        if chosen.any():
            parts[str(low) if low == high else f"{low}-{high}" if high < 1 << 30 else f">{low - 1}"] = _group_summary(
                chosen, jct, queue
            )
    return parts


def table(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A text table with one column per policy."""
    rows = [list(cells) for cells in _table_rows(summaries)]
    first = max(len(row[0]) for row in rows)
    width = max(12, *(len(cell) + 2 for row in rows for cell in row[1:]))
    return "\n".join(row[0].ljust(first) + "".join(cell.rjust(width) for cell in row[1:]) for row in rows)


def _table_rows(summaries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "policy", *(one["policy"] for one in summaries)
    if any(one["load"] != 100 for one in summaries):
        yield "load %", *(f"{one['load']}" for one in summaries)
    yield "jobs", *(f"{one['jobs']:,}" for one in summaries)
    for name, title in (("jct_s", "completion s"), ("queue_s", "queueing s")):
        for key in ("mean", "p50", "p90", "p99", "max"):
            yield f"{title} {key}", *(f"{one[name][key]:,.2f}" for one in summaries)
    for kind in summaries[0]["by_kind"]:
        if len(summaries[0]["by_kind"]) > 1:
            yield f"queueing s mean, {kind}", *(f"{one['by_kind'][kind]['queue_s']['mean']:,.2f}" for one in summaries)
    yield "makespan h", *(f"{one['makespan_s'] / 3600:,.2f}" for one in summaries)
    yield "utilization %", *(f"{one['utilisation'] * 100:.2f}" for one in summaries)
    yield "fragmentation %", *(f"{one['fragmentation'] * 100:.2f}" for one in summaries)
    yield "preemptions", *(f"{one['preemptions']:,}" for one in summaries)
    if any(one["deadlines"]["jobs"] for one in summaries):
        yield "deadlines missed", *(f"{one['deadlines']['missed']:,}" for one in summaries)
    if any(one["faults"]["nodes"] for one in summaries):
        yield "node failures", *(f"{one['faults']['nodes']:,}" for one in summaries)
        yield "interrupted jobs", *(f"{one['faults']['jobs']:,}" for one in summaries)
    yield from _packing_rows([one["packing"] for one in summaries])
    yield from _power_rows([one["power"] for one in summaries if "power" in one])
    for bucket in summaries[0]["gpu_hours"]:
        if any(abs(one["gpu_hours"][bucket]) >= 0.005 for one in summaries):
            yield f"GPU-hours {bucket.replace('_', ' ')}", *(f"{one['gpu_hours'][bucket]:,.2f}" for one in summaries)
    yield "mean slowdown", *(f"{one['fairness']['mean_slowdown']:,.2f}" for one in summaries)
    yield "finish-time ratio", *(f"{one['fairness']['finish_time_ratio_mean']:.2f}" for one in summaries)
    yield "Jain over users", *(f"{one['fairness']['jain']:.3f}" for one in summaries)
    yield "wall s", *(f"{one['wall_s']:.3f}" for one in summaries)
    yield "events/s", *(f"{one['events_per_s']:,.0f}" for one in summaries)
    yield "engine", *(one["engine"] for one in summaries)
    yield "peak RSS MB", *(f"{one['peak_rss_mb']:,.0f}" for one in summaries)


def _packing_rows(figures: Sequence[Mapping[str, Any] | None]) -> Iterator[tuple[str, ...]]:
    """The rows of packing. Policies that do not pack have no figures."""
    if not any(figures):
        return
    drawn = " (drawn)" if any(one and one["profiles_are_drawn"] for one in figures) else ""
    yield f"jobs with a profile{drawn}", *(f"{one['profiled_jobs']:,}" if one else "-" for one in figures)
    yield "jobs that shared GPUs", *(f"{one['packed_jobs']:,}" if one else "-" for one in figures)
    yield "h lost by sharing", *(f"{one['slowed_h']:,.2f}" if one else "-" for one in figures)


def _power_rows(figures: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of power; all runs of a table have the same setting."""
    if not figures:
        return
    yield "MWh", *(f"{one['kwh'] / 1000:,.2f}" for one in figures)
    yield "peak kW", *(f"{one['peak_kw']:,.0f}" for one in figures)
    if figures[0]["budget_kw"]:
        yield "s above the budget", *(f"{one['above_budget_s']:,.0f}" for one in figures)
    if figures[0]["cost"] is not None:
        yield "energy cost", *(f"{one['cost']:,.2f}" for one in figures)
    if "sleep" in figures[0]:
        yield "MWh with sleep", *(f"{one['sleep']['kwh'] / 1000:,.2f}" for one in figures)
        if figures[0]["cost"] is not None:
            yield "energy cost with sleep", *(f"{one['sleep']['cost']:,.2f}" for one in figures)
        yield "node wake-ups", *(f"{one['sleep']['node_wakes']:,}" for one in figures)
        yield "unplanned wake-ups", *(f"{one['sleep']['unplanned_wakes']:,}" for one in figures)
