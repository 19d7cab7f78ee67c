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

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine, EngineJob, RequestGroup
from scheduling.engine.placement import PER_NODE_PLACEMENTS
from scheduling.engine.room import ALL_NODES, GpuPlacement, NodeResources, NodeSet

RESTART_S = 60.0
# The highest class among the victims, GPU-seconds lost, how many stop, and since when: of equals the last to come
PreemptionPrice = tuple[float, float, int, float]
NO_COST: PreemptionPrice = (float("-inf"), 0.0, 0, 0.0)


def fits_with_claims(engine: Engine, job: EngineJob, among: NodeSet) -> bool:
    """Whether it could start, now or when borrowers have stopped for it."""
    need = job.ask.need
    if engine.place(engine.room, need, among) is not None:
        return True
    return _may_claim(engine, job) and engine.place(_without_borrowers(engine, job), need, among) is not None


def claim_placement(engine: Engine, job: EngineJob, among: NodeSet, now: float) -> GpuPlacement | None:
    """Its places, free by now; who had to stop for that has stopped."""
    need = job.ask.need
    places = engine.place(engine.room, need, among)
    if places is not None or not _may_claim(engine, job):
        return places
    if engine.place(_without_borrowers(engine, job), need, among) is None:
        return None
    market = _claim_prices(engine, job, now)
    for victim in _victims(engine, job, among, market):
        victim.gave_way_to = job
        market.leave(victim)
        engine.stop_job(victim, now)
    return engine.place(engine.room, need, among)


def _victims(engine: Engine, job: EngineJob, among: NodeSet, market: ClaimPrices) -> list[EngineJob]:
    """Who must stop so that it fits; it is known to fit if all do whom it may claim from."""
    loss = market.loss
    chosen, enough = _cheapest_victims(engine, job, among, market)
    alone = all(len(victim.places or ()) == 1 for victim in chosen)
    if enough and alone and engine.place in PER_NODE_PLACEMENTS:
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
    return _required_victims(engine, job.ask, among, room, sorted(chosen, key=loss.__getitem__, reverse=True))


def claimable_jobs(engine: Engine, job: EngineJob) -> Iterable[EngineJob]:
    """Who gives way to it."""
    if not _may_claim(engine, job):
        return ()
    if not job.ask.borrows:
        return engine.borrowers.values()
    return [other for other in engine.borrowers.values() if other.stopping or other.asked_band > job.asked_band]


def _may_claim(engine: Engine, job: EngineJob) -> bool:
    return bool(engine.borrowers) and (not job.ask.borrows or engine.priority_classes_differ)


def _without_borrowers(engine: Engine, job: EngineJob) -> NodeResources:
    if not job.ask.borrows:
        return engine.firm
    room = engine.room.copy()
    for other in claimable_jobs(engine, job):
        room.give(other.places or (), other.ask.need)
    return room


def _loss(engine: Engine, job: EngineJob, now: float) -> PreemptionPrice:
    if job.stopping:
        return NO_COST
    restart_s = engine.cost_s(job) if engine.cost_s else RESTART_S
    return -job.asked_band, job.ask.gpus * (engine.unsaved_work_s(job, now) + restart_s), 1, -job.began


class ClaimPrices:
    """What those who may be claimed from would lose, and by node who costs least. A price holds while its node is as it
    was, so many claims in one turn look at few nodes anew."""

    def __init__(self, engine: Engine, borrowers: Iterable[EngineJob], now: float) -> None:
        self.loss = {borrower: _loss(engine, borrower, now) for borrower in borrowers}
        self.size = len(engine.borrowers)
        self._on_node: dict[int, list[EngineJob]] = defaultdict(list)
        self._stalls: dict[tuple[int, int, int], _OfferHeap] = {}  # by what a share takes of a node
        for borrower in sorted(self.loss, key=self.loss.__getitem__):
            for node, _ in borrower.places or ():
                self._on_node[node].append(borrower)

    def leave(self, job: EngineJob) -> None:
        self.size -= 1
        del self.loss[job]
        for node, _ in job.places or ():
            self._on_node[node].remove(job)

    def moved(self, places: GpuPlacement) -> None:
        """Somebody began or left there."""
        for stall in self._stalls.values():
            for node, _ in places:
                stall.stale.add(node)

    def cheapest_offers(
        self, room: NodeResources, firm: NodeResources, need: ResourceRequest, gpus: int, count: int, wanted: NodeSet
    ) -> list[NodeOffer]:
        """Of the nodes that are wanted so many, where a share of so many GPUs costs least."""
        share = gpus, need.cpus, need.memory_mb
        if (stall := self._stalls.get(share)) is None:
            stall = self._stalls[share] = _OfferHeap(len(room.nodes))
        for node in stall.stale:
            there = _share_fits(firm, node, gpus, need)
            stall.put(node, _node_offer(room, node, gpus, need, self._on_node[node], self.loss) if there else None)
        stall.stale.clear()
        return stall.cheapest_offers(count, wanted)


class _OfferHeap:
    """The offers for one kind of share, the cheapest first. What is out of date is thrown away when it comes up, and
    what lies on nodes that are not wanted is laid aside until they are."""

    def __init__(self, nodes: int) -> None:
        self.stale = set(range(nodes))  # to be priced before anybody buys
        self._heap: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        self._aside: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        self._wanted = ALL_NODES  # when these were laid there
        self._newest: dict[int, int] = {}  # node -> which of its offers holds
        self._put = 0

    def put(self, node: int, offer: NodeOffer | None) -> None:
        self._newest[node] = self._put = self._put + 1
        if offer:
            price, _, there = offer
            heappush(self._heap, (price, node, self._put, there))

    def cheapest_offers(self, count: int, wanted: NodeSet) -> list[NodeOffer]:
        self._set_wanted_nodes(wanted)
        heap = self._heap
        bought: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        found: list[NodeOffer] = []
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

    def _set_wanted_nodes(self, wanted: NodeSet) -> None:
        if wanted & ~self._wanted:
            for entry in self._aside:
                heappush(self._heap, entry)
            self._aside.clear()
        self._wanted = wanted


def _claim_prices(engine: Engine, job: EngineJob, now: float) -> ClaimPrices:
    if job.ask.borrows:
        return ClaimPrices(engine, claimable_jobs(engine, job), now)
    market: ClaimPrices | None = engine.market
    if market is None or market.size != len(engine.borrowers):
        market = engine.market = ClaimPrices(engine, engine.borrowers.values(), now)
    return market


def _cheapest_victims(
    engine: Engine, job: EngineJob, among: NodeSet, market: ClaimPrices
) -> tuple[list[EngineJob], bool]:
    """The victims on the nodes where the shares of this wish cost least, and whether there were enough nodes."""
    need, room, firm = job.ask.need, engine.room, _without_borrowers(engine, job)
    chosen: dict[EngineJob, None] = {}
    taken = 0
    enough = True
    for gpus, count in ((need.gpus, need.nodes), (need.rest, int(need.rest > 0))):
        if count:
            offers = market.cheapest_offers(room, firm, need, gpus, count, among & ~taken)
            enough &= len(offers) == count
            for _, node, there in offers:
                taken |= 1 << node
                chosen.update(dict.fromkeys(there))
    return list(chosen), enough


NodeOffer = tuple[PreemptionPrice, int, list[EngineJob]]


def _share_fits(room: NodeResources, node: int, gpus: int, need: ResourceRequest) -> bool:
    if room.free[node] < gpus or room.cpus[node] < need.cpus or room.memory_mb[node] < need.memory_mb:
        return False
    return bool(room.usable >> node & 1)


def _node_offer(
    room: NodeResources,
    node: int,
    gpus: int,
    need: ResourceRequest,
    borrowers: list[EngineJob],
    loss: dict[EngineJob, PreemptionPrice],
) -> NodeOffer:
    """What it costs to make a share fit on this node, where it does if all borrowers stop."""
    lack = gpus - room.free[node]
    lack_cpus, lack_mb = need.cpus - room.cpus[node], need.memory_mb - room.memory_mb[node]
    stop: list[EngineJob] = []
    for job in borrowers:
        if lack <= 0 and lack_cpus <= 0 and lack_mb <= 0:
            break
        stop.append(job)
        held = job.ask.need
        lack, lack_cpus, lack_mb = lack - _gpus_on_node(job, node), lack_cpus - held.cpus, lack_mb - held.memory_mb
    for job in stop[-2::-1]:  # the last was needed; of the others some may be superfluous now
        part, held = _gpus_on_node(job, node), job.ask.need
        if lack + part <= 0 and lack_cpus + held.cpus <= 0 and lack_mb + held.memory_mb <= 0:
            stop.remove(job)
            lack, lack_cpus, lack_mb = lack + part, lack_cpus + held.cpus, lack_mb + held.memory_mb
    worst, lost, victims = NO_COST[0], 0.0, 0
    for job in stop:
        price = loss[job]
        worst = max(worst, price[0])
        lost += price[1]
        victims += price[2]
    return (worst, lost, victims, 0.0), node, stop


def _gpus_on_node(job: EngineJob, node: int) -> int:
    assert job.places is not None
    for number, gpus in job.places:
        if number == node:
            return gpus
    return 0


def _required_victims(
    engine: Engine, ask: RequestGroup, among: NodeSet, room: NodeResources, dearest_first: list[EngineJob]
) -> list[EngineJob]:
    """Of those whose GPUs are given back in `room`, who cannot be spared."""
    needed = []
    for victim in dearest_first:
        places = victim.places or ()
        room.take(places, victim.ask.need)
        if engine.place(room, ask.need, among) is None:
            room.give(places, victim.ask.need)
            needed.append(victim)
    return needed
