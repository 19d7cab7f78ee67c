"""Formats why a job waits, and what would happen to a job if it were submitted, as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from acme_client.job_details import likelihood_text, relative_time, spoken_duration
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
            yield f"     {_format_holder(holder)}"
    if explanation["smallest_change"]:
        yield "Would start now with"
        for change in (explanation["smallest_change"], *explanation["other_changes"]):
            yield f"  {change['who']}: {change['why']}"
    yield from _estimate_lines(explanation)


def _format_holder(holder: TableRow) -> str:
    gpus = f"{holder['gpus']:>5} GPU{'' if holder['gpus'] == 1 else 's'}"
    if holder["job"]:
        # Older servers do not send the expected end
        expected = f", expected to end {_format_time(end)}" if (end := holder.get("expected_end_at")) else ""
        limit = f", limit {_format_time(holder['ends_at'])}" if holder["ends_at"] else ""
        return f"{gpus}  {holder['job']} {holder['title']} ({holder['team']}){expected}{limit}"
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


# --- the preview of a submission


def format_preview(preview: TableRow, now: datetime) -> str:
    return "\n".join(clean_text(line) for line in preview_lines(preview, now))


def preview_lines(preview: TableRow, now: datetime) -> Iterator[str]:
    """Yield the lines: when the job would start, why it would wait, then quota, free GPUs and cost."""
    yield f"Dry run: nothing was submitted to {preview['cluster']}."
    if preview["warning"]:
        yield preview["warning"]
    yield from _start_lines(preview, now)
    if preview["blockers"]:
        yield "Blocked by"
    for rank, blocker in enumerate(preview["blockers"], 1):
        yield f"  {rank}. {blocker['kind']}: {blocker['why']}"
        for holder in blocker["holders"]:
            yield f"     {_format_holder(holder)}"
    if deadline := preview.get("deadline"):
        yield from deadline_lines(deadline, now)
    yield f"Team quota: {'; '.join(map(_quota_text, preview['quotas'])) or 'none'}"
    yield (
        f"Free now: {preview['free_gpus']} of {preview['matching_gpus']} GPUs on matching nodes;"
        f" {preview['fitting_nodes']} of {preview['matching_nodes']} nodes have room"
    )
    yield f"Preemption: {preview['preemption']}"
    yield f"Cost: {_cost_text(preview)}"


def deadline_lines(deadline: TableRow, now: datetime) -> Iterator[str]:
    """Yield what the answer to a submission or its preview says about the deadline."""
    share = deadline["probability"]
    likely = "" if share is None else f"{likelihood_text(share)}, "
    yield f"Deadline {relative_time(deadline['deadline_at'], now)}: {likely}{deadline['why']}"
    if deadline["warning"]:
        yield f"Warning: {deadline['warning']}"


def _start_lines(preview: TableRow, now: datetime) -> Iterator[str]:
    estimate, error = preview["estimate"], preview["past_error"]
    if preview["starts_now"]:
        yield "Likely start: in the next scheduling turn"
    elif estimate:
        yield f"Likely start: {relative_time(estimate['p50'], now)}"
        yield f"90% likely by: {relative_time(estimate['p90'], now)}"
        if error:
            yield (
                f"  Half of {error['jobs']} such estimates were within {spoken_duration(error['median_s'])} of the"
                f" actual start; {round(100 * error['within_p90'])}% of the jobs had started by the later time."
            )
    elif preview["why_no_estimate"]:
        yield preview["why_no_estimate"]


def _quota_text(quota: TableRow) -> str:
    kind = f" for {quota['kind']}" if quota["kind"] else ""
    kind += f" on {quota['gpu_model']}" if quota.get("gpu_model") else ""
    if quota["quota_gpus"] is None:
        return f"none{kind}"
    return f"{quota['left_gpus']} GPUs left{kind} ({quota['allocated_gpus']} of {quota['quota_gpus']} allocated)"


def _cost_text(preview: TableRow) -> str:
    if preview["most_gpu_hours"] is None:
        text = "no upper limit, because the job has no time limit"
    else:
        text = f"at most {preview['most_gpu_hours']:,.1f} GPU-hours"
        text += "" if preview["most_cost"] is None else f", {preview['most_cost']:,.2f} {preview['currency']}"
    if preview["usual_gpu_hours"] is None:
        return text
    return f"{text}; 9 of 10 similar jobs used at most {preview['usual_gpu_hours']:,.1f} GPU-hours"
