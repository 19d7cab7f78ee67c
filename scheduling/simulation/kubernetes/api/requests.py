"""Requests: which verb, resource and object a method and a path mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject, ObjectKey

from .errors import ApiError, bad_request, method_not_allowed, path_not_found
from .resources import ResourceType
from .served import STANDARD, ServedApi

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH)
TRUE_TEXTS = ("1", "true", "True", "t", "T", "TRUE")


@dataclass(frozen=True, kw_only=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""


@dataclass(frozen=True, kw_only=True)
class ApiRequest:
    verb: str  # as in RBAC: get, list, watch, create, update, patch, delete, deletecollection
    resource: ResourceType
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    patch_type: str = ""
    user: User = User(name="system:anonymous")

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.resource.id, self.namespace, self.name)

    @property
    def is_dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A complete answer. `text` is JSON that was written already."""

    status: int = 200
    body: JsonObject | None = None
    text: bytes = b""
    warnings: tuple[str, ...] = ()


def parse_request(method: str, path: str, query: Mapping[str, str], api: ServedApi = STANDARD) -> ApiRequest:
    """The request for one resource below /api or /apis, without body and user. Raises ApiError."""
    parts = [part for part in path.split("/") if part]
    group, version, rest = _group_and_version(parts)
    namespace, rest = _namespace(rest)
    resource = api.find(group, version, rest[0]) if rest and len(rest) <= 3 else None
    if resource is None or (bool(namespace) and not resource.namespaced):
        raise path_not_found()
    name, subresource = [*rest[1:], "", ""][:2]
    if subresource and resource.subresource(subresource) is None:
        raise path_not_found()
    verb = _verb(method, bool(name), query)
    if verb not in _allowed_verbs(resource, subresource):
        raise method_not_allowed()
    if resource.namespaced and not namespace and verb not in ("list", "watch"):
        raise path_not_found() if name else bad_request("the namespace of the object is missing")
    return ApiRequest(
        verb=verb, resource=resource, namespace=namespace, name=name, subresource=subresource, query=dict(query)
    )


def is_unknown_group(path: str, api: ServedApi) -> bool:
    """Whether no API has this path. Such paths are answered without a Status."""
    parts = path.split("/")
    return parts[1:2] == ["apis"] and len(parts) > 2 and parts[2] not in api.group_names


def _group_and_version(parts: list[str]) -> tuple[str, str, list[str]]:
    if parts[:1] == ["api"] and len(parts) > 2:
        return "", parts[1], parts[2:]
    if parts[:1] == ["apis"] and len(parts) > 3:
        return parts[1], parts[2], parts[3:]
    raise path_not_found()


def _namespace(rest: list[str]) -> tuple[str, list[str]]:
    """Split off the namespace. `namespaces/x` and `namespaces/x/status` are the namespace itself."""
    if rest[0] != "namespaces" or len(rest) < 3 or (len(rest) == 3 and rest[2] in ("status", "finalize")):
        return "", rest
    return rest[1], rest[2:]


def _verb(method: str, named: bool, query: Mapping[str, str]) -> str:
    match method:
        case "GET" | "HEAD":
            if query.get("watch") in TRUE_TEXTS:
                return "watch"
            return "get" if named else "list"
        case "POST":
            return "create"
        case "PUT" if named:
            return "update"
        case "PATCH" if named:
            return "patch"
        case "DELETE":
            return "delete" if named else "deletecollection"
    raise method_not_allowed()


def _allowed_verbs(resource: ResourceType, subresource: str) -> tuple[str, ...]:
    found = resource.subresource(subresource) if subresource else None
    return resource.verbs if found is None else found.verbs


def check_body(request: ApiRequest) -> JsonObject:
    """The body as an object of the request's resource. Raises ApiError."""
    body = request.body
    if not isinstance(body, dict):
        raise bad_request("the request body must be a JSON object")
    version, kind = body.get("apiVersion", ""), body.get("kind", "")
    expected_version, expected_kind = _expected(request)
    if version not in ("", expected_version):
        raise bad_request(
            f"the API version in the data ({version!s:.80}) does not match the expected API version"
            f" ({expected_version})"
        )
    if kind not in ("", expected_kind):
        raise bad_request(f"{kind!s:.80} in version {version!s:.80} cannot be handled as a {expected_kind}")
    if not isinstance(body.get("metadata") or {}, dict):
        raise bad_request("json: cannot unmarshal metadata into Go struct field of type v1.ObjectMeta")
    for part in ("spec", "status"):
        if not isinstance(body.get(part) or {}, dict):
            raise bad_request(f"json: cannot unmarshal {part} of {expected_kind}: it is not an object")
    return body


def _expected(request: ApiRequest) -> tuple[str, str]:
    sub = request.resource.subresource(request.subresource) if request.subresource else None
    if sub is None or not sub.kind:
        return request.resource.api_version, request.resource.kind
    version = f"{sub.group}/{sub.version}" if sub.group else request.resource.api_version
    return version, sub.kind


def int_query(query: Mapping[str, str], name: str) -> int | None:
    """A whole number in the query; None if it is absent. Raises ApiError."""
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ApiError(400, "BadRequest", f"{name}: {text:.60} is not a whole number")
    return int(text)
