"""What operators decide about the pods of jobs: the setting `pod_template` of a cluster. Pure.

Jobs may refine it only by what the template offers: an image that `allowed_images` matches, and the names of volumes.
Pods carry what the Pod Security Standard "restricted" demands. A template relaxes that only as far as `pod_limits`
allows, and host paths occur only as volumes of the template.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from jobs.core.cluster_kinds import PodLimits, PodPrivilege
from jobs.core.container_offers import MOUNT_NAME, ContainerOffers

from .fields import QUANTITY, parse_quantity
from .resources import is_gpu

HOST_PATHS_VARIABLE, PRIVILEGES_VARIABLE = "ACME_POD_HOST_PATHS", "ACME_POD_PRIVILEGES"
PROFILE_ANNOTATIONS = ("container.apparmor.security.", "seccomp.security.", "container.seccomp.security.")
ROOT_ID = 0
MAX_ENTRIES = 100
MAX_NAMESPACES = 1000
MAX_ID = 2**31 - 1
MAX_GRACE_S = 86_400
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
IMAGE = re.compile(r"[!-~]{1,500}", re.ASCII)
DEFAULT_ID = 1000  # user and group of pods: many images name none, and would run as root
IMAGE_USER = "image"
OWN_PREFIX = "acme"  # of labels, annotations and volumes that Acme writes itself
SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108
SHARED_MEMORY_VOLUME = "acme-shm"
RESERVED_PATHS = ("/", "/proc", "/sys", "/dev")
TOLERATION_FIELDS = ("key", "operator", "value", "effect", "tolerationSeconds")


class NamespaceMode(StrEnum):
    OURS = "ours"  # Acme submits, cancels and evicts here
    THEIRS = "theirs"  # operators may cancel workloads here; Acme's loops change nothing
    OBSERVED = "observed"  # nothing is ever changed here


@dataclass(frozen=True, kw_only=True)
class Volume:
    name: str
    source: Mapping[str, Any]  # as in a pod spec
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    always: bool = False  # mounted in all jobs; the others only in jobs that name them


@dataclass(frozen=True, kw_only=True)
class PodTemplate:
    namespace: str = "acme-jobs"
    namespaces: Mapping[str, NamespaceMode] = field(default_factory=dict)
    image: str = ""
    allowed_images: tuple[str, ...] = ()
    volumes: Mapping[str, Volume] = field(default_factory=dict)
    service_account: str = ""
    tolerations: tuple[Mapping[str, Any], ...] = ()
    priority_class: str = ""
    gpu_resource: Mapping[str, str] = field(default_factory=lambda: {"*": "nvidia.com/gpu"})  # by pattern of models
    extra_resources: Mapping[str, int] = field(default_factory=dict)
    shared_memory: str = ""
    grace_s: int = 30
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    image_pull_secrets: tuple[str, ...] = ()
    run_as_user: int | None = DEFAULT_ID  # None: that of the image, which must not be root
    run_as_group: int | None = None  # None: the number of the user
    host_network: bool = False
    denial: str = ""  # why the limits of this installation no longer allow it: then no new pods are created

    def namespace_mode(self, name: str) -> NamespaceMode:
        return NamespaceMode.OURS if name == self.namespace else self.namespaces.get(name, NamespaceMode.OBSERVED)

    @property
    def has_rdma(self) -> bool:
        return any(name.startswith("rdma/") for name in self.extra_resources)

    @property
    def own_namespaces(self) -> list[str]:
        """Where Acme submits, and where it did before its settings were changed."""
        ours = [name for name, mode in self.namespaces.items() if mode == NamespaceMode.OURS]
        return list(dict.fromkeys([self.namespace, *ours]))

    @property
    def offers(self) -> ContainerOffers:
        mounts = tuple(volume.name for volume in self.volumes.values() if not volume.always)
        return ContainerOffers(default_image=self.image, image_patterns=self.allowed_images, mounts=mounts)

    def gpu_resource_of(self, model: str) -> str:
        """The resource of this model: by its name, otherwise by the longest pattern that matches. Empty if none."""
        exact = self.gpu_resource.get(model, "")
        patterns = [pattern for pattern in self.gpu_resource if fnmatchcase(model.lower(), pattern.lower())]
        return exact or (self.gpu_resource[max(patterns, key=len)] if patterns else "")


def parse_pod_template(settings: object, limits: PodLimits) -> PodTemplate:
    """The template in new settings of a cluster. Raises ValueError with one sentence that names the setting."""
    template = _read_template(settings)
    check_limits(template, limits)
    return template


def stored_pod_template(settings: object, limits: PodLimits) -> PodTemplate:
    """The template of a cluster in use. If the limits became stricter, its jobs can still be observed and ended."""
    template = _read_template(settings)
    try:
        check_limits(template, limits)
    except ValueError as error:
        return replace(template, denial=f"The pod template is not allowed: {error}")
    return template


def _read_template(settings: object) -> PodTemplate:
    if not isinstance(settings, Mapping):
        raise ValueError('must be an object, for example {"image": "registry.example/train:1"}.')
    if unknown := sorted(set(map(str, settings)) - set(READERS)):
        raise ValueError(f"{unknown[0][:40]!r} is not a setting; use {', '.join(READERS)}.")
    template = PodTemplate(**{name: READERS[name](name, value) for name, value in settings.items()})
    _check_together(template)
    return template


def _check_together(template: PodTemplate) -> None:
    if template.namespaces.get(template.namespace, NamespaceMode.OURS) != NamespaceMode.OURS:
        raise ValueError(f'namespaces.{template.namespace} must be "ours", because Acme submits jobs there.')
    for volume in template.volumes.values():
        if template.shared_memory and volume.mount_path == SHARED_MEMORY_PATH:
            raise ValueError(f"volumes.{volume.name}.mount_path is used by shared_memory; name another path.")
    paths = [volume.mount_path for volume in template.volumes.values() if volume.always]
    if twice := next((path for path in paths if paths.count(path) > 1), ""):
        raise ValueError(f"volumes: {twice} is the mount_path of two volumes that are always mounted.")


# --- readers of single settings


Reader = Callable[[str, object], Any]


def _pattern_reader(pattern: re.Pattern[str], what: str, *, may_be_empty: bool = False) -> Reader:
    def read(name: str, value: object) -> str:
        if may_be_empty and value == "":
            return ""
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{name} must be {what}.")
        return value

    return read


def _read_bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false.")
    return value


def _integer_reader(low: int, high: int) -> Reader:
    def read(name: str, value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{name} must be a whole number from {low} to {high}.")
        return value

    return read


def _read_user(name: str, value: object) -> int | None:
    if value == IMAGE_USER:
        return None
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise ValueError(f'{name} must be a whole number from 0 to {MAX_ID}, or "{IMAGE_USER}".')
    return value


def _read_size(name: str, value: object) -> str:
    if value == "":
        return ""
    if not isinstance(value, str) or not QUANTITY.fullmatch(value) or parse_quantity(value) < 1:
        raise ValueError(f'{name} must be a size such as "64Gi".')
    return value


def _list_reader(read_entry: Reader) -> Reader:
    def read(name: str, value: object) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > MAX_ENTRIES:
            raise ValueError(f"{name} must be a list of at most {MAX_ENTRIES} entries.")
        return tuple(read_entry(f"{name}[{number}]", entry) for number, entry in enumerate(value))

    return read


def _object_reader(key: re.Pattern[str], read_value: Reader, most: int = MAX_ENTRIES) -> Reader:
    def read(name: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping) or len(value) > most:
            raise ValueError(f"{name} must be an object of at most {most} entries.")
        if wrong := next((entry for entry in value if not isinstance(entry, str) or not key.fullmatch(entry)), None):
            raise ValueError(f"{name}: {str(wrong)[:40]!r} is not a valid name.")
        return {entry: read_value(f"{name}.{entry}", part) for entry, part in value.items()}

    return read


def _read_namespace_mode(name: str, value: object) -> NamespaceMode:
    if not isinstance(value, str) or value not in list(NamespaceMode):
        raise ValueError(f"{name} must be {', '.join(NamespaceMode)}.")
    return NamespaceMode(value)


def _read_marks(read: Reader) -> Reader:
    """Labels or annotations; those of Acme itself cannot be set."""

    def read_others(name: str, value: object) -> dict[str, str]:
        marks: dict[str, str] = read(name, value)
        if own := next((mark for mark in marks if mark.startswith(f"{OWN_PREFIX}/")), ""):
            raise ValueError(f"{name}.{own} is set by Acme; choose another name.")
        return marks

    return read_others


def _read_gpu_resource(name: str, value: object) -> dict[str, str]:
    """One resource for all models, or one by pattern of models."""
    resources: dict[str, Any] = _read_gpu_resources(name, value) if isinstance(value, Mapping) else {"*": value}
    if wrong := next((one for one in resources.values() if not isinstance(one, str) or not is_gpu(one)), None):
        raise ValueError(f"{name} must name resources of GPUs such as nvidia.com/gpu; {str(wrong)[:60]!r} is none.")
    return resources


def _read_extra_resources(name: str, value: object) -> dict[str, int]:
    resources: dict[str, int] = _object_reader(KEY, _integer_reader(1, MAX_ID))(name, value)
    if wrong := next((one for one in resources if "/" not in one or is_gpu(one)), ""):
        raise ValueError(f"{name}.{wrong}: name resources such as rdma/hca; jobs say their CPUs, memory and GPUs.")
    return resources


def _read_toleration(name: str, value: object) -> dict[str, Any]:
    known = isinstance(value, Mapping) and value and set(value) <= set(TOLERATION_FIELDS)
    if not isinstance(value, Mapping) or not known:
        raise ValueError(f"{name} must be a toleration with {', '.join(TOLERATION_FIELDS)}.")
    for part, text in value.items():
        if part == "tolerationSeconds":
            _integer_reader(0, MAX_ID)(f"{name}.{part}", text)
        elif not isinstance(text, str) or len(text) > 320:
            raise ValueError(f"{name}.{part} must be a text.")
    return dict(value)


# --- volumes


_read_object_name = _pattern_reader(OBJECT_NAME, "a name of lowercase letters, digits, hyphens and dots")


def _read_path(name: str, value: object) -> str:
    ok = isinstance(value, str) and len(value) <= 1000 and value.startswith("/") and value.isprintable()
    if not isinstance(value, str) or not ok or posixpath.normpath(value) != value or ":" in value:
        raise ValueError(f"{name} must be an absolute path without .. and without a colon.")
    return value


def _read_mount_path(name: str, value: object) -> str:
    path = _read_path(name, value)
    if path in RESERVED_PATHS or path.startswith(("/proc/", "/sys/")):
        raise ValueError(f"{name}: {path} belongs to the system of the container.")
    return path


def _read_sub_path(name: str, value: object) -> str:
    ok = isinstance(value, str) and len(value) <= 1000 and value.isprintable() and not value.startswith("/")
    if not isinstance(value, str) or not ok or ".." in value.split("/"):
        raise ValueError(f"{name} must be a relative path without ...")
    return value


def _read_nfs(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or set(value) != {"server", "path"}:
        raise ValueError(f"{name} must be an object with server and path.")
    server = _pattern_reader(re.compile(r"[A-Za-z0-9.:-]{1,253}"), "a host name or an address")
    return {"server": server(f"{name}.server", value["server"]), "path": _read_path(f"{name}.path", value["path"])}


def _read_empty_dir(name: str, value: object) -> dict[str, str]:
    if value is True:
        return {}
    if value in (False, ""):
        raise ValueError(f'{name} must be true or a size such as "200Gi".')
    return {"sizeLimit": _read_size(name, value)}


# Setting → its name in a pod spec, and how its value is read
SOURCES: dict[str, tuple[str, Reader]] = {
    "claim": ("persistentVolumeClaim", lambda name, value: {"claimName": _read_object_name(name, value)}),
    "config_map": ("configMap", lambda name, value: {"name": _read_object_name(name, value)}),
    "secret": ("secret", lambda name, value: {"secretName": _read_object_name(name, value)}),
    "nfs": ("nfs", _read_nfs),
    "host_path": ("hostPath", lambda name, value: {"path": _read_path(name, value)}),
    "empty_dir": ("emptyDir", _read_empty_dir),
}
VOLUME_READERS: dict[str, Reader] = {
    "mount_path": _read_mount_path,
    "read_only": _read_bool,
    "sub_path": _read_sub_path,
    "always": _read_bool,
}


def _read_volume(name: str, value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f'{name} must be an object, for example {{"claim": "datasets", "mount_path": "/data"}}.')
    if unknown := sorted(set(map(str, value)) - set(SOURCES) - set(VOLUME_READERS)):
        raise ValueError(f"{name}: {unknown[0][:40]!r} is not a setting of a volume.")
    sources = [source for source in SOURCES if source in value]
    if len(sources) != 1:
        raise ValueError(f"{name} must have exactly one of {', '.join(SOURCES)}.")
    if "mount_path" not in value:
        raise ValueError(f"{name}.mount_path is missing.")
    field_name, read_source = SOURCES[sources[0]]
    settings = {part: VOLUME_READERS[part](f"{name}.{part}", value[part]) for part in VOLUME_READERS if part in value}
    return {"source": {field_name: read_source(f"{name}.{sources[0]}", value[sources[0]])}, **settings}


def _read_volumes(name: str, value: object) -> dict[str, Volume]:
    volumes = _object_reader(MOUNT_NAME, _read_volume)(name, value)
    if own := next((volume for volume in volumes if volume.startswith(f"{OWN_PREFIX}-")), ""):
        raise ValueError(f"{name}.{own}: names with acme- are used by Acme itself.")
    return {volume: Volume(name=volume, **settings) for volume, settings in volumes.items()}


_read_text = _pattern_reader(re.compile(r".{0,4096}", re.DOTALL), "a text of at most 4096 characters")
_read_image = _pattern_reader(IMAGE, "a reference of an image without spaces", may_be_empty=True)
_read_gpu_resources = _object_reader(re.compile(r".{1,40}"), lambda _name, value: value)
_read_optional_name = _pattern_reader(
    OBJECT_NAME, "a name of lowercase letters, digits, hyphens and dots", may_be_empty=True
)

READERS: dict[str, Reader] = {
    "namespace": _pattern_reader(NAMESPACE, "a name of lowercase letters, digits and hyphens"),
    "namespaces": _object_reader(NAMESPACE, _read_namespace_mode, MAX_NAMESPACES),
    "image": _read_image,
    "allowed_images": _list_reader(_pattern_reader(IMAGE, "a pattern such as registry.example/train/*")),
    "volumes": _read_volumes,
    "service_account": _read_optional_name,
    "tolerations": _list_reader(_read_toleration),
    "priority_class": _read_optional_name,
    "gpu_resource": _read_gpu_resource,
    "extra_resources": _read_extra_resources,
    "shared_memory": _read_size,
    "grace_s": _integer_reader(1, MAX_GRACE_S),
    "labels": _read_marks(_object_reader(KEY, _pattern_reader(LABEL_VALUE, "a value that labels may have"))),
    "annotations": _read_marks(_object_reader(KEY, _read_text)),
    "image_pull_secrets": _list_reader(_read_object_name),
    "run_as_user": _read_user,
    "run_as_group": _integer_reader(0, MAX_ID),
    "host_network": _read_bool,
}


def mounted_volumes(template: PodTemplate, mounts: Iterable[str]) -> list[Volume]:
    """The volumes of a job that names these mounts, in the order of their names."""
    named = set(mounts)
    return sorted(
        (volume for volume in template.volumes.values() if volume.always or volume.name in named),
        key=lambda volume: volume.name,
    )


# Limits of this installation


def check_limits(template: PodTemplate, limits: PodLimits) -> None:
    """Raises ValueError with one sentence that names the setting and the variable."""
    for volume in template.volumes.values():
        path = str(volume.source.get("hostPath", {}).get("path", ""))
        if path and not any(_is_beneath(path, directory) for directory in limits.host_paths):
            allowed = ", ".join(limits.host_paths) or "none"
            name = f"volumes.{volume.name}.host_path"
            raise ValueError(f"{name}: {path} is not beneath a directory of {HOST_PATHS_VARIABLE} ({allowed}).")
    for setting, privilege in _needed_privileges(template):
        if privilege not in limits.privileges:
            raise ValueError(f"{setting} needs the privilege {privilege}, which {PRIVILEGES_VARIABLE} does not list.")
    if annotation := next((name for name in template.annotations if name.startswith(PROFILE_ANNOTATIONS)), ""):
        raise ValueError(f"annotations.{annotation} would change the security profile that Acme sets.")


def _needed_privileges(template: PodTemplate) -> Iterator[tuple[str, PodPrivilege]]:
    """The settings that need a privilege."""
    for name in ("run_as_user", "run_as_group"):
        if getattr(template, name) == ROOT_ID:
            yield f"{name} 0", PodPrivilege.ROOT
    if template.host_network:
        yield "host_network", PodPrivilege.HOST_NETWORK
    if template.service_account:
        yield "service_account", PodPrivilege.SERVICE_ACCOUNT
    if template.has_rdma:
        yield "extra_resources with rdma/", PodPrivilege.IPC_LOCK


def _is_beneath(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
