"""Replays that people ask for, as pages and API share them: what may be asked, by whom, and whose they are to see."""

from __future__ import annotations

import logging
from typing import Any

from celery import current_app
from django.db import transaction
from django.db.models import QuerySet
from kombu.exceptions import OperationalError

from jobs.api.submitting import Places
from jobs.door.errors import BadField
from jobs.models import Role, Scope
from jobs.rights import Caller
from scheduling.loops import simulate
from scheduling.models import Simulation
from scheduling.simulator import acme, asking
from scheduling.simulator.asking import BadSetting

log = logging.getLogger(__name__)

TRACES = (*(f"acme:{name}" for name in acme.SITES), "history")
BELONGS = {"acme": ("jobs",), "history": ("cluster", "days")}


def theirs(caller: Caller) -> QuerySet[Simulation]:
    rows = Simulation.objects.all()
    return rows if caller.everywhere else rows.filter(team_id__in=sorted(caller.roles))


def may_cancel(caller: Caller, row: Simulation) -> bool:
    """Whoever asked for it, or an operator of the team."""
    if row.user_id == caller.user.pk and caller.has(Role.RESEARCHER, row.team_id):
        return True
    return caller.scope.covers(Scope.OPERATE) and caller.has(Role.OPERATOR, row.team_id)


def checked(trace: str, policies: list[str], asked: dict[str, Any], places: Places, caller: Caller) -> dict[str, Any]:
    """What the row keeps, complete enough to be carried out later by somebody who knows no caller."""
    kind = "history" if trace == "history" else "acme"
    for other, names in BELONGS.items():
        if wrong := next((name for name in names if name in asked and other != kind), None):
            raise BadField(wrong, f"belongs to {other}, not to {trace}")
    params = dict(asked)
    if kind == "history":
        params["cluster"] = places.cluster_of(asked.get("cluster")).name
        params.setdefault("days", 30)
        if not caller.operates and not caller.everywhere:
            params["teams"] = sorted(caller.roles)
    jobs = params.get("jobs") or (simulate.MOST_JOBS if kind == "acme" else 0)
    if jobs * len(policies) > simulate.MOST_REPLAYED:
        most = simulate.MOST_REPLAYED // len(policies)
        raise BadField("jobs", f"{len(policies)} policies may replay {most:,} jobs each; ask for fewer of either")
    try:
        simulate.setting_of(trace, params)
        asking.settings_of(params.get("policy_settings", {}), policies)
        if "quota" in params:
            asking.keep_quotas(policies)
    except BadSetting as bad:
        raise BadField(bad.field, bad.why) from None
    return params


def wake() -> None:
    transaction.on_commit(_send, robust=True)


def _send() -> None:
    """A hint: beat asks every few seconds."""
    try:
        current_app.send_task("scheduling.simulation", retry=False, expires=10)
    except (OperationalError, OSError) as error:
        log.info("nobody could be woken for a simulation: %s", error)
