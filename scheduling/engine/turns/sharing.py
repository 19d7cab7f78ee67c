"""Whose account has had least goes first; within an account, by the policy's order. Nobody holds back anybody.

Jobs stand in lines by wish and account (`Rules.by_account`), so shares are compared per line, and only where the wish
fits at all. A share grows with each start, also within the turn: a head whose account has grown since it was looked at
is put back in its new place.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Engine, RequestGroup

ShareHead = tuple[
    int, float, float, int, RequestGroup
]  # class, share, key and number: the whole order, then which line


def sharing_turn(engine: Engine, now: float) -> None:
    asks = engine.groups_to_try()
    if not asks:
        return
    rules, place, room = engine.rules, engine.place, engine.room
    heads, fitting = _fitting_heads(engine, asks, now)
    heapify(heads)
    somebody_began = False  # else nobody's share is another than when it was looked at
    while heads and fitting:
        band, share, key, number, ask = heads[0]
        if ask.shape not in fitting or (engine.books and engine.is_over_quota(ask)):
            heappop(heads)
            continue
        grown = rules.share(ask, engine, now) if somebody_began else share
        if grown > share:
            heapreplace(heads, (band, grown, key, number, ask))
        elif (places := place(room, ask.need, ask.able)) is None:
            fitting.discard(ask.shape)
            heappop(heads)
        else:
            engine.begin(heappop(ask.line)[3], places, now)
            somebody_began = True
            if ask.line:
                heapreplace(heads, _share_head(engine, ask, now))
            else:
                heappop(heads)
                engine.tidy(ask)


def _fitting_heads(engine: Engine, asks: list[RequestGroup], now: float) -> tuple[list[ShareHead], set[int]]:
    """The first of each line whose wish fits by now, and those wishes."""
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
