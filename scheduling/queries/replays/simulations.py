"""Queries of replays for pages and API: visible rows, validation of requests, and uploads of traces."""

from __future__ import annotations

import logging
import re
from datetime import datetime
from tempfile import NamedTemporaryFile
from typing import Any

from celery import current_app
from django.core.files.uploadedfile import UploadedFile
from django.db import transaction
from django.db.models import QuerySet
from kombu.exceptions import OperationalError

from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.core.parsing import UNPRINTABLE, InvalidField
from jobs.models import clock
from jobs.models.permissions import Caller
from jobs.rest.errors import InvalidRequestField
from jobs.rest.throttle import PerUserThrottle
from jobs.traces.files import TraceLimits, read_trace
from jobs.traces.trace import BadTrace
from scheduling.actions.traces import ParsedTrace, parse_upload
from scheduling.models import UPLOAD_PREFIX, Simulation, UploadedTrace
from scheduling.queries.replays import settings as replay_settings
from scheduling.replay import acme_trace, requests
from scheduling.replay.requests import InvalidReplaySetting

log = logging.getLogger(__name__)

BUILT_IN_TRACES = (*(f"acme:{name}" for name in acme_trace.PUBLISHED_CLUSTERS), "history")
FIELDS_BY_TRACE_KIND = {"acme": ("jobs",), "history": ("cluster", "days", "until"), "upload": ()}
MAX_FILE_BYTES = 64 << 20
UPLOAD_LIMITS = TraceLimits(jobs=replay_settings.MAX_TRACE_JOBS, unpacked_bytes=128 << 20)
UPLOAD_NAME_PATTERN = re.compile(rf"{UPLOAD_PREFIX}(\d{{1,18}})", re.ASCII)


def visible_simulations(caller: Caller) -> QuerySet[Simulation]:
    rows = Simulation.objects.all()
    return rows if caller.is_site_admin else rows.filter(team_id__in=sorted(caller.roles))


def traces(caller: Caller) -> QuerySet[UploadedTrace]:
    """Return the uploaded traces of the caller's teams, without their content."""
    rows = UploadedTrace.objects.defer("packed").select_related("team", "user")
    return rows if caller.is_site_admin else rows.filter(team_id__in=sorted(caller.roles))


def read_trace_name(name: str, value: Any) -> str:
    """Check the form of a trace name. Whether the trace exists is checked later."""
    if isinstance(value, str) and (value in BUILT_IN_TRACES or UPLOAD_NAME_PATTERN.fullmatch(value)):
        return value
    parsing.raise_invalid_field(
        name, f"{parsing.short_repr(value)} is not one of {', '.join(BUILT_IN_TRACES)}, {UPLOAD_PREFIX}NUMBER"
    )


def trace_kind(trace: str) -> str:
    """Return acme, history or upload. The kind decides which parameters apply."""
    return trace.partition(":")[0]


def _find_uploaded_trace(trace: str, caller: Caller) -> UploadedTrace:
    row = traces(caller).filter(pk=int(trace.removeprefix(UPLOAD_PREFIX))).first()
    if row is None:
        raise InvalidRequestField("trace", f"{trace} is not a trace of your teams")
    return row


def replay_params(
    trace: str, policies: list[str], values: dict[str, Any], places: CallerTargets, caller: Caller
) -> dict[str, Any]:
    """Return the validated parameters to store. They are complete, so that a worker can run the replay without the
    caller's permissions."""
    kind = trace_kind(trace)
    for other, names in FIELDS_BY_TRACE_KIND.items():
        if wrong := next((name for name in names if name in values and other != kind), None):
            raise InvalidRequestField(wrong, f"is only allowed for {other} traces, not for {trace}")
    params = dict(values)
    if kind == "history":
        params["cluster"] = places.resolve_cluster(values.get("cluster")).name
        params.setdefault("days", 30)
        if not caller.may_operate_clusters and not caller.is_site_admin:
            params["teams"] = sorted(caller.roles)
        if isinstance(until := params.get("until"), datetime):
            if until > clock.now():
                raise InvalidRequestField("until", f"{until:%Y-%m-%d %H:%M} UTC is in the future")
            params["until"] = until.isoformat()
    jobs = params.get("jobs") or (replay_settings.MAX_TRACE_JOBS if kind == "acme" else 0)
    if kind == "upload":
        row = _find_uploaded_trace(trace, caller)
        jobs, params["name"] = row.jobs, row.name
    if jobs * len(policies) > replay_settings.MAX_REPLAYED_JOBS:
        most = replay_settings.MAX_REPLAYED_JOBS // len(policies)
        raise InvalidRequestField(
            "jobs",
            f"at most {most:,} jobs can be replayed under {len(policies)} policies; reduce the jobs or the policies",
        )
    try:
        setting = replay_settings.replay_setting(trace, params)
        requests.check_policy_settings(params.get("policy_settings", {}), policies)
        requests.check_power_policies(policies, setting)
        requests.check_packing_policies(policies, setting)
        if "quota" in params:
            requests.check_quota_policies(policies)
        if kind == "acme":
            requests.check_quota_teams(
                setting.quotas,
                acme_trace.TRACE_TEAMS,
                f"the teams are {acme_trace.TRACE_TEAMS[0]} to {acme_trace.TRACE_TEAMS[-1]}",
            )
    except InvalidReplaySetting as error:
        raise InvalidRequestField(error.field, error.why) from None
    return params


class TraceUploadThrottle(PerUserThrottle):
    """Limits the uploads of a user per minute, on pages and API together, because parsing a trace takes seconds."""

    name = "traces:"
    most = 10


def refuse_large_file(file: UploadedFile) -> None:
    if (file.size or 0) > MAX_FILE_BYTES:
        raise InvalidField("trace_file", f"has {file.size:,} bytes; at most {MAX_FILE_BYTES:,} are allowed")


def read_uploaded_trace(file: UploadedFile) -> ParsedTrace:
    """Parse an uploaded file. Raises InvalidField."""
    refuse_large_file(file)
    name = UNPRINTABLE.sub("?", file.name or "trace")[:80]
    with NamedTemporaryFile(prefix="acme-trace-") as copy:
        for chunk in file.chunks():
            copy.write(chunk)
        copy.flush()
        try:
            return parse_upload(read_trace(copy.name, name, UPLOAD_LIMITS), name)
        except BadTrace as error:
            raise InvalidField("trace_file", str(error)) from None


def wake_simulation_worker() -> None:
    transaction.on_commit(_send_wake_task, robust=True)


def _send_wake_task() -> None:
    """Wake a worker. If the message is lost, a loop starts a worker within seconds."""
    try:
        current_app.send_task("scheduling.simulation", retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("no simulation worker could be woken: %s", error)
