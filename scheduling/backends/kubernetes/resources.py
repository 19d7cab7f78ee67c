"""GPUs among the resources of nodes and pods. Pure.

A resource is counted as GPUs if it is one of a vendor's (`nvidia.com/gpu`, `amd.com/gpu`), a MIG slice
(`nvidia.com/mig-3g.20gb`, which counts as one device), or one of `ACCELERATORS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from jobs.core.gpu_shares import MIG_PROFILE, MIG_RESOURCE_PREFIX

from .fields import mapping_at, mappings_at, parse_quantity

MAX_GPUS = 4096  # of one node or pod; counts are untrusted input
ACCELERATORS = frozenset(
    {"gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron"}
)
MAX_CPUS, MAX_MEMORY_MB = 2**31 - 1, 2**50  # as for Slurm
MIG_PREFIX = "mig-"


def is_gpu(resource: str) -> bool:
    vendor, slash, name = resource.partition("/")
    return bool(slash and vendor) and (name == "gpu" or name.startswith(MIG_PREFIX) or resource in ACCELERATORS)


def gpu_counts(resources: Mapping[str, Any]) -> dict[str, int]:
    """The GPUs in `allocatable`, `requests` or `limits`, by resource."""
    counts = {str(name): int(parse_quantity(value)) for name, value in resources.items() if is_gpu(str(name))}
    return {name: min(count, MAX_GPUS) for name, count in counts.items() if count > 0}


def gpu_total(resources: Mapping[str, Any]) -> int:
    return min(sum(gpu_counts(resources).values()), MAX_GPUS)


def mig_slices(resources: Mapping[str, Any]) -> dict[str, int]:
    """The number of MIG slices by profile: `3g.20gb`. Empty if there are impossibly many."""
    counts = {
        name.removeprefix(MIG_RESOURCE_PREFIX): count
        for name, count in gpu_counts(resources).items()
        if name.startswith(MIG_RESOURCE_PREFIX)
    }
    slices = {profile: count for profile, count in counts.items() if MIG_PROFILE.fullmatch(profile)}
    return slices if sum(slices.values()) <= MAX_GPUS else {}


def memory_mb(value: object) -> int:
    return limited_memory_mb(parse_quantity(value))


def cpu_count(value: object) -> int:
    return limited_cpus(parse_quantity(value))


def limited_cpus(cpus: float) -> int:
    return max(min(int(cpus), MAX_CPUS), 0)


def limited_memory_mb(size: float) -> int:
    return max(min(int(size / 2**20), MAX_MEMORY_MB), 0)


class PodResources:
    """What a pod spec requests: its containers together, or one init container if that needs more."""

    def __init__(self, spec: object) -> None:
        containers = [_requested(container) for container in mappings_at(spec, "containers")]
        inits = [_requested(container) for container in mappings_at(spec, "initContainers")]
        self.gpus = min(max(sum(map(gpu_total, containers)), *map(gpu_total, inits), 0), MAX_GPUS)
        self.mig_slices = _largest_slices(containers, inits)
        self.cpus = _largest("cpu", containers, inits)
        self.memory_mb = limited_memory_mb(_largest("memory", containers, inits))


def _requested(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Requests, with limits where no request is given: the API server sets the former to the latter for pods, but not
    for templates."""
    return {**mapping_at(container, "resources", "limits"), **mapping_at(container, "resources", "requests")}


def _largest_slices(containers: list[Mapping[str, Any]], inits: list[Mapping[str, Any]]) -> dict[str, int]:
    together: Counter[str] = Counter()
    for resources in containers:
        together.update(mig_slices(resources))
    for resources in inits:
        together |= Counter(mig_slices(resources))
    return dict(together)


def _largest(name: str, containers: list[Mapping[str, Any]], inits: list[Mapping[str, Any]]) -> float:
    together = sum(parse_quantity(resources.get(name)) for resources in containers)
    return max([together, *(parse_quantity(resources.get(name)) for resources in inits)])
