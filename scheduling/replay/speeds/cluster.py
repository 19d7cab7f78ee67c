"""The nodes of a replay with speed tables, as the option writes them: `V100=4x8,K80=2x4`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from scheduling.replay.speeds.workload import MAX_GPUS, InvalidWorkload

GROUP = re.compile(r"(?P<gpu_type>[^=,]+)=(?P<nodes>\d{1,9})x(?P<node_gpus>\d{1,9})")


@dataclass(frozen=True, kw_only=True)
class TypeNodes:
    """Equal nodes with GPUs of one type."""

    gpu_type: str
    nodes: int
    node_gpus: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus


def parse_nodes(text: str) -> tuple[TypeNodes, ...]:
    groups = tuple(_group(part.strip()) for part in text.split(","))
    names = [group.gpu_type for group in groups]
    if len(set(names)) < len(names):
        raise InvalidWorkload(f"nodes: {text!r} names a GPU type twice.")
    if sum(group.gpus for group in groups) > MAX_GPUS:
        raise InvalidWorkload(f"nodes: {text!r} are more than {MAX_GPUS:,} GPUs.")
    return groups


def _group(text: str) -> TypeNodes:
    found = GROUP.fullmatch(text)
    if found is None or not int(found["nodes"]) or not int(found["node_gpus"]):
        raise InvalidWorkload(f"nodes: {text[:40]!r} is not TYPE=NODESxGPUS, such as A100=4x8.")
    return TypeNodes(gpu_type=found["gpu_type"].strip(), nodes=int(found["nodes"]), node_gpus=int(found["node_gpus"]))
