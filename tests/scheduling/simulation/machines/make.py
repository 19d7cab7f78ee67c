"""Small requests of jobs with defaults, and the names of the nodes of the cluster "seren"."""

from __future__ import annotations

from typing import Any

from scheduling.simulation.machines.values import SimulatedJobRequest

NOW = 1_800_000_000.0
NODES = tuple(f"seren-00{i}" for i in range(1, 5))


def request(*nodes: str, seconds: float = 100.0, end: str = "COMPLETED", **changed: Any) -> SimulatedJobRequest:
    plain: dict[str, Any] = {
        "name": "train",
        "user": "ada",
        "script": "#!/bin/bash\ntrue\n",
        "workdir": "/tmp",
        "environment": {"SIM_DURATION_S": str(seconds), "SIM_END": end, "ACME_KIND": "pretrain"},
        "required_nodes": nodes,
        "node_count": max(len(nodes), 1),
        "gpus_per_node": 4,
        "cpus_per_node": 8,
    }
    return SimulatedJobRequest(**{**plain, **changed})
