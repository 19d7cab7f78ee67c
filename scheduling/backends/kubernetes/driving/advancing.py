"""Carries out the steps of attempts that `admission` decided. Everything may be repeated, by any process.

Failure story: a step that was cut off is decided again from what the API server then shows. Two processes at once: the
first one to write an annotation wins, because the patch tests that it is still empty; the other one's step is refused
and decided again. Binding a pod twice is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from acmeweb.common.http_client import RequestDeadline

from ...base import BackendError, RequestRejected
from ..api_client import JSON_PATCH, MERGE_PATCH, ApiClient
from ..api_errors import CONFLICT, NOT_FOUND, CommandRefused
from ..attempts import OwnAttempt
from ..ends import PodEnd
from ..fields import text_at
from ..following import PODS, ClusterFollower
from ..plans import ENDED_ANNOTATION, end_annotation, read_plan, texts_annotation
from ..pod_objects import ADMITTED_ANNOTATION
from ..pods import Pod
from .admission import SINGLE_POD, Admit, CreatePods, DeleteOwner, DeletePods, Place, RecordEnd, Step
from .parallel import Call, ParallelCommands, StartedChains
from .submission import create_once, delete_object, dependents

KIND_WITH_DEADLINE = "Job"
OVERDUE_S = 1  # the deadline of a Job that was ended: it fails, and its controller creates no more pods


class StepRunner:
    def __init__(self, api: ApiClient, cluster: ClusterFollower, commands: ParallelCommands) -> None:
        self._api, self._cluster, self._commands = api, cluster, commands
        self.refusals: dict[str, str] = {}  # by the uid of the owner: what the cluster said to its last step

    def run(self, steps: Sequence[Step], now: datetime, deadline: RequestDeadline) -> None:
        """Make the steps: of each first what concerns the owner, then what concerns its pods.

        Raises the first error that would concern all other commands too.
        """
        self.finish(steps, self.start(steps, now, deadline))

    def start(self, steps: Sequence[Step], now: datetime, deadline: RequestDeadline) -> StartedChains[None]:
        """Start the steps without waiting for them. `finish` must follow."""
        return self._commands.start([partial(self._begin, step, now, deadline) for step in steps], deadline)

    def finish(self, steps: Sequence[Step], started: StartedChains[None]) -> None:
        results = started.results()
        for step, result in zip(steps, results, strict=True):
            self._note_refusal(step.attempt.owner.uid, result.errors)
        for error in (error for result in results for error in result.errors):
            if not isinstance(error, RequestRejected):
                raise error

    def _note_refusal(self, uid: str, errors: Sequence[BackendError]) -> None:
        self.refusals.pop(uid, None)
        if refused := [error for error in errors if isinstance(error, RequestRejected)]:
            self.refusals[uid] = str(refused[-1])

    def _begin(self, step: Step, now: datetime, deadline: RequestDeadline) -> tuple[None, list[Call]]:
        """Make the part of a step that must be done before its pods are touched. Return the rest."""
        return None, self._begin_step(step, now, deadline)

    def _begin_step(self, step: Step, now: datetime, deadline: RequestDeadline) -> list[Call]:
        match step:
            case CreatePods(attempt=attempt):
                owner = self._api.get(owner_path(attempt), deadline)
                if has_ended(owner, attempt):
                    return []
                return [partial(create_once, self._api, self._cluster, new, deadline) for new in dependents(owner)]
            case Place(attempt=attempt, placements=placements):
                if isinstance(step, Admit) and attempt.owner.kind != SINGLE_POD:
                    uids = texts_annotation([pod.uid for pod, _ in placements])
                    self._write_plan(attempt, ADMITTED_ANNOTATION, uids, deadline)
                return [partial(self._place, pod, node, deadline) for pod, node in placements]
            case RecordEnd(attempt=attempt, end=end):
                return self._record_end(attempt, end, now, deadline)
            case DeletePods(pods=pods):
                return [partial(self._delete_pod, pod, deadline) for pod in pods]
            case DeleteOwner(attempt=attempt):
                self._delete_owner(attempt, deadline)
        return []

    def _record_end(self, attempt: OwnAttempt, end: PodEnd, now: datetime, deadline: RequestDeadline) -> list[Call]:
        """Record how the attempt ended. A Job that is suspended has no pods yet, and its deadline does not count."""
        if attempt.owner.suspended:
            self._delete_owner(attempt, deadline)
            return []
        self._write_plan(attempt, ENDED_ANNOTATION, end_annotation(end, now), deadline, again=bool(attempt.plan.ended))
        for job in attempt.parts:
            if job.kind == KIND_WITH_DEADLINE and job.end is None and job.gone_at is None:
                path = object_path(job.collection, job.namespace, job.name)
                self._patch(job.collection, path, {"spec": {"activeDeadlineSeconds": OVERDUE_S}}, deadline)
        return [partial(self._delete_pod, pod, deadline) for pod in attempt.live_pods if not pod.is_deleting]

    def _write_plan(
        self, attempt: OwnAttempt, annotation: str, text: str, deadline: RequestDeadline, *, again: bool = False
    ) -> None:
        """Write an annotation that is still empty, of an attempt whose end is not recorded. Raises CommandRefused if
        another process was faster. `again`: there is an end, and any process would correct it in the same way.
        """
        empty = [] if again else dict.fromkeys((annotation, ENDED_ANNOTATION))
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": attempt.owner.uid},
            *({"op": "test", "path": _pointer(name), "value": ""} for name in empty),
            {"op": "replace", "path": _pointer(annotation), "value": text},
        ]
        self._patch(attempt.owner.collection, owner_path(attempt), operations, deadline, JSON_PATCH)

    def _patch(
        self, collection: str, path: str, body: object, deadline: RequestDeadline, content_type: str = MERGE_PATCH
    ) -> None:
        answer = self._api.command("PATCH", path, deadline, body, content_type)
        self._cluster.expect_version(collection, text_at(answer, "metadata", "resourceVersion"))

    def _place(self, pod: Pod, node: str, deadline: RequestDeadline) -> None:
        path = object_path(PODS, pod.namespace, pod.name)
        if pod.is_gated:
            self._patch(PODS, path, {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": None}}, deadline)
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        try:
            self._api.command("POST", f"{path}/binding", deadline, binding)
        except CommandRefused as error:
            if error.status not in (CONFLICT, NOT_FOUND):  # placed by another process, or deleted
                raise
        self._cluster.pods.expect(pod.uid, lambda found: found is None or bool(found.node))

    def _delete_pod(self, pod: Pod, deadline: RequestDeadline) -> None:
        """With the grace period of the pod. Its object remains until its containers have ended."""
        delete_object(self._api, object_path(PODS, pod.namespace, pod.name), deadline, pod.uid)
        self._cluster.pods.expect(pod.uid, lambda found: found is None or found.is_deleting or not found.is_live)

    def _delete_owner(self, attempt: OwnAttempt, deadline: RequestDeadline) -> None:
        delete_object(self._api, owner_path(attempt), deadline, attempt.owner.uid)
        for collection in self._cluster.workload_collections():
            if collection.path == attempt.owner.collection:
                collection.expect(attempt.owner.uid, lambda found: found is None)


def has_ended(owner: Mapping[str, Any], attempt: OwnAttempt) -> bool:
    """Whether the owner, as it was read now, has an end, or is another object with the same name."""
    plan = read_plan(owner)
    return plan is None or plan.ended is not None or text_at(owner, "metadata", "uid") != attempt.owner.uid


def _pointer(annotation: str) -> str:
    return f"/metadata/annotations/{annotation.replace('/', '~1')}"


def owner_path(attempt: OwnAttempt) -> str:
    return object_path(attempt.owner.collection, attempt.owner.namespace, attempt.owner.name)


def object_path(collection: str, namespace: str, name: str) -> str:
    """`/api/v1/pods`, or the same within a namespace → `/api/v1/namespaces/research/pods/NAME`"""
    base, _, plural = collection.rpartition("/")
    within = base if "/namespaces/" in base else f"{base}/namespaces/{quote(namespace, safe='')}"
    return f"{within}/{plural}/{quote(name, safe='')}"
