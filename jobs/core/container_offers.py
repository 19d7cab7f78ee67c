"""Which container images and mounts the jobs of a cluster may name. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

MAX_MOUNTS = 20
MOUNT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
MOUNT_NAME_FORM = "lowercase letters, digits and hyphens, such as datasets"


def is_image_offered(image: str, default: str, patterns: Iterable[str]) -> bool:
    """Whether a job may name this image: it is the default, or a pattern such as registry.example/train/* matches."""
    return image == default or any(fnmatchcase(image, pattern) for pattern in patterns)


def image_sentence(image: str, cluster: str) -> str:
    return f"{cluster} does not allow the image {image}; operators list the images of jobs in its settings"


def mount_sentence(mount: str, offered: Collection[str], cluster: str) -> str:
    choices = f"it offers {', '.join(sorted(offered))}" if offered else "it offers none"
    return f"{cluster} has no mount {mount}; {choices}"
