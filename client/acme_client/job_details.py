"""Formats one job for people: what was requested, when it ran, why it failed, how far it got and its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from acme_client.api import Acme, Refused
from acme_client.request_fields import TEXTS_ON_PAGE
from acme_client.table import TableRow, clean_text, elapsed_time, format_duration, progress_fields

Pairs = Sequence[tuple[str, str]]
MAX_ATTEMPTS = 20
# Attempts that end like this have no diagnosis
HEALTHY_ENDS = frozenset({"COMPLETED", "CANCELLED", "PREEMPTED"})


@dataclass(frozen=True, kw_only=True)
class JobDetails:
    """A job with everything that its block shows."""

    job: TableRow
    url: str = ""
    attempts: Sequence[TableRow] = ()
    diagnosis: TableRow | None = None
    progress: dict[str, str] = field(default_factory=dict)


def fetch_job_details(acme: Acme, path: str) -> JobDetails:
    """Fetch a job, its newest attempts, and the diagnosis and progress if there are any."""
    job = acme.get(path)
    attempts = list(acme.pages(f"{path}attempts/", {"ordering": "-id"}, MAX_ATTEMPTS)) if job["nodelist"] else []
    has_failed = any(attempt["ended_at"] and attempt["state"] not in HEALTHY_ENDS for attempt in attempts)
    return JobDetails(
        job=job,
        url=f"{acme.url}/jobs/{job['id']}/",
        attempts=attempts[::-1],
        diagnosis=_fetch_diagnosis(acme, path) if has_failed else None,
        progress=_fetch_progress(acme, path) if job["started_at"] else {},
    )


def _fetch_diagnosis(acme: Acme, path: str) -> TableRow | None:
    try:
        diagnosis: TableRow = acme.get(f"{path}diagnosis/")
    except Refused as refused:
        if refused.status != 404:
            raise
        return None
    return diagnosis if diagnosis["judged_at"] else None


def _fetch_progress(acme: Acme, path: str) -> dict[str, str]:
    progress = acme.get(f"{path}progress/", {"points": 2})
    return progress_fields(progress, list(acme.pages(f"{path}checkpoints/", {"ordering": "-saved_at"}, 1)))


def format_job(details: JobDetails, now: datetime) -> str:
    job = details.job
    head = [f"{job['id']}  {job['name']}  {job['title']}", *([job["why"]] if job["why"] else [])]
    blocks = ["\n".join(map(clean_text, head))]
    sections: list[tuple[str, Pairs]] = [
        ("Cause", _cause_pairs(details.diagnosis)),
        ("Times", _time_pairs(job, now)),
        ("Progress", list(details.progress.items())),
        ("Request", _request_pairs(job)),
    ]
    blocks += [f"{title}\n{_format_pairs(pairs)}" for title, pairs in sections if pairs]
    if details.attempts:
        lines = (f"  {clean_text(_attempt_line(attempt, now))}" for attempt in details.attempts)
        blocks.append("\n".join(["Attempts", *lines]))
    return "\n\n".join([*blocks, *([details.url] if details.url else [])])


def _format_pairs(pairs: Pairs) -> str:
    width = max(len(name) for name, _ in pairs) + 3
    lines = []
    for name, value in pairs:
        first, *more = value.strip("\n").split("\n")
        lines.append(f"  {f'{name}:'.ljust(width - 1)} {clean_text(first)}")
        lines += [f"  {' ' * width}{clean_text(line)}" for line in more]
    return "\n".join(line.rstrip() for line in lines)


def _request_pairs(job: TableRow) -> Pairs:
    pairs = [
        ("Owner", f"{job['foreign_user'] or job['user']} (team {job['team']})"),
        ("Cluster", job["cluster"]),
        ("Kind", job["kind"]),
        ("Resources", _resources(job)),
        ("Time limit", "unlimited" if job["time_limit"] is None else format_duration(job["time_limit"])),
        ("Priority", str(job["priority"])),
        ("Requeues", f"{job['requeues']} of {job['requeue_limit']}"),
        ("Preemption", job["preemption"] if job["preemptible"] else ""),
        ("Held by", job["hold"]),
        ("Depends on", ", ".join(job["dependencies"])),
        ("Array", f"{job['array_id']}, task {job['array_index']}" if job["array_id"] else ""),
        ("Labels", _assignments(job["labels"])),
        ("Comment", job["comment"]),
        *((field.label, _text(job.get(name))) for name, field in TEXTS_ON_PAGE.items()),
        ("Checkpoints", job["checkpoint_dir"]),
        ("Environment", _assignments(job["environment"])),
        ("Nodes", job["nodelist"]),
        ("Command", job["command"]),
    ]
    return [(name, value) for name, value in pairs if value]


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value or "")


def _assignments(values: TableRow) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _resources(job: TableRow) -> str:
    """`2 nodes, each with 8 GPUs (h100), 96 CPUs, 512 GiB`; `1 node with 8 GPUs`."""
    gpus = f"MIG slice {job['mig_profile']}" if job.get("mig_profile") else _count(job["gpus_per_node"], "GPU")
    gpus += f" ({job['gpu_model']})" if job["gpu_model"] else ""
    memory = f"{job['memory_per_node'] / 1024:.4g} GiB" if job["memory_per_node"] else ""
    parts = [gpus, _count(job["cpus_per_node"], "CPU") if job["cpus_per_node"] else "", memory, job["nic_type"]]
    nodes = "1 node" if job["nodes"] == 1 else f"{job['nodes']} nodes, each"
    return f"{nodes} with {', '.join(filter(None, parts))}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _time_pairs(job: TableRow, now: datetime) -> Pairs:
    pairs = [("Submitted", relative_time(job["submitted_at"], now))]
    if job["begin_at"] and not job["started_at"]:
        pairs.append(("Not before", relative_time(job["begin_at"], now)))
    if job.get("deadline_at"):
        share = job["deadline_probability"]
        likely = f", {likelihood_text(share)}" if share is not None and not job["ended_at"] else ""
        pairs.append(("Deadline", f"{relative_time(job['deadline_at'], now)}{likely}"))
    if job["started_at"]:
        pairs.append(("Started", relative_time(job["started_at"], now)))
    if job["ended_at"]:
        pairs.append(("Ended", relative_time(job["ended_at"], now)))
    if job["started_at"]:
        exit_text = f", exit {job['exit']}" if job["exit"] else ""
        pairs.append(("Run time", f"{elapsed_time(job, now)}{exit_text}"))
    return pairs


def likelihood_text(probability: float) -> str:
    """The probability as a percentage. Certainty is never claimed."""
    return f"{min(max(round(100 * probability), 1), 99)}% likely"


def relative_time(text: str, now: datetime) -> str:
    """`2026-01-31 12:00:00 UTC (3 h 20 min ago)`."""
    at = datetime.fromisoformat(text)
    seconds = (now - at).total_seconds()
    relative = f"{spoken_duration(seconds)} ago" if seconds >= 0 else f"in {spoken_duration(-seconds)}"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({relative})"


def spoken_duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    total = int(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min"
    hours, minutes = divmod(total // 60, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def _cause_pairs(diagnosis: TableRow | None) -> Pairs:
    if diagnosis is None:
        return ()
    pairs = [("Root cause", f"{diagnosis['root_cause']} ({round(100 * diagnosis['confidence'])}% sure)")]
    for evidence in diagnosis["evidence"][:1]:
        line = f"line {evidence['line']}: " if evidence["line"] else ""
        pairs.append(("Evidence", f"{line}{evidence['text']}"))
    suspects = ", ".join(node["host"] for node in diagnosis["suspect_nodes"])
    reason = f", {diagnosis['restart_reason']}" if diagnosis["restart_reason"] else ""
    pairs += [
        ("Suspect nodes", suspects),
        ("Restart helps", f"{diagnosis['restart_helps']}{reason}" if diagnosis["restart_helps"] else ""),
        ("What to do", diagnosis["action"]),
        ("Incident", str(diagnosis["incident"] or "")),
    ]
    return [(name, value) for name, value in pairs if value]


def _attempt_line(attempt: TableRow, now: datetime) -> str:
    parts = (
        f"{attempt['number']}.",
        attempt["title"],
        elapsed_time(attempt, now) if attempt["started_at"] else "",
        f"exit {attempt['exit']}" if attempt["exit"] else "",
        f"on {attempt['nodelist']}",
        attempt["reason"],
    )
    return "  ".join(filter(None, parts))
