"""What is free for a request on the nodes with its hardware."""

import pytest

from scheduling.core.free_capacity import FreeCapacity, free_capacity
from scheduling.engine.cluster import ClusterSnapshot, NodeView, ResourceRequest
from tests.make import NOON


def node(number, free, *, cpus=64, memory_mb=1000, model="a100"):
    return NodeView(
        id=number,
        name=f"n{number}",
        gpus=8,
        free_gpus=tuple(range(free)),
        free_cpus=cpus,
        free_memory_mb=memory_mb,
        gpu_model=model,
        nic_type="ib",
    )


NODES = (node(1, 8), node(2, 4), node(3, 8, cpus=4), node(4, 8, memory_mb=10), node(5, 8, model="h100"))


@pytest.mark.parametrize(
    ("need", "expected"),
    [
        (ResourceRequest(gpus=8, cpus=8), (5, 40, 36, 3)),
        (ResourceRequest(gpus=4, cpus=8, memory_mb=100), (5, 40, 36, 3)),
        (ResourceRequest(gpus=8, gpu_model="a100"), (4, 32, 28, 3)),
        (ResourceRequest(gpus=8, gpu_model="h100"), (1, 8, 8, 1)),
        (ResourceRequest(gpus=1, nic_type="roce"), (0, 0, 0, 0)),
    ],
)
def test_only_nodes_with_the_hardware_count_and_only_free_ones_fit(need, expected):
    nodes, gpus, free_gpus, fitting = expected

    found = free_capacity(ClusterSnapshot(now=NOON, nodes=NODES), need)

    assert found == FreeCapacity(nodes=nodes, gpus=gpus, free_gpus=free_gpus, fitting=fitting)
