"""Reads bodies in protobuf, which kubectl sends for the objects that its `create` commands make. Pure.

Only those objects are known here, and of them what these commands set. A value of any other field is refused with 415,
so nothing is lost silently. Answers are JSON, which every client accepts.

A body is the envelope `k8s\\0` with apiVersion, kind and the object. Clients also write fields without a value, as
numbers 0 and empty texts; these are left out, as JSON leaves them out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, timestamp

from .errors import ApiError, bad_request, unsupported_media_type

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
MAX_DEPTH = 32
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED_64: 8, FIXED_32: 4}
Wire = int | bytes


@dataclass(frozen=True, kw_only=True)
class Part:
    """One field: its name in JSON, and how its value is read. Repeated ones are lists."""

    name: str
    read: Callable[[Wire, int], Any]
    repeated: bool = False
    keyed: bool = False


Message = Mapping[int, Part]


@dataclass
class _Values:
    """The fields of a message as they come."""

    found: JsonObject = field(default_factory=dict)

    def add(self, part: Part, value: Any) -> None:
        if part.keyed:
            key, one = value
            self.found.setdefault(part.name, {})[key] = one
        elif part.repeated:
            self.found.setdefault(part.name, []).append(value)
        elif value not in (None, "", 0):
            self.found[part.name] = value


def read_object(content: bytes) -> JsonObject:
    """The object in a body. Raises ApiError."""
    if not content.startswith(MAGIC):
        raise bad_request("the body of the request is not an object in protobuf")
    envelope = _read(content[len(MAGIC) :], ENVELOPE, 0)
    meta, raw = envelope.get("typeMeta", {}), envelope.get("raw", b"")
    message = KINDS.get(str(meta.get("kind")))
    if message is None:
        raise unsupported_media_type(["application/json"])
    return {**meta, **_read(raw, message, 0)}


def _read(content: bytes, message: Message, depth: int) -> JsonObject:
    if depth > MAX_DEPTH:
        raise bad_request("the object is nested too deeply")
    values = _Values()
    for number, value in _fields(content):
        if part := message.get(number):
            values.add(part, part.read(value, depth + 1))
        elif value:
            why = f"field {number} is not read from protobuf here; send the object as application/json"
            raise ApiError(415, "UnsupportedMediaType", why)
    return values.found


def _fields(content: bytes) -> Iterator[tuple[int, Wire]]:
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, at = _varint(content, at)
            yield number, value
            continue
        if kind == BYTES:
            length, at = _varint(content, at)
        elif kind in FIXED_BYTES:
            length = FIXED_BYTES[kind]
        else:
            raise _malformed()
        if at + length > len(content):
            raise _malformed()
        yield number, content[at : at + length]
        at += length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise _malformed()
        byte, at = content[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
    raise _malformed()


def _malformed() -> ApiError:
    return bad_request("the body of the request is not valid protobuf")


# Values


def _bytes(value: Wire, depth: int) -> bytes:
    if not isinstance(value, bytes):
        raise _malformed()
    return value


def _text(value: Wire, depth: int) -> str:
    try:
        return _bytes(value, depth).decode()
    except UnicodeDecodeError:
        raise _malformed() from None


def _base64(value: Wire, depth: int) -> str:
    return b64encode(_bytes(value, depth)).decode()


def _number(value: Wire, depth: int) -> int:
    if not isinstance(value, int):
        raise _malformed()
    return value - 2**64 if value >= 2**63 else value


def _flag(value: Wire, depth: int) -> bool:
    return bool(_number(value, depth))


def _time(value: Wire, depth: int) -> str | None:
    seconds = _read(_bytes(value, depth), {1: Part(name="seconds", read=_number)}, depth).get("seconds")
    return None if seconds is None else timestamp(float(min(max(seconds, 0), 2**36)))


def _int_or_text(value: Wire, depth: int) -> int | str:
    parts = {1: _int("kind"), 2: _int("number"), 3: _string("text")}
    found = _read(_bytes(value, depth), parts, depth)
    return str(found.get("text", "")) if found.get("kind") else int(found.get("number", 0))


def _quantity(value: Wire, depth: int) -> str:
    return str(_read(_bytes(value, depth), {1: _string("text")}, depth).get("text", "0"))


def _string(name: str) -> Part:
    return Part(name=name, read=_text)


def _strings(name: str) -> Part:
    return Part(name=name, read=_text, repeated=True)


def _int(name: str) -> Part:
    return Part(name=name, read=_number)


def _bool(name: str) -> Part:
    return Part(name=name, read=_flag)


def _object(name: str, message: Message, *, repeated: bool = False) -> Part:
    return Part(name=name, read=lambda value, depth: _read(_bytes(value, depth), message, depth), repeated=repeated)


def _map(name: str, read: Callable[[Wire, int], Any] = _text) -> Part:
    """A map from texts, which protobuf writes as a list of entries."""

    def entry(value: Wire, depth: int) -> tuple[str, Any]:
        found: dict[int, Wire] = dict(_fields(_bytes(value, depth)))
        return _text(found.get(1, b""), depth), read(found.get(2, b""), depth)

    return Part(name=name, read=entry, keyed=True)


# The messages of Kubernetes, with their published field numbers

ENVELOPE: Message = {
    1: _object("typeMeta", {1: _string("apiVersion"), 2: _string("kind")}),
    2: Part(name="raw", read=_bytes),
}
METADATA = _object(
    "metadata",
    {
        1: _string("name"), 2: _string("generateName"), 3: _string("namespace"), 5: _string("uid"),
        6: _string("resourceVersion"), 8: Part(name="creationTimestamp", read=_time), 11: _map("labels"),
        12: _map("annotations"), 14: _strings("finalizers"),
    },
)  # fmt: skip
SELECTOR = _object(
    "selector",
    {
        1: _map("matchLabels"),
        2: _object(
            "matchExpressions", {1: _string("key"), 2: _string("operator"), 3: _strings("values")}, repeated=True
        ),
    },
)
CONTAINER: Message = {
    1: _string("name"),
    2: _string("image"),
    3: _strings("command"),
    4: _strings("args"),
    5: _string("workingDir"),
    7: _object("env", {1: _string("name"), 2: _string("value")}, repeated=True),
    8: _object("resources", {1: _map("limits", _quantity), 2: _map("requests", _quantity)}),
    14: _string("imagePullPolicy"),
}
TEMPLATE = _object(
    "template",
    {
        1: METADATA,
        2: _object(
            "spec",
            {
                2: _object("containers", CONTAINER, repeated=True), 3: _string("restartPolicy"),
                4: _int("terminationGracePeriodSeconds"), 5: _int("activeDeadlineSeconds"), 7: _map("nodeSelector"),
                8: _string("serviceAccountName"), 10: _string("nodeName"), 19: _string("schedulerName"),
            },
        ),
    },
)  # fmt: skip
JOB_SPEC = _object(
    "spec",
    {
        1: _int("parallelism"), 2: _int("completions"), 3: _int("activeDeadlineSeconds"), 4: SELECTOR, 6: TEMPLATE,
        7: _int("backoffLimit"), 8: _int("ttlSecondsAfterFinished"), 9: _string("completionMode"), 10: _bool("suspend"),
    },
)  # fmt: skip
BUDGET_SPEC = _object(
    "spec",
    {
        1: Part(name="minAvailable", read=_int_or_text), 2: SELECTOR, 3: Part(name="maxUnavailable", read=_int_or_text),
        4: _string("unhealthyPodEvictionPolicy"),
    },
)  # fmt: skip
RULES = _object(
    "rules",
    {
        1: _strings("verbs"), 2: _strings("apiGroups"), 3: _strings("resources"), 4: _strings("resourceNames"),
        5: _strings("nonResourceURLs"),
    },
    repeated=True,
)  # fmt: skip
ROLE: Message = {1: METADATA, 2: RULES}
SUBJECT: Message = {1: _string("kind"), 2: _string("apiGroup"), 3: _string("name"), 4: _string("namespace")}
ROLE_BINDING: Message = {
    1: METADATA,
    2: _object("subjects", SUBJECT, repeated=True),
    3: _object("roleRef", {1: _string("apiGroup"), 2: _string("kind"), 3: _string("name")}),
}
ACCESS_SPEC = _object(
    "spec",
    {
        1: _object(
            "resourceAttributes",
            {
                1: _string("namespace"), 2: _string("verb"), 3: _string("group"), 4: _string("version"),
                5: _string("resource"), 6: _string("subresource"), 7: _string("name"),
            },
        ),
        2: _object("nonResourceAttributes", {1: _string("path"), 2: _string("verb")}),
    },
)  # fmt: skip
IGNORED_STATUS = Part(name="status", read=lambda value, depth: None)  # the server decides the status of new objects
KINDS: Mapping[str, Message] = {
    "ConfigMap": {1: METADATA, 2: _map("data"), 3: _map("binaryData", _base64), 4: _bool("immutable")},
    "Secret": {1: METADATA, 2: _map("data", _base64), 3: _string("type"), 4: _map("stringData"), 5: _bool("immutable")},
    "Namespace": {1: METADATA, 2: _object("spec", {1: _strings("finalizers")}), 3: IGNORED_STATUS},
    "ServiceAccount": {1: METADATA},
    "Job": {1: METADATA, 2: JOB_SPEC, 3: IGNORED_STATUS},
    "PodDisruptionBudget": {1: METADATA, 2: BUDGET_SPEC, 3: IGNORED_STATUS},
    "Role": ROLE,
    "ClusterRole": ROLE,
    "RoleBinding": ROLE_BINDING,
    "ClusterRoleBinding": ROLE_BINDING,
    "SelfSubjectAccessReview": {1: METADATA, 2: ACCESS_SPEC, 3: IGNORED_STATUS},
    "SelfSubjectRulesReview": {1: METADATA, 2: _object("spec", {1: _string("namespace")}), 3: IGNORED_STATUS},
    "SelfSubjectReview": {1: METADATA, 2: IGNORED_STATUS},
    "TokenRequest": {
        1: METADATA,
        2: _object("spec", {1: _strings("audiences"), 4: _int("expirationSeconds")}),
        3: IGNORED_STATUS,
    },
}
