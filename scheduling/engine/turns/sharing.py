"""The account with the smallest share goes first; jobs of an account follow the policy's order. No job blocks another.

Jobs are queued by request and account (`PolicyRules.queues_by_account`), so shares are compared per queue, and only for
requests that fit. Each start increases a share, also within the turn: a head whose account's share has grown since is
returned to its new place.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Engine, RequestGroup

ShareHead = tuple[int, float, float, int, RequestGroup]  # class, share, key and number (a total order), then the group


def sharing_turn(engine: Engine, now: float) -> None:
    """Start jobs that fit, always from the account with the smallest share."""
    asks = engine.groups_to_try()
    if not asks:
        return
    rules, place, room = engine.rules, engine.place, engine.room
    heads, fitting = _fitting_heads(engine, asks, now)
    heapify(heads)
    any_started = False  # until the first start, no share can have changed
    while heads and fitting:
        band, share, key, number, ask = heads[0]
        if ask.shape not in fitting or (engine.books and engine.is_over_quota(ask)):
            heappop(heads)
            continue
        grown = rules.share(ask, engine, now) if any_started else share
        if grown > share:
            heapreplace(heads, (band, grown, key, number, ask))
        elif (places := place(room, ask.need, ask.able)) is None:
            fitting.discard(ask.shape)
            heappop(heads)
        else:
            engine.begin(heappop(ask.line)[3], places, now)
            any_started = True
            if ask.line:
                heapreplace(heads, _share_head(engine, ask, now))
            else:
                heappop(heads)
                engine.tidy(ask)


def _fitting_heads(engine: Engine, asks: list[RequestGroup], now: float) -> tuple[list[ShareHead], set[int]]:
    """The first job of each queue whose request fits now, and the shapes of those requests."""
    heads: list[ShareHead] = []
    fitting: set[int] = set()
    nowhere: set[int] = set()
    for ask in asks:
        shape = ask.shape
        if shape in nowhere:
            continue
        if shape not in fitting:
            if engine.place(engine.room, ask.need, ask.able) is None:
                nowhere.add(shape)
                continue
            fitting.add(shape)
        heads.append(_share_head(engine, ask, now))
    return heads, fitting


def _share_head(engine: Engine, ask: RequestGroup, now: float) -> ShareHead:
    band, key, number, _ = ask.line[0]
    return band, engine.rules.share(ask, engine, now), key, number, ask
