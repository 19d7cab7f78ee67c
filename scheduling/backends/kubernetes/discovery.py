"""Which kinds of workloads a cluster serves, by its own discovery documents and never by its version. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .fields import mapping_at, mappings_at, text_at

# API group → kinds that own pods, or own their owners. Deployments and the like count if they hold GPUs.
WORKLOAD_KINDS: dict[str, tuple[str, ...]] = {
    "apps": ("Deployment", "ReplicaSet", "StatefulSet"),
    "batch": ("Job",),
    "jobset.x-k8s.io": ("JobSet",),
    "leaderworkerset.x-k8s.io": ("LeaderWorkerSet",),
    "kubeflow.org": ("PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "PaddleJob", "JAXJob"),
    "trainer.kubeflow.org": ("TrainJob",),
    "ray.io": ("RayJob", "RayCluster", "RayService"),
    "batch.volcano.sh": ("Job",),
}
# Those whose objects attempts of Acme have
ATTEMPT_KINDS: dict[str, tuple[str, ...]] = {"batch": ("Job",), "jobset.x-k8s.io": ("JobSet",)}
QUOTA_GROUP, QUOTA_KIND = "kueue.x-k8s.io", "Workload"
NEEDED_VERBS = frozenset({"list", "watch"})
PATH_PART = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # groups, versions and resources; untrusted input


@dataclass(frozen=True, kw_only=True)
class ServedResource:
    """A collection that may be listed and watched."""

    group: str
    kind: str
    path: str


def served_group_versions(groups: object) -> dict[str, list[str]]:
    """The versions of each group in an APIGroupList, the preferred one first."""
    served: dict[str, list[str]] = {}
    for group in mappings_at(groups, "groups"):
        name, preferred = text_at(group, "name"), text_at(group, "preferredVersion", "version")
        versions = [text_at(entry, "version") for entry in mappings_at(group, "versions")]
        ordered = sorted(filter(PATH_PART.fullmatch, versions), key=lambda version: version != preferred)
        if PATH_PART.fullmatch(name) and ordered:
            served[name] = ordered
    return served


def served_resources(
    group: str, version: str, resources: Mapping[str, Any], wanted: Collection[str]
) -> list[ServedResource]:
    """The wanted kinds in an APIResourceList."""
    found = []
    for entry in mappings_at(resources, "resources"):
        name, kind, verbs = text_at(entry, "name"), text_at(entry, "kind"), entry.get("verbs")
        offers = isinstance(verbs, list) and {verb for verb in verbs if isinstance(verb, str)} >= NEEDED_VERBS
        if kind in wanted and offers and PATH_PART.fullmatch(name):
            found.append(ServedResource(group=group, kind=kind, path=f"/apis/{group}/{version}/{name}"))
    return found


def server_version(answer: object) -> str:
    return text_at(mapping_at(answer), "gitVersion", largest=40) or "unknown"
