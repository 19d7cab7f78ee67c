"""Which container images and mounts the jobs of a cluster may name. Pure.

Operators list them in the cluster's pod template, which `scheduling.backends.kubernetes.pod_template` validates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

MAX_MOUNTS = 20
ANY_IMAGE = "*"
WILDCARDS = frozenset("*?[")
MOUNT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class ContainerOffers:
    default_image: str = ""  # of jobs that name none
    image_patterns: tuple[str, ...] = ()  # such as registry.example/train/*
    mounts: tuple[str, ...] = ()

    def has_image(self, image: str) -> bool:
        """Whether a job may run in this image."""
        return bool(image) and (
            image == self.default_image or any(fnmatchcase(image, pattern) for pattern in self._valid_patterns)
        )

    @property
    def _valid_patterns(self) -> list[str]:
        return [pattern for pattern in self.image_patterns if not image_pattern_error(pattern)]

    def image_error(self, image: str, cluster: str) -> str:
        """What is wrong with the image that a job names, or does not name; empty if nothing is."""
        if self.has_image(image or self.default_image):
            return ""
        choices = [name for name in (self.default_image, *self._valid_patterns) if name]
        offers = f"it offers {_few(choices)}" if choices else "its operators have not allowed any"
        return f"{image} is not allowed on {cluster}; {offers}" if image else f"is required on {cluster}; {offers}"

    def mounts_error(self, mounts: Sequence[str], cluster: str) -> str:
        """What is wrong with the mounts that a job names; empty if nothing is."""
        unknown = next((mount for mount in mounts if mount not in self.mounts), "")
        offers = f"it offers {_few(sorted(self.mounts))}" if self.mounts else "it offers no mounts"
        return f"{cluster} has no mount {unknown}; {offers}" if unknown else ""


def image_pattern_error(pattern: str) -> str:
    """What is wrong with a pattern of images; empty if nothing is. `registry.example*` would also match the registry
    `registry.example.evil`, so the part before the first slash, which names the registry, has no wildcards."""
    registry = pattern.partition("/")[0]
    if pattern == ANY_IMAGE or not WILDCARDS.intersection(registry):
        return ""
    return f"{pattern} has a wildcard before the first slash, so it matches other registries; use REGISTRY/*"


NO_OFFERS = ContainerOffers()


def container_offers(template: Mapping[str, Any]) -> ContainerOffers:
    """What a pod template offers; malformed settings offer nothing. Jobs need not name what is always mounted."""
    image, patterns, volumes = (template.get(name) for name in ("image", "allowed_images", "volumes"))
    return ContainerOffers(
        default_image=image if isinstance(image, str) else "",
        image_patterns=tuple(one for one in patterns if isinstance(one, str)) if isinstance(patterns, list) else (),
        mounts=tuple(_named_volumes(volumes)) if isinstance(volumes, Mapping) else (),
    )


def _named_volumes(volumes: Mapping[str, Any]) -> list[str]:
    named = {name: volume for name, volume in volumes.items() if isinstance(volume, Mapping)}
    return [name for name, volume in named.items() if volume.get("always") is not True]


def _few(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
