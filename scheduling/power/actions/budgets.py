"""All changes to power budgets, with their Events. They take effect in the next turn; running jobs are not affected."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

from django.db import IntegrityError, transaction
from django.utils.text import capfirst

from acmeweb.common import live
from acmeweb.common.errors import InvalidField, StateConflict
from jobs.actions import journal
from jobs.actions.journal import Author
from jobs.actions.wake import request_turn
from jobs.core.lifecycle import NodeFlag
from jobs.models import Cluster, Node
from scheduling.engine.placements import PLACEMENTS_WITHOUT_POWER
from scheduling.models import BudgetScope, PowerBudget, PowerCapMode
from scheduling.models.power_budget import MAX_LIMIT_W
from scheduling.power.actions import caps
from scheduling.power.rules.caps import MAX_PERCENT, MIN_PERCENT, POLCA_PERCENTS
from scheduling.power.rules.predictions import idle_node_w

MAX_NAMED_PLACES = 10
CapPercents = tuple[int, int, int]
CAP_PERCENTS_RULE = (
    f"must be three percentages from {MIN_PERCENT} to {MAX_PERCENT}, none below the one before, such as"
    f" {', '.join(map(str, POLCA_PERCENTS))}"
)


@transaction.atomic
def add(
    cluster: Cluster, *, scope: str, place: str = "", limit_kw: float, author: Author, why: str = ""
) -> PowerBudget:
    """Add a budget. Raise InvalidField, or StateConflict if there is one already or the cluster's placement does not
    support budgets."""
    if cluster.placement in PLACEMENTS_WITHOUT_POWER:
        raise StateConflict(f"The placement {cluster.placement} of {cluster} does not support power budgets.")
    row = PowerBudget(cluster=cluster, scope=scope, place=place, limit_w=_limit_w(limit_kw))
    _check_limit(row, _nodes(row))
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:
        raise StateConflict(f"{capfirst(row.title)} already has a power budget. Change that one.") from None
    _record(row, None, row.limit_w, author, why)
    return row


@transaction.atomic
def change(
    row: PowerBudget,
    *,
    limit_kw: float | None = None,
    cap_mode: str | None = None,
    cap_percents: Sequence[int] | None = None,
    author: Author,
    why: str = "",
    now: datetime,
) -> None:
    """Change the limit, unless it was changed since `row` was read, whether clocks are capped near it, and above which
    percentages of it."""
    limit_w = row.limit_w if limit_kw is None else _limit_w(limit_kw)
    mode = row.mode if cap_mode is None else cap_mode
    percents = row.cap_percents if cap_percents is None else _checked_percents(cap_percents)
    if (limit_w, mode, percents) == (row.limit_w, row.mode, row.cap_percents):
        caps = "" if cap_mode is None else f" with caps {mode}"
        at = "" if cap_percents is None else f" at {percents_text(percents)}"
        raise StateConflict(f"The power budget of {row.title} is {_kw_text(limit_w)}{caps}{at} already.")
    if limit_w != row.limit_w:
        _change_limit(row, limit_w, author, why)
    if percents != row.cap_percents:
        _change_percents(row, percents, author, why)
    if mode != row.mode:
        _change_cap_mode(row, mode, author, now)


def _change_limit(row: PowerBudget, limit_w: int, author: Author, why: str) -> None:
    before, row.limit_w = row.limit_w, limit_w
    _check_limit(row, _nodes(row))
    if not PowerBudget.objects.filter(pk=row.pk, limit_w=before).update(limit_w=limit_w):
        raise StateConflict(f"The power budget of {row.title} was changed in the meantime. Try again.")
    _record(row, before, limit_w, author, why)


def _change_percents(row: PowerBudget, percents: CapPercents, author: Author, why: str) -> None:
    before = row.cap_percents
    if caps.set_percents(row, percents):
        _record_change(row, "cap thresholds", [percents_text(before), percents_text(percents)], author, why)


def _checked_percents(percents: Sequence[int]) -> CapPercents:
    if len(percents) != len(POLCA_PERCENTS) or any(
        low > high for low, high in pairwise((MIN_PERCENT, *percents, MAX_PERCENT))
    ):
        raise InvalidField("cap_percents", CAP_PERCENTS_RULE)
    low, all_jobs, lowest = percents
    return low, all_jobs, lowest


def percents_text(percents: Sequence[int]) -> str:
    return f"{', '.join(map(str, percents))}%"


def _change_cap_mode(row: PowerBudget, mode: str, author: Author, now: datetime) -> None:
    if mode not in PowerCapMode.values:
        raise InvalidField("cap_mode", f"{mode[:40]!r} is not one of {', '.join(PowerCapMode.values)}")
    caps.set_mode(row, mode, author=author, now=now)


@transaction.atomic
def remove(row: PowerBudget, *, author: Author, why: str = "") -> None:
    deleted, _ = PowerBudget.objects.filter(pk=row.pk).delete()
    if not deleted:
        raise StateConflict(f"The power budget of {row.title} was removed already.")
    _record(row, row.limit_w, None, author, why)


def _nodes(row: PowerBudget) -> list[Node]:
    """Return the nodes of the budget. Raise InvalidField if the scope or the place is not one of the cluster's."""
    if row.scope not in BudgetScope.values:
        raise InvalidField("scope", f"{row.scope[:40]!r} is not one of {', '.join(BudgetScope.values)}")
    nodes = Node.objects.filter(cluster=row.cluster)
    if row.scope == BudgetScope.CLUSTER:
        if row.place:
            raise InvalidField("place", "must be empty for the scope cluster")
        return list(nodes)
    if not row.place:
        raise InvalidField("place", f"is required for the scope {row.scope}")
    found = list(nodes.filter(**{row.scope: row.place}))
    if not found:
        raise InvalidField("place", f"no node of {row.cluster} is in {row.scope} {row.place[:40]}; {_places_text(row)}")
    return found


def _places_text(row: PowerBudget) -> str:
    rows = Node.objects.filter(cluster=row.cluster).exclude(**{row.scope: ""}).order_by(row.scope)
    names = list(rows.values_list(row.scope, flat=True).distinct()[: MAX_NAMED_PLACES + 1])
    more = " and more" if len(names) > MAX_NAMED_PLACES else ""
    return f"there are {', '.join(names[:MAX_NAMED_PLACES])}{more}" if names else f"its nodes have no {row.scope}"


def _limit_w(limit_kw: float) -> int:
    watts = round(limit_kw * 1000) if 0 < limit_kw <= MAX_LIMIT_W / 1000 else 0  # false for NaN too
    if not watts:
        raise InvalidField("limit_kw", f"{limit_kw:g} is not between 0.001 and {MAX_LIMIT_W // 1000}")
    return watts


def _check_limit(row: PowerBudget, nodes: list[Node]) -> None:
    """Refuse a limit under which no job could ever start."""
    idle_w = sum(
        idle_node_w(node.physical_gpus, node.gpu_model) for node in nodes if NodeFlag.POWERED_DOWN not in node.flags
    )
    if row.limit_w <= idle_w:
        raise InvalidField(
            "limit_kw", f"{_kw_text(row.limit_w)} is not above the {_kw_text(idle_w)} that its nodes draw when idle"
        )


def _kw_text(watts: int) -> str:
    return f"{watts / 1000:,.1f} kW"


def _record(row: PowerBudget, before: int | None, after: int | None, author: Author, why: str) -> None:
    texts = [None if watts is None else f"{watts / 1000:g} kW" for watts in (before, after)]
    _record_change(row, "power budget", texts, author, why)


def _record_change(row: PowerBudget, what: str, texts: Sequence[str | None], author: Author, why: str) -> None:
    name = what if row.scope == BudgetScope.CLUSTER else f"{what} of {row.scope} {row.place}"
    detail = {"changes": [[name, *texts]]}
    journal.cluster_event("cluster.changed", author, row.cluster, why=why, detail=detail).save()
    request_turn(row.cluster_id)
    live.publish_on_commit("queue")
    live.publish_on_commit("nodes")
