"""Replays that people ask for, as pages and API share them: what may be asked, by whom, and whose they are to see."""

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

from jobs import clock, readers
from jobs.api.submitting import Places
from jobs.door.errors import BadField
from jobs.door.throttle import PerUser
from jobs.readers import UNPRINTABLE, BadSpec
from jobs.rights import Caller
from jobs.traces.files import Most, read
from jobs.traces.trace import BadTrace
from scheduling.loops import simulate
from scheduling.models import UPLOAD, Simulation, UploadedTrace
from scheduling.simulator import acme, asking
from scheduling.simulator.asking import BadSetting
from scheduling.trace_actions import Brought, pack

log = logging.getLogger(__name__)

TRACES = (*(f"acme:{name}" for name in acme.SITES), "history")
BELONGS = {"acme": ("jobs",), "history": ("cluster", "days", "until"), "upload": ()}
LARGEST_FILE = 64 << 20
MOST = Most(jobs=simulate.MOST_JOBS, unpacked_bytes=128 << 20)
UPLOADED = re.compile(rf"{UPLOAD}(\d{{1,18}})", re.ASCII)


def theirs(caller: Caller) -> QuerySet[Simulation]:
    rows = Simulation.objects.all()
    return rows if caller.everywhere else rows.filter(team_id__in=sorted(caller.roles))


def traces(caller: Caller) -> QuerySet[UploadedTrace]:
    """Those that people of his teams brought; without what they hold."""
    rows = UploadedTrace.objects.defer("packed").select_related("team", "user")
    return rows if caller.everywhere else rows.filter(team_id__in=sorted(caller.roles))


def trace_named(name: str, value: Any) -> str:
    """As it is asked for; whether there is such a trace is seen later."""
    if isinstance(value, str) and (value in TRACES or UPLOADED.fullmatch(value)):
        return value
    readers.bad(name, f"{readers.short(value)} is none of {', '.join(TRACES)}, {UPLOAD}NUMBER")


def kind_of(trace: str) -> str:
    """By which of its fields a replay is asked for."""
    return trace.partition(":")[0]


def _brought(trace: str, caller: Caller) -> UploadedTrace:
    row = traces(caller).filter(pk=int(trace.removeprefix(UPLOAD))).first()
    if row is None:
        raise BadField("trace", f"{trace} is no trace of your teams")
    return row


def checked(trace: str, policies: list[str], asked: dict[str, Any], places: Places, caller: Caller) -> dict[str, Any]:
    """What the row keeps, complete enough to be carried out later by somebody who knows no caller."""
    kind = kind_of(trace)
    for other, names in BELONGS.items():
        if wrong := next((name for name in names if name in asked and other != kind), None):
            raise BadField(wrong, f"belongs to {other}, not to {trace}")
    params = dict(asked)
    if kind == "history":
        params["cluster"] = places.cluster_of(asked.get("cluster")).name
        params.setdefault("days", 30)
        if not caller.operates and not caller.everywhere:
            params["teams"] = sorted(caller.roles)
        if isinstance(until := params.get("until"), datetime):
            if until > clock.now():
                raise BadField("until", f"{until:%Y-%m-%d %H:%M} UTC has not come yet")
            params["until"] = until.isoformat()
    jobs = params.get("jobs") or (simulate.MOST_JOBS if kind == "acme" else 0)
    if kind == "upload":
        row = _brought(trace, caller)
        jobs, params["name"] = row.jobs, row.name
    if jobs * len(policies) > simulate.MOST_REPLAYED:
        most = simulate.MOST_REPLAYED // len(policies)
        raise BadField("jobs", f"{len(policies)} policies may replay {most:,} jobs each; ask for fewer of either")
    try:
        setting = simulate.setting_of(trace, params)
        asking.settings_of(params.get("policy_settings", {}), policies)
        if "quota" in params:
            asking.keep_quotas(policies)
        if kind == "acme":
            asking.keep_to(setting.quotas, acme.TEAMS, f"there are {acme.TEAMS[0]} to {acme.TEAMS[-1]}")
    except BadSetting as bad:
        raise BadField(bad.field, bad.why) from None
    return params


class Uploads(PerUser):
    """Reading one may take seconds; pages and programs have one counter."""

    name = "traces:"
    most = 10


def refuse_large(file: UploadedFile) -> None:
    if (file.size or 0) > LARGEST_FILE:
        raise BadSpec("trace_file", f"has {file.size:,} bytes, more than the {LARGEST_FILE:,} allowed")


def read_file(file: UploadedFile) -> Brought:
    """What somebody sent. Raises BadSpec."""
    refuse_large(file)
    name = UNPRINTABLE.sub("?", file.name or "trace")[:80]
    with NamedTemporaryFile(prefix="acme-trace-") as kept:
        for chunk in file.chunks():
            kept.write(chunk)
        kept.flush()
        try:
            return pack(read(kept.name, name, MOST), name)
        except BadTrace as bad:
            raise BadSpec("trace_file", str(bad)) from None


def wake() -> None:
    transaction.on_commit(_send, robust=True)


def _send() -> None:
    """A hint: beat asks every few seconds."""
    try:
        current_app.send_task("scheduling.simulation", retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("nobody could be woken for a simulation: %s", error)
