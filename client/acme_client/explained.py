"""Why a job waits, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from acme_client.table import TableRow, clean_text, format_duration


def explanation_lines(said: TableRow) -> Iterator[str]:
    """The first is the one that was always there; more follow where more is known."""
    sentence = said["why"] or f"It does not wait: it is {said['title']}."
    reason = "" if said["reason"] in ("", "None") else f" ({said['reason']})"
    yield f"{said['id']} {said['title']}{reason}: {sentence}"
    for one in said["waits_for"]:
        yield f"  {one['after']}:{one['id']} is {one['state']}"
    if said["blockers"]:
        yield "What keeps it back"
    for rank, blocker in enumerate(said["blockers"], 1):
        yield f"  {rank}. {blocker['kind']}: {blocker['why']}"
        for holder in blocker["holders"]:
            yield f"     {_format_holder(holder)}"
    if said["smallest_change"]:
        yield "What would start it now"
        for change in (said["smallest_change"], *said["other_changes"]):
            yield f"  {change['who']}: {change['why']}"
    yield from _estimate_lines(said)


def _format_holder(holder: TableRow) -> str:
    gpus = f"{holder['gpus']:>5} GPU{'' if holder['gpus'] == 1 else 's'}"
    if holder["job"]:
        limit = f", limit {_format_time(holder['ends_at'])}" if holder["ends_at"] else ""
        return f"{gpus}  {holder['job']} {holder['title']} ({holder['team']}){limit}"
    return f"{gpus}  {holder['jobs']} job{'' if holder['jobs'] == 1 else 's'} of {holder['team'] or 'other teams'}"


def _estimate_lines(said: TableRow) -> Iterator[str]:
    if not (estimate := said["estimate"]):
        return
    yield "When it will start"
    yield f"  likely {_format_time(estimate['p50'])}, 9 of 10 times before {_format_time(estimate['p90'])}"
    if error := said["past_error"]:
        percent, jobs = round(100 * error["within_p90"]), error["jobs"]
        yield (
            f"  such estimates were off by {format_duration(error['median_s'])} at the median;"
            f" {percent} % of {jobs} jobs had started by the later time"
        )


def _format_time(text: str) -> str:
    return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"


def format_explanation(said: TableRow) -> str:
    return "\n".join(clean_text(line) for line in explanation_lines(said))
