"""FGD (Weng et al., ATC'23): how many GPUs of a cluster can be allocated when jobs share GPUs.

The experiment of the authors' artefact: pods of the openb trace, in random order and with random repetitions until they
request 130 % of the GPUs, arrive at 1,213 empty nodes with 6,212 GPUs. A pod that does not fit is dropped, and none
ends. The figure is the share of the GPUs that is allocated at the end, as the mean of ten seeds. As in the artefact,
each placement knows how often each request occurs: the most frequent ones, which make up 95 % of the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import mean

from bench.zoo_systems.artefacts import Row, read_csv, repository
from bench.zoo_systems.placements import BestFitPlacement, RandomPlacement
from jobs.core.gpu_shares import WHOLE_GPU
from scheduling.engine.cluster import NodeView, ResourceRequest
from scheduling.engine.placement import PlacementFunction
from scheduling.engine.placements.gradient import GradientPlacement
from scheduling.engine.resources import ALL_NODES, NodeResources

REPOSITORY = "kubernetes-scheduler-simulator"
LOAD = 1.3
SEEDS = range(42, 52)
TYPICAL_SHARE = 0.95
EXPECTED = "experiments/analysis/expected_results/analysis_allo_discrete.csv"


def compare(artefacts: Path) -> Iterator[Row]:
    repo = repository(artefacts, REPOSITORY)
    nodes = [_node(number, row) for number, row in enumerate(read_csv(repo, "data/csv/openb_node_list_gpu_node.csv"))]
    pods = [_request(row) for row in read_csv(repo, "data/csv/openb_pod_list_default.csv")]
    expected = read_csv(repo, EXPECTED)
    for name, policy in (("Random", "01-Random"), ("BestFit", "05-BestFit"), ("FGD", "06-FGD")):
        same = [row for row in expected if (row["workload"], row["sc_policy"]) == ("openb_pod_list_default", policy)]
        yield Row(
            system="FGD" if name == "FGD" else f"FGD: {name}",
            workload="openb, default pods, 10 seeds",
            metric="GPUs allocated (%)",
            theirs=mean(float(row["130"]) for row in same),
            ours=mean(allocated_percent(nodes, pods, name, seed) for seed in SEEDS),
        )


def allocated_percent(nodes: list[NodeView], pods: list[ResourceRequest], name: str, seed: int) -> float:
    resources = NodeResources(nodes)
    place = _placement(name, pods, seed)
    for need in arriving_pods(pods, LOAD * resources.whole[0] * WHOLE_GPU, Random(seed)):
        if places := place(resources, need, ALL_NODES):
            resources.take(places, need)
    left = resources.free_gpus * WHOLE_GPU + sum(
        free for shared in resources.shared.values() for free in shared if free < WHOLE_GPU
    )
    return 100 * (1 - left / (resources.whole[0] * WHOLE_GPU))


def _placement(name: str, pods: list[ResourceRequest], seed: int) -> PlacementFunction:
    if name == "FGD":
        return GradientPlacement(typical_requests(pods))
    return BestFitPlacement() if name == "BestFit" else RandomPlacement(Random(seed))


def arriving_pods(pods: list[ResourceRequest], total: float, dice: Random) -> Iterator[ResourceRequest]:
    """All pods in random order, then random ones, until together they request `total` thousandths of a GPU."""
    requested = sum(map(_thousandths, pods))
    yield from dice.sample(pods, len(pods))
    while (requested := requested + _thousandths(pod := dice.choice(pods))) <= total:
        yield pod


def typical_requests(pods: list[ResourceRequest]) -> dict[ResourceRequest, float]:
    typical: dict[ResourceRequest, float] = {}
    # The artefact compares requests without their memory
    for need, count in Counter(_without_memory(pod) for pod in pods).most_common():
        if sum(typical.values()) >= TYPICAL_SHARE * len(pods):
            break
        typical[need] = count
    return typical


def _without_memory(need: ResourceRequest) -> ResourceRequest:
    return ResourceRequest(gpus=need.gpus, gpu_milli=need.gpu_milli, cpus=need.cpus, gpu_model=need.gpu_model)


def _thousandths(need: ResourceRequest) -> int:
    return need.gpus * WHOLE_GPU + need.gpu_milli


def _node(number: int, row: dict[str, str]) -> NodeView:
    return NodeView(
        id=number,
        name=row["sn"],
        gpus=int(row["gpu"]),
        free_gpus=tuple(range(int(row["gpu"]))),
        free_cpus=int(row["cpu_milli"]),
        free_memory_mb=int(row["memory_mib"]),
        gpu_model=row["model"],
    )


def _request(row: dict[str, str]) -> ResourceRequest:
    """CPUs are counted in thousandths, because some pods request less than one."""
    gpus, thousandths = int(row["num_gpu"]), int(row["gpu_milli"] or 0)
    is_share = gpus == 1 and thousandths < WHOLE_GPU
    return ResourceRequest(
        gpus=0 if is_share else gpus,
        gpu_milli=thousandths if is_share else 0,
        cpus=int(row["cpu_milli"]),
        memory_mb=int(row["memory_mib"]),
        gpu_model=row["gpu_spec"],
    )
