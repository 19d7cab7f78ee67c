"""Whose account has had least goes first; within an account, by the policy's order. Nobody holds back anybody.

Jobs stand in lines by wish and account (`Rules.by_account`), so shares are compared per line. A share grows with each
start, also within the turn: a head whose account has grown since it was looked at is put back in its new place.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from scheduling.engine.engine import Ask, Engine


def sharing(engine: Engine, now: float) -> None:
    asks = engine.to_ask()
    if not asks:
        return
    rules, place, room = engine.rules, engine.place, engine.room
    heads = [_head(engine, ask, now) for ask in asks]
    heapify(heads)
    nowhere: set[int] = set()
    somebody_began = False  # else nobody's share is another than when it was looked at
    while heads:
        band, share, key, number, ask = heads[0]
        grown = rules.share(ask, engine, now) if somebody_began else share
        if grown > share:
            heapreplace(heads, (band, grown, key, number, ask))
        elif ask.shape in nowhere or (engine.books and engine.refuses(ask)):
            heappop(heads)
        elif (places := place(room, ask.need, ask.able)) is None:
            nowhere.add(ask.shape)
            heappop(heads)
        else:
            engine.begin(heappop(ask.line)[3], places, now)
            somebody_began = True
            if ask.line:
                heapreplace(heads, _head(engine, ask, now))
            else:
                heappop(heads)
                engine.tidy(ask)


def _head(engine: Engine, ask: Ask, now: float) -> tuple[int, float, float, int, Ask]:
    band, key, number, _ = ask.line[0]
    return band, engine.rules.share(ask, engine, now), key, number, ask
