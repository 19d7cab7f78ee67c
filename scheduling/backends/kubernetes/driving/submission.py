"""Submits attempts: creates the owner of each, and what follows from it.

Failure story: the owner comes first, and everything else is computed from it. If Acme is killed after that, the attempt
is found by its key, and `advance_jobs` of any process creates the rest. If a request is sent twice, the API server says
that the object exists, because names depend on the key only; if its labels are those of the attempt, that is success.
If the cluster refuses what follows from an owner, the owner is deleted again, and the refusal is the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from acmeweb.common.errors import MalformedResponse
from acmeweb.common.http_client import RequestDeadline
from jobs.core.gpu_shares import whole_gpus

from ...base import BackendError, ClusterUnreachable, OutcomeUnknown, PlacementRejected, RequestRejected, SubmitRequest
from ..api_client import ApiClient
from ..api_errors import ALREADY_EXISTS, CONFLICT, NOT_FOUND, CommandRefused
from ..fields import require_text, text_at, texts_at
from ..following import ClusterFollower
from ..nodes import NodeReport
from ..ownership import INSTALLATION_LABEL, KEY_LABEL
from ..plans import ENDED_ANNOTATION, texts_annotation
from ..pod_objects import (
    ADMITTED_ANNOTATION,
    NODES_ANNOTATION,
    SCHEDULER,
    ApiFeatures,
    NewObject,
    dependent_objects,
    owner_object,
)
from ..pod_template import PodTemplate
from .capacity import FreeCapacity, PodRequests
from .parallel import Call, ChainResult, ParallelCommands

BACKGROUND = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}


@dataclass(frozen=True, kw_only=True)
class CreatedOwner:
    """An owner as the API server returned it."""

    uid: str
    version: str
    collection: str
    body: Mapping[str, Any]

    @property
    def path(self) -> str:
        return f"{self.collection}/{require_text(self.body, 'metadata', 'name')}"

    @property
    def has_its_node(self) -> bool:
        """Whether it is a single pod that was created on its node."""
        return bool(text_at(self.body, "spec", "nodeName"))


@dataclass(frozen=True, kw_only=True)
class ClusterLook:
    """What all submissions of one call need to know of the cluster."""

    features: ApiFeatures
    nodes: Mapping[str, NodeReport]  # by name
    free: FreeCapacity


class Submitter:
    def __init__(
        self, api: ApiClient, cluster: ClusterFollower, template: PodTemplate, commands: ParallelCommands
    ) -> None:
        self._api, self._cluster, self._template, self._commands = api, cluster, template, commands

    def submit_all(
        self, requests: Sequence[SubmitRequest], look: ClusterLook, deadline: RequestDeadline
    ) -> list[CreatedOwner | BackendError]:
        """The owners, or why there is none."""
        chains = [partial(self._create, request, look, deadline) for request in requests]
        return [self._owner_or_refusal(result, deadline) for result in self._commands.run(chains, deadline)]

    def _create(
        self, request: SubmitRequest, look: ClusterLook, deadline: RequestDeadline
    ) -> tuple[CreatedOwner, list[Call]]:
        """Create the owner. Return it, and what creates the objects that follow from it."""
        owner = self._create_owner(request, look, deadline)
        later = dependents(owner.body)
        return owner, [partial(create_once, self._api, self._cluster, new, deadline) for new in later]

    def _owner_or_refusal(
        self, result: ChainResult[CreatedOwner], deadline: RequestDeadline
    ) -> CreatedOwner | BackendError:
        """The owner, unless the cluster refused what follows from it: then it is deleted.

        What failed for another reason is created by `advance_jobs`.
        """
        owner = result.first
        refusal = next((error for error in result.later_errors if isinstance(error, RequestRejected)), None)
        if refusal is None or isinstance(owner, BackendError):
            return owner
        with suppress(BackendError):
            delete_object(self._api, owner.path, deadline)
        return refusal

    def _create_owner(self, request: SubmitRequest, look: ClusterLook, deadline: RequestDeadline) -> CreatedOwner:
        check_nodes(request, look.nodes)
        new = with_plan(owner_object(request, self._template, look.features), request, look.free)
        try:
            answer = self._api.command("POST", new.collection, deadline, new.body)
        except CommandRefused as error:
            if error.status == NOT_FOUND:  # the namespace is missing, which is not the job's fault
                raise ClusterUnreachable(f"{self._api.server}: {error}") from None
            if error.reason != ALREADY_EXISTS:
                raise
            answer = self._existing(new, request, deadline)
        owner = _created(self._api.server, new.collection, answer)
        self._cluster.expect_version(new.collection, owner.version)
        return owner

    def _existing(self, new: NewObject, request: SubmitRequest, deadline: RequestDeadline) -> Mapping[str, Any]:
        """The owner that an earlier try created."""
        name = text_at(new.body, "metadata", "name")
        found = self._api.get(f"{new.collection}/{name}", deadline)
        labels = texts_at(found, "metadata", "labels")
        if (labels.get(KEY_LABEL), labels.get(INSTALLATION_LABEL, "")) != (request.key, request.installation):
            raise RequestRejected(f"an object with the name {name} exists, and it does not belong to this attempt")
        if text_at(found, "metadata", "deletionTimestamp"):
            raise OutcomeUnknown(f"{self._api.server}: {name} exists and is being deleted")
        return found


def check_nodes(request: SubmitRequest, nodes: Mapping[str, NodeReport]) -> None:
    """Raises PlacementRejected for what can never start on these nodes."""
    for name in request.nodes:
        if name not in nodes:
            raise PlacementRejected(f"node {name} does not exist on the cluster")
        gpus = whole_gpus(nodes[name].gpus, nodes[name].mig_slices)
        if request.gpus_per_node > gpus:
            raise PlacementRejected(f"node {name} has {gpus} GPUs, and the job requests {request.gpus_per_node}")
        if request.mig_profile and request.mig_profile not in nodes[name].mig_slices:
            raise PlacementRejected(f"node {name} has no MIG slices {request.mig_profile}")


def with_plan(new: NewObject, request: SubmitRequest, free: FreeCapacity) -> NewObject:
    """The owner with the annotations of its plan. A single pod that cannot start now waits for `advance_jobs`."""
    metadata, spec = new.body["metadata"], new.body.get("spec", {})
    annotations = {**metadata["annotations"], ENDED_ANNOTATION: "", NODES_ANNOTATION: texts_annotation(request.nodes)}
    if not is_single_pod(new):
        annotations[ADMITTED_ANNOTATION] = ""
    elif _obstacle(request, free):
        spec = {**{name: value for name, value in spec.items() if name != "nodeName"}, "schedulerName": SCHEDULER}
    parts = {"spec": spec} if spec else {}
    return NewObject(
        collection=new.collection, body={**new.body, **parts, "metadata": {**metadata, "annotations": annotations}}
    )


def is_single_pod(new: NewObject) -> bool:
    return new.body.get("kind") == "Pod"


def _obstacle(request: SubmitRequest, free: FreeCapacity) -> str:
    slices = {request.mig_profile: 1} if request.mig_profile else {}
    need = PodRequests(
        gpus=request.gpus_per_node + len(slices),
        cpus=request.cpus_per_node,
        memory_mb=request.memory_per_node_mb,
        mig_slices=slices,
    )
    return free.reserve(request.nodes[0], need)


def _created(server: str, collection: str, answer: Mapping[str, Any]) -> CreatedOwner:
    try:
        uid = require_text(answer, "metadata", "uid")
        require_text(answer, "metadata", "name")
    except MalformedResponse as error:
        raise OutcomeUnknown(f"{server} accepted a submission with an invalid response: {error}") from None
    version = text_at(answer, "metadata", "resourceVersion")
    return CreatedOwner(uid=uid, version=version, collection=collection, body=answer)


def dependents(owner: Mapping[str, Any]) -> list[NewObject]:
    try:
        return dependent_objects(owner)
    except MalformedResponse:
        return []


def create_once(api: ApiClient, cluster: ClusterFollower, new: NewObject, deadline: RequestDeadline) -> None:
    """Create an object, unless it exists."""
    try:
        answer = api.command("POST", new.collection, deadline, new.body)
    except CommandRefused as error:
        if error.reason != ALREADY_EXISTS:
            raise
        return
    cluster.expect_version(new.collection, text_at(answer, "metadata", "resourceVersion"))


def delete_object(api: ApiClient, path: str, deadline: RequestDeadline, uid: str = "") -> Mapping[str, Any]:
    """Delete an object with what it owns, if it is there. With the uid: no other object with this name."""
    body = {**BACKGROUND, **({"preconditions": {"uid": uid}} if uid else {})}
    try:
        return api.command("DELETE", path, deadline, body)
    except CommandRefused as error:
        if error.status == NOT_FOUND or (uid and error.status == CONFLICT):
            return {}
        raise
