"""Discovery documents: which groups, versions, resources and fields the API has. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.simulation.kubernetes.objects import JsonObject

from .requests import PATCH_TYPES
from .resources import ResourceType
from .served import ApiGroup, ServedApi


def version_body(api: ServedApi) -> JsonObject:
    return {
        "major": "1",
        "minor": api.version.partition(".")[2],
        "gitVersion": api.git_version,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "linux/amd64",
    }


def core_versions_body() -> JsonObject:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def groups_body(api: ServedApi) -> JsonObject:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in api.groups()]}


def group_body(api: ServedApi, name: str) -> JsonObject | None:
    found = next((group for group in api.groups() if group.name == name), None)
    return None if found is None else {"kind": "APIGroup", "apiVersion": "v1", **_group(found)}


def _group(group: ApiGroup) -> JsonObject:
    version = {"groupVersion": f"{group.name}/{group.version}", "version": group.version}
    return {"name": group.name, "versions": [version], "preferredVersion": version}


def resources_body(api: ServedApi, group: str, version: str) -> JsonObject | None:
    """The resources of a group and version; None if there are none."""
    found = [one for one in api.resources if (one.group, one.version) == (group, version)]
    rows = [row for resource in found for row in _resource_rows(resource)]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows} if found else None


def _resource_rows(resource: ResourceType) -> Iterator[JsonObject]:
    row = {
        "name": resource.plural,
        "singularName": resource.kind.lower(),
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    yield row
    for sub in resource.subresources:
        kind = {"kind": sub.kind or resource.kind, "verbs": list(sub.verbs)}
        other = {"group": sub.group, "version": sub.version} if sub.group else {}
        name = f"{resource.plural}/{sub.name}"
        yield {"name": name, "singularName": "", "namespaced": resource.namespaced, **other, **kind}


# OpenAPI: kubectl asks whether the server validates fields itself, and needs no schemas then


def openapi_index_body(api: ServedApi) -> JsonObject:
    names = ["api/v1", *(f"apis/{group.name}/{group.version}" for group in api.groups())]
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={api.git_version}"} for name in names}}


def openapi_body(api: ServedApi, group: str, version: str) -> JsonObject | None:
    """The paths of a group and version with the query parameters of a patch."""
    found = [one for one in api.resources if (one.group, one.version) == (group, version)]
    if not found:
        return None
    paths = {_object_path(resource): _path_item(resource) for resource in found if "patch" in resource.verbs}
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": api.git_version},
        "paths": paths,
        "components": {"schemas": {}},
    }


def _object_path(resource: ResourceType) -> str:
    root = f"/apis/{resource.api_version}" if resource.group else f"/api/{resource.version}"
    middle = "/namespaces/{namespace}" if resource.namespaced else ""
    return f"{root}{middle}/{resource.plural}/{{name}}"


def _path_item(resource: ResourceType) -> JsonObject:
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    parameters = [_query_parameter("dryRun"), _query_parameter("fieldValidation")]
    patch = {"x-kubernetes-group-version-kind": kind, "x-kubernetes-action": "patch", "responses": {}}
    content = {patch_type: {"schema": {"type": "object"}} for patch_type in PATCH_TYPES}
    return {"patch": {**patch, "parameters": parameters, "requestBody": {"content": content}}}


def _query_parameter(name: str) -> JsonObject:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
