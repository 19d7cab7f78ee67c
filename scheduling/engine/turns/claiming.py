"""Owners preempt borrowers. A borrower is a preemptible job, which runs on GPUs that owners leave idle.

`claim_placement` places jobs if `PolicyRules.claims` is set: on free GPUs first, else on GPUs of borrowers that it
stops. `Engine.owner_resources` has the resources as if no borrower ran, so one lookup tells whether preemption can help
at all. A job is stopped only if the claimant fits afterwards and does not fit without its GPUs.

Choice of victims: on each node, jobs that are already stopping, then lower classes, then those that lose the fewest
GPU-seconds since their last checkpoint (a restart counts as one minute of work), until the share fits. Then the nodes
where this is cheapest, with the fewest victims. The choice per node is greedy, not optimal; victims that turn out to be
unnecessary are spared. An owner may claim from every borrower, a borrower only from borrowers of a lower class.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush

from scheduling.engine.cluster import ResourceRequest
from scheduling.engine.engine import Engine
from scheduling.engine.job import EngineJob, RequestGroup
from scheduling.engine.placement import PER_NODE_PLACEMENTS
from scheduling.engine.resources import ALL_NODES, GpuPlacement, NodeResources, NodeSet

RESTART_S = 60.0
# Highest class among the victims, GPU-seconds lost, number of victims, negative start time (ties: newest job first)
PreemptionPrice = tuple[float, float, int, float]
NO_COST: PreemptionPrice = (float("-inf"), 0.0, 0, 0.0)


def fits_with_claims(engine: Engine, job: EngineJob, among: NodeSet) -> bool:
    """Whether the job fits on these nodes, either now or after preempting borrowers."""
    need = job.group.need
    if engine.place(engine.resources, need, among) is not None:
        return True
    return _may_claim(engine, job) and engine.place(_without_borrowers(engine, job), need, among) is not None


def claim_placement(engine: Engine, job: EngineJob, among: NodeSet, now: float) -> GpuPlacement | None:
    """A placement for the job, free now. Stops borrowers if needed; None if the job does not fit even then."""
    need = job.group.need
    places = engine.place(engine.resources, need, among)
    if places is not None or not _may_claim(engine, job):
        return places
    if engine.place(_without_borrowers(engine, job), need, among) is None:
        return None
    prices = _claim_prices(engine, job, now)
    for victim in _victims(engine, job, among, prices):
        victim.preempted_by = job
        prices.leave(victim)
        engine.stop_job(victim, now)
    return engine.place(engine.resources, need, among)


def _victims(engine: Engine, job: EngineJob, among: NodeSet, prices: ClaimPrices) -> list[EngineJob]:
    """The jobs to stop so that the job fits. It must fit if all claimable jobs are stopped."""
    loss = prices.loss
    chosen, enough = _cheapest_victims(engine, job, among, prices)
    alone = all(len(victim.places or ()) == 1 and not victim.group.need.gpu_milli for victim in chosen)
    if enough and alone and engine.place in PER_NODE_PLACEMENTS and not engine.resources.counts_power:
        return chosen  # already minimal on each node, and on no more nodes than needed
    resources = engine.resources.copy()
    for victim in chosen:
        resources.give(victim.places or (), victim.group.need)
    if engine.place(resources, job.group.need, among) is None:  # the placement needs more than enough nodes
        others = [borrower for borrower in loss if borrower not in set(chosen)]
        chosen += others
        for victim in others:
            resources.give(victim.places or (), victim.group.need)
    elif alone:
        return chosen
    return required_victims(engine, job.group, among, resources, sorted(chosen, key=loss.__getitem__, reverse=True))


def claimable_jobs(engine: Engine, job: EngineJob) -> Iterable[EngineJob]:
    """The running jobs that this job may preempt."""
    if not _may_claim(engine, job):
        return ()
    borrowers = engine.borrowers.jobs.values()
    if not job.group.borrows:
        return borrowers
    return [other for other in borrowers if other.stopping or other.submitted_band > job.submitted_band]


def _may_claim(engine: Engine, job: EngineJob) -> bool:
    return bool(engine.borrowers.jobs) and (not job.group.borrows or engine.borrowers.priority_classes_differ)


def _without_borrowers(engine: Engine, job: EngineJob) -> NodeResources:
    """The resources as if all jobs that this job may preempt had stopped."""
    if not job.group.borrows:
        return engine.owner_resources
    resources = engine.resources.copy()
    for other in claimable_jobs(engine, job):
        resources.give(other.places or (), other.group.need)
    return resources


def preemption_loss(engine: Engine, job: EngineJob, now: float) -> PreemptionPrice:
    """The price of stopping the job now."""
    if job.stopping:
        return NO_COST
    costs = engine.preemption_costs
    restart_s = costs.fixed_s(job) if costs.fixed_s else RESTART_S
    return -job.submitted_band, job.group.gpus * (costs.unsaved_work_s(job, now) + restart_s), 1, -job.began


class ClaimPrices:
    """The loss of each claimable job, and the cheapest offers per node.

    A price is valid until its node changes, so many claims in one turn recompute only a few nodes.
    """

    def __init__(self, engine: Engine, borrowers: Iterable[EngineJob], now: float) -> None:
        # Equal losses: in the order of their starts, whether the engine has just adopted the jobs or started them
        in_order = sorted(borrowers, key=lambda borrower: (borrower.began, borrower.number))
        self.loss = {borrower: preemption_loss(engine, borrower, now) for borrower in in_order}
        self.size = len(engine.borrowers.jobs)
        self._on_node: dict[int, list[EngineJob]] = defaultdict(list)
        self._stalls: dict[tuple[int, int, int], _OfferHeap] = {}  # by share: GPUs, CPUs, memory on one node
        for borrower in sorted(self.loss, key=self.loss.__getitem__):
            for node, _ in borrower.places or ():
                self._on_node[node].append(borrower)

    def leave(self, job: EngineJob) -> None:
        """Remove a job that was stopped."""
        self.size -= 1
        del self.loss[job]
        for node, _ in job.places or ():
            self._on_node[node].remove(job)

    def mark_nodes_stale(self, places: GpuPlacement) -> None:
        """A job started or left on these nodes, so their prices are stale."""
        for stall in self._stalls.values():
            for node, _ in places:
                stall.stale.add(node)

    def cheapest_offers(
        self,
        resources: NodeResources,
        owner_resources: NodeResources,
        need: ResourceRequest,
        gpus: int,
        count: int,
        wanted: NodeSet,
    ) -> list[NodeOffer]:
        """Up to `count` offers for a share, the cheapest first, on nodes of the set `wanted`."""
        share = gpus, need.cpus, need.memory_mb
        if (stall := self._stalls.get(share)) is None:
            stall = self._stalls[share] = _OfferHeap(len(resources.nodes))
        for node in stall.stale:
            fits = _share_fits(owner_resources, node, gpus, need)
            stall.put(node, _node_offer(resources, node, gpus, need, self._on_node[node], self.loss) if fits else None)
        stall.stale.clear()
        return stall.cheapest_offers(count, wanted)


class _OfferHeap:
    """Offers for one kind of share, the cheapest first.

    Outdated offers are dropped when they reach the top. Offers on nodes that are not wanted are set aside until they
    are.
    """

    def __init__(self, nodes: int) -> None:
        self.stale = set(range(nodes))  # to be priced again before the next query
        self._heap: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        self._aside: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        self._wanted = ALL_NODES  # the wanted nodes when offers were set aside
        self._newest: dict[int, int] = {}  # node -> sequence number of its valid offer
        self._put = 0

    def put(self, node: int, offer: NodeOffer | None) -> None:
        self._newest[node] = self._put = self._put + 1
        if offer:
            price, _, victims = offer
            heappush(self._heap, (price, node, self._put, victims))

    def cheapest_offers(self, count: int, wanted: NodeSet) -> list[NodeOffer]:
        self._set_wanted_nodes(wanted)
        heap = self._heap
        bought: list[tuple[PreemptionPrice, int, int, list[EngineJob]]] = []
        offers: list[NodeOffer] = []
        while heap and len(offers) < count:
            price, node, which, victims = heap[0]
            is_valid = self._newest[node] == which
            if is_valid and wanted >> node & 1:
                offers.append((price, node, victims))
                if len(offers) < count:
                    bought.append(heappop(heap))
                continue
            entry = heappop(heap)
            if is_valid:
                self._aside.append(entry)
        for entry in bought:
            heappush(heap, entry)
        return offers

    def _set_wanted_nodes(self, wanted: NodeSet) -> None:
        if wanted & ~self._wanted:
            for entry in self._aside:
                heappush(self._heap, entry)
            self._aside.clear()
        self._wanted = wanted


def _claim_prices(engine: Engine, job: EngineJob, now: float) -> ClaimPrices:
    """The prices for this job. For owners they are shared by all claims of a turn."""
    if job.group.borrows:
        return ClaimPrices(engine, claimable_jobs(engine, job), now)
    borrowers = engine.borrowers
    prices: ClaimPrices | None = borrowers.prices
    if prices is None or prices.size != len(borrowers.jobs):
        prices = borrowers.prices = ClaimPrices(engine, borrowers.jobs.values(), now)
    return prices


def _cheapest_victims(
    engine: Engine, job: EngineJob, among: NodeSet, prices: ClaimPrices
) -> tuple[list[EngineJob], bool]:
    """The victims on the nodes where the shares cost least, and whether there are enough such nodes."""
    need, resources, owner_resources = job.group.need, engine.resources, _without_borrowers(engine, job)
    chosen: dict[EngineJob, None] = {}
    taken = 0
    enough = True
    if need.mig_profile:
        among &= resources.nodes_with_slice(need)  # whoever stops does not free any
    # A share that fits beside no other one needs a GPU of its own
    for gpus, count in ((need.most_gpus, need.nodes), (need.rest, int(need.rest > 0))):
        if count:
            offers = prices.cheapest_offers(resources, owner_resources, need, gpus, count, among & ~taken)
            enough &= len(offers) == count
            for _, node, victims in offers:
                taken |= 1 << node
                chosen.update(dict.fromkeys(victims))
    return list(chosen), enough


NodeOffer = tuple[PreemptionPrice, int, list[EngineJob]]


def _share_fits(resources: NodeResources, node: int, gpus: int, need: ResourceRequest) -> bool:
    if resources.free[node] < gpus or resources.cpus[node] < need.cpus or resources.memory_mb[node] < need.memory_mb:
        return False
    return bool(resources.usable >> node & 1)


def _node_offer(
    resources: NodeResources,
    node: int,
    gpus: int,
    need: ResourceRequest,
    borrowers: list[EngineJob],
    loss: dict[EngineJob, PreemptionPrice],
) -> NodeOffer:
    """The cheapest way to make a share fit on this node. It must fit if all borrowers stop."""
    lack = gpus - resources.free[node]
    lack_cpus, lack_mb = need.cpus - resources.cpus[node], need.memory_mb - resources.memory_mb[node]
    stop: list[EngineJob] = []
    for job in borrowers:
        if lack <= 0 and lack_cpus <= 0 and lack_mb <= 0:
            break
        stop.append(job)
        held = job.group.need
        lack, lack_cpus, lack_mb = lack - _gpus_on_node(job, node), lack_cpus - held.cpus, lack_mb - held.memory_mb
    for job in stop[-2::-1]:  # the last one was needed; some of the others may be unnecessary now
        part, held = _gpus_on_node(job, node), job.group.need
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
    """The whole GPUs that the job holds there."""
    assert job.places is not None
    if job.group.need.gpu_milli:
        return 0
    for number, gpus in job.places:
        if number == node:
            return gpus
    return 0


def required_victims(
    engine: Engine, group: RequestGroup, among: NodeSet, resources: NodeResources, dearest_first: list[EngineJob]
) -> list[EngineJob]:
    """The victims that cannot be spared. `resources` has the resources after all of them stopped."""
    needed = []
    for victim in dearest_first:
        places = victim.places or ()
        resources.take(places, victim.group.need)
        if engine.place(resources, group.need, among) is None:
            resources.give(places, victim.group.need)
            needed.append(victim)
    return needed
