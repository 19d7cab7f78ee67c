"""Owners take back what borrowers hold. A borrower is whoever may be preempted: he runs on GPUs that owners leave idle.

`room_for` is how a job gets its places where `Rules.claims` is set: what is free first, and else what comes free when
borrowers stop. `Engine.firm` is the room as it would be without any borrower, so one look tells whether stopping
anybody can help at all. Nobody stops unless the claimant then really fits, and nobody whose GPUs it fits without.

Who stops: on each node those whose end is asked for already, then the lower class, then who loses fewest GPU-seconds
since his last checkpoint (a restart is counted as a minute's work), until the share fits; then the nodes where that is
cheapest, with fewest victims. Per node this is greedy, not optimal; whoever turns out superfluous is let go.
An owner may claim from every borrower, a borrower from borrowers of a lower class only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush

from scheduling.engine.cluster import Need
from scheduling.engine.engine import Ask, Engine, Job
from scheduling.engine.placement import BY_SHARE
from scheduling.engine.room import EVERYWHERE, Nodes, Places, Room

RESTART_S = 60.0
# The highest class among the victims, GPU-seconds lost, how many stop, and since when: of equals the last to come
Price = tuple[float, float, int, float]
FREE: Price = (float("-inf"), 0.0, 0, 0.0)


def fits(engine: Engine, job: Job, among: Nodes) -> bool:
    """Whether it could start, now or when borrowers have stopped for it."""
    need = job.ask.need
    if engine.place(engine.room, need, among) is not None:
        return True
    return _may_claim(engine, job) and engine.place(_without_borrowers(engine, job), need, among) is not None


def room_for(engine: Engine, job: Job, among: Nodes, now: float) -> Places | None:
    """Its places, free by now; who had to stop for that has stopped."""
    need = job.ask.need
    places = engine.place(engine.room, need, among)
    if places is not None or not _may_claim(engine, job):
        return places
    if engine.place(_without_borrowers(engine, job), need, among) is None:
        return None
    market = _market(engine, job, now)
    for victim in _victims(engine, job, among, market):
        victim.gave_way_to = job
        market.leave(victim)
        engine.halt(victim, now)
    return engine.place(engine.room, need, among)


def _victims(engine: Engine, job: Job, among: Nodes, market: Market) -> list[Job]:
    """Who must stop so that it fits; it is known to fit if all do whom it may claim from."""
    loss = market.loss
    chosen, enough = _cheapest(engine, job, among, market)
    alone = all(len(victim.places or ()) == 1 for victim in chosen)
    if enough and alone and engine.place in BY_SHARE:
        return chosen  # on each node as few as can be, and no node too many
    room = engine.room.copy()
    for victim in chosen:
        room.give(victim.places or (), victim.ask.need)
    if engine.place(room, job.ask.need, among) is None:  # a placement that wants more than enough nodes
        rest = [borrower for borrower in loss if borrower not in set(chosen)]
        chosen += rest
        for victim in rest:
            room.give(victim.places or (), victim.ask.need)
    elif alone:
        return chosen
    return _needed(engine, job.ask, among, room, sorted(chosen, key=loss.__getitem__, reverse=True))


def claimable(engine: Engine, job: Job) -> Iterable[Job]:
    """Who gives way to it."""
    if not _may_claim(engine, job):
        return ()
    if not job.ask.borrows:
        return engine.borrowers.values()
    return [other for other in engine.borrowers.values() if other.stopping or other.asked_band > job.asked_band]


def _may_claim(engine: Engine, job: Job) -> bool:
    return bool(engine.borrowers) and (not job.ask.borrows or engine.classes_differ)


def _without_borrowers(engine: Engine, job: Job) -> Room:
    if not job.ask.borrows:
        return engine.firm
    room = engine.room.copy()
    for other in claimable(engine, job):
        room.give(other.places or (), other.ask.need)
    return room


def _loss(engine: Engine, job: Job, now: float) -> Price:
    if job.stopping:
        return FREE
    restart_s = engine.cost_s(job) if engine.cost_s else RESTART_S
    return -job.asked_band, job.ask.gpus * (engine.unsaved_s(job, now) + restart_s), 1, -job.began


class Market:
    """What those who may be claimed from would lose, and by node who costs least. A price holds while its node is as it
    was, so many claims in one turn look at few nodes anew."""

    def __init__(self, engine: Engine, borrowers: Iterable[Job], now: float) -> None:
        self.loss = {borrower: _loss(engine, borrower, now) for borrower in borrowers}
        self.size = len(engine.borrowers)
        self._on_node: dict[int, list[Job]] = defaultdict(list)
        self._stalls: dict[tuple[int, int, int], _Stall] = {}  # by what a share takes of a node
        for borrower in sorted(self.loss, key=self.loss.__getitem__):
            for node, _ in borrower.places or ():
                self._on_node[node].append(borrower)

    def leave(self, job: Job) -> None:
        self.size -= 1
        del self.loss[job]
        for node, _ in job.places or ():
            self._on_node[node].remove(job)

    def moved(self, places: Places) -> None:
        """Somebody began or left there."""
        for stall in self._stalls.values():
            for node, _ in places:
                stall.stale.add(node)

    def cheapest(self, room: Room, firm: Room, need: Need, gpus: int, count: int, wanted: Nodes) -> list[Offer]:
        """Of the nodes that are wanted so many, where a share of so many GPUs costs least."""
        share = gpus, need.cpus, need.memory_mb
        if (stall := self._stalls.get(share)) is None:
            stall = self._stalls[share] = _Stall(len(room.nodes))
        for node in stall.stale:
            there = _enough(firm, node, gpus, need)
            stall.put(node, _offer(room, node, gpus, need, self._on_node[node], self.loss) if there else None)
        stall.stale.clear()
        return stall.cheapest(count, wanted)


class _Stall:
    """The offers for one kind of share, the cheapest first. What is out of date is thrown away when it comes up, and
    what lies on nodes that are not wanted is laid aside until they are."""

    def __init__(self, nodes: int) -> None:
        self.stale = set(range(nodes))  # to be priced before anybody buys
        self._heap: list[tuple[Price, int, int, list[Job]]] = []
        self._aside: list[tuple[Price, int, int, list[Job]]] = []
        self._wanted = EVERYWHERE  # when these were laid there
        self._newest: dict[int, int] = {}  # node -> which of its offers holds
        self._put = 0

    def put(self, node: int, offer: Offer | None) -> None:
        self._newest[node] = self._put = self._put + 1
        if offer:
            price, _, there = offer
            heappush(self._heap, (price, node, self._put, there))

    def cheapest(self, count: int, wanted: Nodes) -> list[Offer]:
        self._want(wanted)
        heap = self._heap
        bought: list[tuple[Price, int, int, list[Job]]] = []
        found: list[Offer] = []
        while heap and len(found) < count:
            price, node, which, there = heap[0]
            holds = self._newest[node] == which
            if holds and wanted >> node & 1:
                found.append((price, node, there))
                if len(found) < count:
                    bought.append(heappop(heap))
                continue
            entry = heappop(heap)
            if holds:
                self._aside.append(entry)
        for entry in bought:
            heappush(heap, entry)
        return found

    def _want(self, wanted: Nodes) -> None:
        if wanted & ~self._wanted:
            for entry in self._aside:
                heappush(self._heap, entry)
            self._aside.clear()
        self._wanted = wanted


def _market(engine: Engine, job: Job, now: float) -> Market:
    if job.ask.borrows:
        return Market(engine, claimable(engine, job), now)
    market: Market | None = engine.market
    if market is None or market.size != len(engine.borrowers):
        market = engine.market = Market(engine, engine.borrowers.values(), now)
    return market


def _cheapest(engine: Engine, job: Job, among: Nodes, market: Market) -> tuple[list[Job], bool]:
    """The victims on the nodes where the shares of this wish cost least, and whether there were enough nodes."""
    need, room, firm = job.ask.need, engine.room, _without_borrowers(engine, job)
    chosen: dict[Job, None] = {}
    taken = 0
    enough = True
    for gpus, count in ((need.gpus, need.nodes), (need.rest, int(need.rest > 0))):
        if count:
            offers = market.cheapest(room, firm, need, gpus, count, among & ~taken)
            enough &= len(offers) == count
            for _, node, there in offers:
                taken |= 1 << node
                chosen.update(dict.fromkeys(there))
    return list(chosen), enough


Offer = tuple[Price, int, list[Job]]


def _enough(room: Room, node: int, gpus: int, need: Need) -> bool:
    if room.free[node] < gpus or room.cpus[node] < need.cpus or room.memory_mb[node] < need.memory_mb:
        return False
    return bool(room.usable >> node & 1)


def _offer(room: Room, node: int, gpus: int, need: Need, borrowers: list[Job], loss: dict[Job, Price]) -> Offer:
    """What it costs to make a share fit on this node, where it does if all borrowers stop."""
    lack = gpus - room.free[node]
    lack_cpus, lack_mb = need.cpus - room.cpus[node], need.memory_mb - room.memory_mb[node]
    stop: list[Job] = []
    for job in borrowers:
        if lack <= 0 and lack_cpus <= 0 and lack_mb <= 0:
            break
        stop.append(job)
        held = job.ask.need
        lack, lack_cpus, lack_mb = lack - _held(job, node), lack_cpus - held.cpus, lack_mb - held.memory_mb
    for job in stop[-2::-1]:  # the last was needed; of the others some may be superfluous now
        part, held = _held(job, node), job.ask.need
        if lack + part <= 0 and lack_cpus + held.cpus <= 0 and lack_mb + held.memory_mb <= 0:
            stop.remove(job)
            lack, lack_cpus, lack_mb = lack + part, lack_cpus + held.cpus, lack_mb + held.memory_mb
    worst, lost, victims = FREE[0], 0.0, 0
    for job in stop:
        price = loss[job]
        worst = max(worst, price[0])
        lost += price[1]
        victims += price[2]
    return (worst, lost, victims, 0.0), node, stop


def _held(job: Job, node: int) -> int:
    assert job.places is not None
    for number, gpus in job.places:
        if number == node:
            return gpus
    return 0


def _needed(engine: Engine, ask: Ask, among: Nodes, room: Room, dearest_first: list[Job]) -> list[Job]:
    """Of those whose GPUs are given back in `room`, who cannot be spared."""
    needed = []
    for victim in dearest_first:
        places = victim.places or ()
        room.take(places, victim.ask.need)
        if engine.place(room, ask.need, among) is None:
            room.give(places, victim.ask.need)
            needed.append(victim)
    return needed
