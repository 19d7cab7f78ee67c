"""Pod Security admission: which rules of the standard "restricted" a pod violates. Pure.

Written after https://kubernetes.io/docs/concepts/security/pod-security-standards/, with the words of the admission
plugin. Only the rules that pods of jobs can meet are here: Windows, sysctls, SELinux and host ports are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, value_at

ENFORCE_LABEL, RESTRICTED = "pod-security.kubernetes.io/enforce", "restricted"
ALLOWED_VOLUMES = frozenset(
    (
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)
HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")
PROFILES = ("RuntimeDefault", "Localhost")


def restricted_violations(spec: JsonObject) -> str:
    """The violations as the API server lists them; empty if there is none."""
    found = ((reason, detail) for rule in _RULES for reason, detail in rule(spec))
    return ", ".join(f"{reason} ({detail})" for reason, detail in found)


Violations = Iterator[tuple[str, str]]


def _containers(spec: JsonObject) -> list[JsonObject]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _context(part: JsonObject, *path: str) -> Any:
    return value_at(part, "securityContext", *path)


def _name_list(noun: str, parts: Sequence[JsonObject]) -> str:
    """`containers "a", "b"`"""
    names = ", ".join(f'"{part.get("name", "")}"' for part in parts)
    return f"{noun}{'s' if len(parts) > 1 else ''} {names}"


def _host_namespaces(spec: JsonObject) -> Violations:
    if used := [f"{name}=true" for name in HOST_NAMESPACES if spec.get(name)]:
        yield "host namespaces", ", ".join(used)


def _privileged(spec: JsonObject) -> Violations:
    if bad := [one for one in _containers(spec) if _context(one, "privileged")]:
        yield "privileged", f"{_name_list('container', bad)} must not set securityContext.privileged=true"


def _privilege_escalation(spec: JsonObject) -> Violations:
    if bad := [one for one in _containers(spec) if _context(one, "allowPrivilegeEscalation") is not False]:
        detail = f"{_name_list('container', bad)} must set securityContext.allowPrivilegeEscalation=false"
        yield "allowPrivilegeEscalation != false", detail


def _capabilities(spec: JsonObject) -> Violations:
    details, containers = [], _containers(spec)
    keep = [one for one in containers if "ALL" not in (value_at(one, "securityContext", "capabilities", "drop") or ())]
    if keep:
        details.append(f'{_name_list("container", keep)} must set securityContext.capabilities.drop=["ALL"]')
    for one in containers:
        added = set(value_at(one, "securityContext", "capabilities", "add") or ()) - {"NET_BIND_SERVICE"}
        if added:
            names = ", ".join(f'"{name}"' for name in sorted(added))
            details.append(
                f"{_name_list('container', [one])} must not include {names} in securityContext.capabilities.add"
            )
    if details:
        yield "unrestricted capabilities", "; ".join(details)


def _volumes(spec: JsonObject) -> Violations:
    volumes = spec.get("volumes") or ()
    bad = {str(one.get("name")): sorted(set(one) - {"name"}) for one in volumes if not set(one) & ALLOWED_VOLUMES}
    if bad:
        names = ", ".join(f'"{name}"' for name in bad)
        types = ", ".join(f'"{kind}"' for kind in sorted({kind for kinds in bad.values() for kind in kinds}))
        many = len(bad) > 1
        detail = f"volume{'s' if many else ''} {names} {'use' if many else 'uses'} restricted volume type {types}"
        yield "restricted volume types", detail


def _non_root(spec: JsonObject) -> Violations:
    where = "pod" if _context(spec, "runAsNonRoot") is False else ""
    if where:
        yield "runAsNonRoot != true", f"{where} must not set securityContext.runAsNonRoot=false"
    elif bad := _unset(spec, "runAsNonRoot", lambda value: value is True):
        yield (
            "runAsNonRoot != true",
            f"pod or {_name_list('container', bad)} must set securityContext.runAsNonRoot=true",
        )


def _user(spec: JsonObject) -> Violations:
    if _context(spec, "runAsUser") == 0:
        yield "runAsUser=0", "pod must not set runAsUser=0"
    elif bad := [one for one in _containers(spec) if _context(one, "runAsUser") == 0]:
        yield "runAsUser=0", f"{_name_list('container', bad)} must not set runAsUser=0"


def _seccomp(spec: JsonObject) -> Violations:
    if bad := _unset(spec, "seccompProfile", lambda value: value_at(value, "type") in PROFILES):
        kinds = " or ".join(f'"{name}"' for name in PROFILES)
        yield (
            "seccompProfile",
            f"pod or {_name_list('container', bad)} must set securityContext.seccompProfile.type to {kinds}",
        )


def _unset(spec: JsonObject, field: str, is_good: Callable[[Any], bool]) -> list[JsonObject]:
    """The containers for which neither they nor the pod have a good value."""
    values = [(one, _context(one, field)) for one in _containers(spec)]
    default = _context(spec, field)
    return [one for one, value in values if not is_good(default if value is None else value)]


_RULES: tuple[Callable[[JsonObject], Violations], ...] = (
    _host_namespaces, _privileged, _privilege_escalation, _capabilities, _volumes, _non_root, _user, _seccomp,
)  # fmt: skip
