"""The account with the smallest share goes first; jobs of an account follow the policy's order. No job blocks another.

Jobs are queued by request and account (`PolicyRules.queues_by_account`), so shares are compared per queue, and only for
requests that fit. Each start increases a share, also within the turn: a head whose account's share has grown since is
returned to its new place.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Engine
from scheduling.engine.job import RequestGroup

ShareHead = tuple[int, float, float, int, RequestGroup]  # class, share, key and number (a total order), then the group


def sharing_turn(engine: Engine, now: float) -> None:
    """Start jobs that fit, always from the account with the smallest share."""
    groups = engine.groups_to_try()
    if not groups:
        return
    rules, place, resources = engine.rules, engine.place, engine.resources
    heads, fitting = _fitting_heads(engine, groups, now)
    heapify(heads)
    any_started = False  # until the first start, no share can have changed
    while heads and fitting:
        band, share, key, number, group = heads[0]
        if group.shape not in fitting or (engine.quota_usage and engine.is_over_quota(group)):
            heappop(heads)
            continue
        grown = rules.share(group, engine, now) if any_started else share
        if grown > share:
            heapreplace(heads, (band, grown, key, number, group))
        elif (places := place(resources, group.need, group.eligible_nodes)) is None:
            fitting.discard(group.shape)
            heappop(heads)
        else:
            engine.begin(heappop(group.queue)[3], places, now)
            any_started = True
            if group.queue:
                heapreplace(heads, _share_head(engine, group, now))
            else:
                heappop(heads)
                engine.tidy(group)


def _fitting_heads(engine: Engine, groups: list[RequestGroup], now: float) -> tuple[list[ShareHead], set[int]]:
    """The first job of each queue whose request fits now, and the shapes of those requests."""
    heads: list[ShareHead] = []
    fitting: set[int] = set()
    nowhere: set[int] = set()
    for group in groups:
        shape = group.shape
        if shape in nowhere:
            continue
        if shape not in fitting:
            if engine.place(engine.resources, group.need, group.eligible_nodes) is None:
                nowhere.add(shape)
                continue
            fitting.add(shape)
        heads.append(_share_head(engine, group, now))
    return heads, fitting


def _share_head(engine: Engine, group: RequestGroup, now: float) -> ShareHead:
    band, key, number, _ = group.queue[0]
    return band, engine.rules.share(group, engine, now), key, number, group
