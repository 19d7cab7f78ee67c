"""Formats why a job waits, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from acme_client.table import TableRow, clean_text, format_duration


def explanation_lines(explanation: TableRow) -> Iterator[str]:
    """Yield the lines: first why the job waits, then blockers, changes that would help, and the estimate."""
    sentence = explanation["why"] or f"Not waiting: the job is {explanation['title']}."
    reason = "" if explanation["reason"] in ("", "None") else f" ({explanation['reason']})"
    yield f"{explanation['id']} {explanation['title']}{reason}: {sentence}"
    for dependency in explanation["waits_for"]:
        yield f"  {dependency['after']}:{dependency['id']} is {dependency['state']}"
    if explanation["blockers"]:
        yield "Blocked by"
    for rank, blocker in enumerate(explanation["blockers"], 1):
        yield f"  {rank}. {blocker['kind']}: {blocker['why']}"
        for holder in blocker["holders"]:
            yield f"     {format_holder(holder)}"
    if explanation["smallest_change"]:
        yield "Would start now with"
        for change in (explanation["smallest_change"], *explanation["other_changes"]):
            yield f"  {change['who']}: {change['why']}"
    yield from _estimate_lines(explanation)


def format_holder(holder: TableRow) -> str:
    gpus = f"{holder['gpus']:>5} GPU{'' if holder['gpus'] == 1 else 's'}"
    if holder["job"]:
        limit = f", limit {_format_time(holder['ends_at'])}" if holder["ends_at"] else ""
        return f"{gpus}  {holder['job']} {holder['title']} ({holder['team']}){limit}"
    return f"{gpus}  {holder['jobs']} job{'' if holder['jobs'] == 1 else 's'} of {holder['team'] or 'other teams'}"


def _estimate_lines(explanation: TableRow) -> Iterator[str]:
    if not (estimate := explanation["estimate"]):
        return
    yield "Start estimate"
    yield f"  likely {_format_time(estimate['p50'])}, 90 % likely by {_format_time(estimate['p90'])}"
    if accuracy := explanation["past_error"]:
        percent, jobs = round(100 * accuracy["within_p90"]), accuracy["jobs"]
        yield (
            f"  past estimates: median error {format_duration(accuracy['median_s'])},"
            f" {percent} % of {jobs} jobs started by the 90 % estimate"
        )


def _format_time(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"


def format_explanation(explanation: TableRow) -> str:
    return "\n".join(clean_text(line) for line in explanation_lines(explanation))
