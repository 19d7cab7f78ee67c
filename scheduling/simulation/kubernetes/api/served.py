"""What one cluster serves: the resources of its version of Kubernetes, and those of CRDs that are installed. Pure.

`1.20` stands for an old cluster as clients see it: fields of later versions are dropped without a word, and disruption
budgets have version `policy/v1beta1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from .resources import BUDGETS, JOB_SET, RESOURCES, ResourceType

OLD, NEW = "1.20", "1.33"
VERSIONS = (NEW, OLD)
PATCH_LEVELS = {OLD: 2, NEW: 4}


@dataclass(frozen=True, kw_only=True)
class ApiGroup:
    """A group with the resources of its only version."""

    name: str
    version: str
    resources: tuple[ResourceType, ...] = ()


@dataclass(frozen=True)
class ServedApi:
    version: str = NEW
    job_sets: bool = False

    @property
    def is_old(self) -> bool:
        return self.version == OLD

    @property
    def git_version(self) -> str:
        return f"v{self.version}.{PATCH_LEVELS[self.version]}-simulated"

    @cached_property
    def resources(self) -> tuple[ResourceType, ...]:
        found = (*RESOURCES, JOB_SET) if self.job_sets else RESOURCES
        return tuple(_older(one) for one in found) if self.is_old else found

    @cached_property
    def _by_id(self) -> Mapping[str, ResourceType]:
        return {resource.id: resource for resource in self.resources}

    @cached_property
    def _by_kind(self) -> Mapping[tuple[str, str], ResourceType]:
        return {(resource.api_version, resource.kind): resource for resource in self.resources}

    @cached_property
    def group_names(self) -> frozenset[str]:
        return frozenset(resource.group for resource in self.resources)

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        resource = self._by_id.get(f"{plural}.{group}" if group else plural)
        return resource if resource is not None and resource.version == version else None

    def of_kind(self, api_version: object, kind: object) -> ResourceType | None:
        """The resource of an owner reference; None if the cluster does not have its kind."""
        return self._by_kind.get((str(api_version), str(kind)))

    def groups(self) -> tuple[ApiGroup, ...]:
        """All groups except the core group, ordered by name."""
        names = sorted({(resource.group, resource.version) for resource in self.resources if resource.group})
        return tuple(
            ApiGroup(name=name, version=version, resources=tuple(one for one in self.resources if one.group == name))
            for name, version in names
        )


def _older(resource: ResourceType) -> ResourceType:
    """A resource as version 1.20 served it."""
    subresources = tuple(
        replace(sub, version="v1beta1") if sub.group == "policy" else sub for sub in resource.subresources
    )
    version = "v1beta1" if resource.id == BUDGETS else resource.version
    return replace(resource, version=version, subresources=subresources)


STANDARD = ServedApi()
