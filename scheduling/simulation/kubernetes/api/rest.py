"""Answers requests for resources, except streams (watches and logs). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    is_being_deleted,
    timestamp,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ObjectStore

from .authorization import DEFAULT_TOKEN_S, MAX_TOKEN_S, MIN_TOKEN_S, Authenticator
from .errors import (
    ApiError,
    bad_request,
    conflict,
    invalid,
    method_not_allowed,
    not_supported,
    success,
    unsupported_media_type,
)
from .eviction import check_eviction
from .known_fields import without_unknown_fields
from .patches import json_patch, merge_patch
from .reading import find_object, list_page, list_text, object_text, with_kind
from .requests import JSON_PATCH, MERGE_PATCH, Answer, ApiRequest, check_body
from .resources import PODS, ResourceType
from .served import STANDARD, ServedApi
from .writing import DeleteOptions, ObjectWriter, parse_delete_options

BINDING = "pods/binding"
PATCHES: Mapping[str, Callable[[JsonObject, Any], Any]] = {
    JSON_PATCH: json_patch,
    MERGE_PATCH: merge_patch,
}


class RestApi:
    """One method per verb. Time is an argument; every change is in the store when a method returns."""

    def __init__(
        self,
        store: ObjectStore,
        writer: ObjectWriter,
        authenticator: Authenticator,
        api: ServedApi = STANDARD,
    ) -> None:
        self._store, self._writer, self._authenticator, self._api = store, writer, authenticator, api

    def answer(self, request: ApiRequest, now: float) -> Answer:
        """Raises ApiError for a request that is refused."""
        if request.subresource and request.verb == "create":
            return self._create_subresource(request, now)
        match request.verb:
            case "list":
                return self._list(request)
            case "get":
                return self._get(request)
            case "create":
                return self._create(request, now)
            case "update":
                return self._update(request, now)
            case "patch":
                return self._patch(request, now)
            case "delete":
                return self._delete(request, now)
            case "deletecollection":
                return self._delete_collection(request, now)
        raise method_not_allowed()

    # Reading

    def _list(self, request: ApiRequest) -> Answer:
        return Answer(text=list_text(request.resource, list_page(self._store, request)))

    def _get(self, request: ApiRequest) -> Answer:
        return Answer(text=object_text(request.resource, find_object(self._store, request.key).text))

    # Creating

    def _create(self, request: ApiRequest, now: float) -> Answer:
        new, warnings = _known_body(request, self._api)
        namespace = value_at(new, "metadata", "namespace", default=request.namespace)
        if request.resource.namespaced and namespace != request.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        if value_at(new, "metadata", "resourceVersion"):
            raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
        created = self._writer.create(request.resource, request.namespace, new, now, dry_run=request.is_dry_run)
        return Answer(status=201, body=with_kind(request.resource, created), warnings=warnings)

    def _create_subresource(self, request: ApiRequest, now: float) -> Answer:
        body = check_body(request)
        if request.subresource == "binding":
            return self._bind(request, body, now)
        if request.subresource == "eviction":
            return self._evict(request, body, now)
        return self._issue_token(request, body, now)

    def _bind(self, request: ApiRequest, body: JsonObject, now: float) -> Answer:
        """Place a pod on a node, as schedulers do."""
        pod = find_object(self._store, request.key).object
        _check_binding(request.name, pod, body)
        if not request.is_dry_run:
            self._writer.put(request.key, _pod_on_its_node(pod, body, now))
        return Answer(status=201, body={"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _evict(self, request: ApiRequest, body: JsonObject, now: float) -> Answer:
        """Delete a pod if its disruption budgets allow it."""
        pod = find_object(self._store, request.key).object
        options = parse_delete_options(body.get("deleteOptions"), request.query)
        for key, budget in check_eviction(self._store, pod, now).items():
            if not options.dry_run:
                self._writer.put(key, budget)
        self._writer.delete(request.key, now, options)
        return Answer(status=201, body={"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def _issue_token(self, request: ApiRequest, body: JsonObject, now: float) -> Answer:
        account = find_object(self._store, request.key).object
        seconds = value_at(body, "spec", "expirationSeconds", default=DEFAULT_TOKEN_S)
        if not isinstance(seconds, int) or not MIN_TOKEN_S <= seconds <= MAX_TOKEN_S:
            why = "may not specify a duration less than 10 minutes"
            raise ApiError(422, "Invalid", f"spec.expirationSeconds: Invalid value: {seconds!s:.20}: {why}", {})
        status = {
            "token": self._authenticator.issue(account, now, seconds),
            "expirationTimestamp": timestamp(now + seconds),
        }
        spec = {"audiences": ["kubernetes"], **(body.get("spec") or {}), "expirationSeconds": seconds}
        metadata = {"name": request.name, "namespace": request.namespace, "creationTimestamp": timestamp(now)}
        kind = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
        return Answer(status=201, body={**kind, "metadata": metadata, "spec": spec, "status": status})

    # Changing

    def _update(self, request: ApiRequest, now: float) -> Answer:
        new, warnings = _known_body(request, self._api)
        return self._store_new_state(request, new, now, warnings)

    def _patch(self, request: ApiRequest, now: float) -> Answer:
        apply_patch = PATCHES.get(request.patch_type)
        if apply_patch is None:
            raise unsupported_media_type(list(PATCHES))
        old = find_object(self._store, request.key).object
        patched = apply_patch(with_kind(request.resource, old), request.body)
        if not isinstance(patched, dict):
            raise bad_request("a patch must be an object")
        checked = ApiRequest(**{**vars(request), "body": patched})
        new, warnings = _known_body(checked, self._api)
        return self._store_new_state(request, new, now, warnings)

    def _store_new_state(self, request: ApiRequest, new: JsonObject, now: float, warnings: tuple[str, ...]) -> Answer:
        stored = self._writer.update(
            request.resource,
            request.key,
            new,
            now,
            status_only=request.subresource == "status",
            dry_run=request.is_dry_run,
        )
        return Answer(body=with_kind(request.resource, stored), warnings=warnings)

    # Deleting

    def _delete(self, request: ApiRequest, now: float) -> Answer:
        options = parse_delete_options(request.body, request.query)
        found, gone = self._writer.delete(request.key, now, _as_dry_run(options, request))
        return Answer(body=_deletion_body(request.resource, found, gone))

    def _delete_collection(self, request: ApiRequest, now: float) -> Answer:
        page, options = list_page(self._store, request), parse_delete_options(request.body, request.query)
        deleted = [
            self._writer.delete(
                ObjectKey(request.resource.id, found.object["metadata"].get("namespace", ""), _name(found.object)),
                now,
                _as_dry_run(options, request),
            )[0]
            for found in page.objects
        ]
        kind = {"kind": f"{request.resource.kind}List", "apiVersion": request.resource.api_version}
        return Answer(body={**kind, "metadata": {"resourceVersion": str(self._store.version)}, "items": deleted})


def _name(found: JsonObject) -> str:
    return str(found["metadata"]["name"])


def _as_dry_run(options: DeleteOptions, request: ApiRequest) -> DeleteOptions:
    return DeleteOptions(**{**vars(options), "dry_run": options.dry_run or request.is_dry_run})


def _deletion_body(resource: ResourceType, found: JsonObject, gone: bool) -> JsonObject:
    """The deleted object if it still exists or is a pod; otherwise a success."""
    if not gone or resource.id in (PODS, "services", "serviceaccounts"):
        return with_kind(resource, found)
    return success(resource.plural, resource.group, _name(found), found["metadata"]["uid"])


def _known_body(request: ApiRequest, api: ServedApi) -> tuple[JsonObject, tuple[str, ...]]:
    """The body without unknown fields, and warnings about them. Raises ApiError if the client wants an error."""
    body, unknown = without_unknown_fields(request.resource.id, check_body(request))
    level = request.query.get("fieldValidation", "Warn")
    if api.is_old:
        return body, ()  # it knows no validation of fields
    if unknown and level == "Strict":
        kind = request.resource
        raise bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: strict decoding error: '
            + ", ".join(unknown)
        )
    return body, tuple(unknown) if level == "Warn" else ()


def _check_binding(name: str, pod: JsonObject, binding: JsonObject) -> None:
    """Raises ApiError if the pod cannot be placed, or if the client means another pod."""
    target, spec = value_at(binding, "target", default={}), pod["spec"]
    if not isinstance(target, dict) or not isinstance(target.get("name"), str) or not target["name"]:
        raise bad_request("target.name: the name of a node is required")
    if target.get("kind") not in (None, "", "Node"):
        raise invalid("Binding", "", name, [not_supported("target.kind", target["kind"], ("Node", "<empty>"))])
    uid, wanted = pod["metadata"]["uid"], value_at(binding, "metadata", "uid")
    if wanted and wanted != uid:
        raise conflict(
            BINDING, name, f"Precondition failed: UID in precondition: {wanted!s:.80}, UID in object meta: {uid}"
        )
    if is_being_deleted(pod):
        raise conflict(BINDING, name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict(BINDING, name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise conflict(BINDING, name, f"pod {name} has non-empty .spec.schedulingGates")


def _pod_on_its_node(pod: JsonObject, binding: JsonObject, now: float) -> JsonObject:
    """The pod on its node, with the labels and annotations of the binding and the condition `PodScheduled`."""
    given = binding.get("metadata") or {}
    metadata = dict(pod["metadata"])
    for name in ("annotations", "labels"):
        if isinstance(more := given.get(name), dict) and more:
            metadata[name] = {**metadata.get(name, {}), **more}
    known = value_at(pod, "status", "conditions", default=[])
    conditions = with_condition(known, "PodScheduled", "True", now, reason=None, message=None)
    return {
        **pod,
        "metadata": metadata,
        "spec": {**pod["spec"], "nodeName": binding["target"]["name"]},
        "status": {**pod.get("status", {}), "conditions": conditions},
    }
