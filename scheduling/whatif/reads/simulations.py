"""Requested replays: the rows that a caller sees, the validation of requests, and their settings with defaults from the
trace or the cluster."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from acmeweb.common.errors import InvalidField
from jobs.actions.submissions import CallerTargets
from jobs.core import parsing
from jobs.models import Node, clock
from jobs.models.permissions import Caller
from scheduling.models import UPLOAD_PREFIX, Simulation, UploadedTrace
from scheduling.whatif.replay import acme_trace, requests
from scheduling.whatif.replay.run import ReplaySetting

MAX_TRACE_JOBS = 700_000  # the whole of Seren
MAX_REPLAYED_JOBS = 2_000_000  # jobs times policies
MAX_HISTORY_DAYS = 366
BUILT_IN_TRACES = (*(f"acme:{name}" for name in acme_trace.PUBLISHED_CLUSTERS), "history")
FIELDS_BY_TRACE_KIND = {"acme": ("jobs",), "history": ("cluster", "days", "until"), "upload": ()}
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
        raise InvalidField("trace", f"{trace} is not a trace of your teams")
    return row


def replay_params(
    trace: str, policies: list[str], values: dict[str, Any], places: CallerTargets, caller: Caller
) -> dict[str, Any]:
    """Return the validated parameters to store. They are complete, so that a worker can run the replay without the
    caller's permissions."""
    kind = trace_kind(trace)
    for other, names in FIELDS_BY_TRACE_KIND.items():
        if wrong := next((name for name in names if name in values and other != kind), None):
            raise InvalidField(wrong, f"is only allowed for {other} traces, not for {trace}")
    params = dict(values)
    if kind == "history":
        params["cluster"] = places.resolve_cluster(values.get("cluster")).name
        params.setdefault("days", 30)
        if not caller.may_operate_clusters and not caller.is_site_admin:
            params["teams"] = sorted(caller.roles)
        if isinstance(until := params.get("until"), datetime):
            if until > clock.now():
                raise InvalidField("until", f"{until:%Y-%m-%d %H:%M} UTC is in the future")
            params["until"] = until.isoformat()
    jobs = params.get("jobs") or (MAX_TRACE_JOBS if kind == "acme" else 0)
    if kind == "upload":
        row = _find_uploaded_trace(trace, caller)
        jobs, params["name"] = row.jobs, row.name
    if jobs * len(policies) > MAX_REPLAYED_JOBS:
        most = MAX_REPLAYED_JOBS // len(policies)
        raise InvalidField(
            "jobs",
            f"at most {most:,} jobs can be replayed under {len(policies)} policies; reduce the jobs or the policies",
        )
    setting = replay_setting(trace, params)
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
    return params


def replay_setting(trace: str, params: dict[str, Any]) -> ReplaySetting:
    """Return the settings of the request, with defaults from the trace. Raises InvalidField."""
    values = {name: params[name] for name in requests.SETTING_NAMES if name in params}
    if site := acme_trace.PUBLISHED_CLUSTERS.get(trace.removeprefix("acme:")):
        values.setdefault("nodes", site.nodes)
    elif trace == "history":
        values = _cluster_shape(params["cluster"]) | values
    return requests.replay_setting(
        **values,
        quotas=requests.quotas_from_rows(params["quota"]) if "quota" in params else (),
        power=requests.power_setting(**{name: params[name] for name in requests.POWER_NAMES if name in params}),
        profiles=requests.profile_table(**{name: params[name] for name in requests.PROFILE_NAMES if name in params}),
    )


def _cluster_shape(cluster: str) -> dict[str, int]:
    """Return the size of the cluster. All nodes of a replay are alike, so they get the GPUs of the largest node."""
    nodes = Node.objects.filter(cluster__name=cluster, gpus__gt=0)
    most = nodes.most_whole_gpus()
    return {"nodes": nodes.count(), "gpus_per_node": most} if most else {}
