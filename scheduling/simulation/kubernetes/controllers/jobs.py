"""The Job controller: creates and deletes the pods of Jobs, counts their ends, and finishes Jobs. Pure.

It follows the Jobs of Kubernetes 1.33 in what clients rely on: Indexed and NonIndexed completion, parallelism, suspend,
backoffLimit with growing delays, activeDeadlineSeconds and ttlSecondsAfterFinished. Pods carry the
finalizer `job-tracking` until their end is counted, so no end is lost when somebody deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.resources import BY_ID, JOBS, PODS
from scheduling.simulation.kubernetes.api.writing import FINAL_PHASES, DeleteOptions
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    annotations_of,
    condition_of,
    controller_of,
    deep_copy,
    finalizers_of,
    is_being_deleted,
    name_of,
    seconds_of,
    timestamp,
    uid_of,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ChangeKind, ObjectChange

from .base import Controller
from .event_recorder import NORMAL, WARNING

INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
SOURCE = "job-controller"
FIRST_BACKOFF_S, MOST_BACKOFF_S = 10.0, 600.0


@dataclass(frozen=True, kw_only=True)
class _JobPods:
    """The pods of a Job, by what the controller does with them."""

    active: list[JsonObject]
    terminating: list[JsonObject]
    ended: list[JsonObject]  # not counted yet


class JobController(Controller):
    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == JOBS:
            self.enqueue(change.key)
            if change.kind == ChangeKind.DELETED:
                for pod in self.plane.pods.of_owner(uid_of(change.stored.object)):
                    self.enqueue(pod)
        elif change.key.resource == PODS and (job := _job_key(change.stored.object)) is not None:
            self.enqueue(job)
            if self.plane.store.get(job) is None:
                self.enqueue(change.key)

    def reconcile(self, key: ObjectKey, now: float) -> None:
        if key.resource == PODS:
            self._release_orphan(key)
            return
        job = self.plane.store.get(key)
        if job is None:
            return
        pods = self._pods_of(job)
        if is_being_deleted(job):
            self._release(pods.ended)
            return
        self._count_ends(key, job, pods, now)
        job = self.plane.store.get(key)
        assert job is not None
        if is_finished(job):
            self._delete_pods(pods.active, now)
            self._expire(key, job, now)
            return
        self._continue(key, job, self._pods_of(job), now)
        self._write_counts(key)

    def _release_orphan(self, key: ObjectKey) -> None:
        """Nobody counts the end of a pod whose Job is gone."""
        pod = self.plane.store.get(key)
        job = None if pod is None else self.plane.store.get(_job_key(pod) or key)
        if pod is not None and (job is None or uid_of(job) != (controller_of(pod) or {}).get("uid")):
            self._release([pod])

    # Pods

    def _pods_of(self, job: JsonObject) -> _JobPods:
        found = [self.plane.store.get(key) for key in self.plane.pods.of_owner(uid_of(job))]
        pods = sorted((pod for pod in found if pod is not None), key=name_of)
        rest = [pod for pod in pods if _phase(pod) not in FINAL_PHASES]
        waits = job["spec"].get("podReplacementPolicy") == "Failed" and not is_being_deleted(job)
        ended = [pod for pod in pods if _phase(pod) in FINAL_PHASES or (is_being_deleted(pod) and not waits)]
        return _JobPods(
            active=[pod for pod in rest if not is_being_deleted(pod)],
            terminating=[pod for pod in rest if is_being_deleted(pod)],
            ended=[pod for pod in ended if TRACKING in finalizers_of(pod)],
        )

    def _count_ends(self, key: ObjectKey, job: JsonObject, pods: _JobPods, now: float) -> None:
        """Add pods that ended to the status."""
        if not pods.ended:
            return
        status = dict(job.get("status", {}))
        for pod in pods.ended:
            if _phase(pod) == "Succeeded":
                self._count_success(job, status, pod)
            else:
                status["failed"] = status.get("failed", 0) + 1
        self.plane.writer.patch_status(key, {**status, "uncountedTerminatedPods": {}})
        self._release(pods.ended)
        if any(_phase(pod) != "Succeeded" for pod in pods.ended):
            self._schedule_retry(key, now)

    def _count_success(self, job: JsonObject, status: JsonObject, pod: JsonObject) -> None:
        if job["spec"].get("completionMode") != "Indexed":
            status["succeeded"] = status.get("succeeded", 0) + 1
            return
        done = parse_indexes(status.get("completedIndexes", ""))
        done.add(int(annotations_of(pod).get(INDEX, "0")))
        status["completedIndexes"] = format_indexes(done)
        status["succeeded"] = len(done)

    def _release(self, pods: Sequence[JsonObject]) -> None:
        """Remove the finalizer of pods whose end is counted, or whose Job is gone."""
        for pod in pods:
            if TRACKING not in finalizers_of(pod):
                continue
            finalizers = [one for one in finalizers_of(pod) if one != TRACKING]
            metadata = {**pod["metadata"], "finalizers": finalizers}
            if not finalizers:
                del metadata["finalizers"]
            self.plane.writer.put(_pod_key(pod), {**pod, "metadata": metadata})

    def _schedule_retry(self, key: ObjectKey, now: float) -> None:
        """Pods are replaced after a delay that doubles with every failure."""
        job = self.plane.store.get(key)
        assert job is not None
        self.schedule(self._retry_at(job, now), key)

    def _retry_at(self, job: JsonObject, now: float) -> float:
        failed = int(value_at(job, "status", "failed", default=0))
        last = self._last_failure(job)
        if not failed or last is None:
            return now
        return last + min(FIRST_BACKOFF_S * 2.0 ** min(failed - 1, 10), MOST_BACKOFF_S)

    def _last_failure(self, job: JsonObject) -> float | None:
        """When the last failed pod ended, as far as pods are still known."""
        pods = [self.plane.store.get(key) for key in self.plane.pods.of_owner(uid_of(job))]
        ends = [
            _end_of(pod) for pod in pods if pod is not None and _phase(pod) == "Failed" and not is_being_deleted(pod)
        ]
        return max((end for end in ends if end is not None), default=None)

    # The Job

    def _continue(self, key: ObjectKey, job: JsonObject, pods: _JobPods, now: float) -> None:
        """Finish, suspend or run the Job."""
        spec, status = job["spec"], job.get("status", {})
        failed = int(status.get("failed", 0)) + sum(map(_restarts, pods.active))
        if target := self._target(job):
            self._finish(key, pods, *target, now)
        elif failed > spec["backoffLimit"]:
            text = "Job has reached the specified backoff limit"
            self._finish(key, pods, "Failed", "BackoffLimitExceeded", text, now)
        elif self._is_past_deadline(key, job, now):
            text = "Job was active longer than specified deadline"
            self._finish(key, pods, "Failed", "DeadlineExceeded", text, now)
        elif self._is_complete(job, pods):
            self._finish(key, pods, "Complete", "CompletionsReached", "Reached expected number of succeeded pods", now)
        elif spec.get("suspend"):
            self._suspend(key, job, pods, now)
        else:
            self._run(key, job, pods, now)

    def _target(self, job: JsonObject) -> tuple[str, str, str] | None:
        """The end that was decided while pods still ran: its condition, reason and message."""
        for early, kind in (("SuccessCriteriaMet", "Complete"), ("FailureTarget", "Failed")):
            found = condition_of(job, early) or {}
            if found.get("status") == "True":
                return kind, found["reason"], found["message"]
        return None

    def _is_past_deadline(self, key: ObjectKey, job: JsonObject, now: float) -> bool:
        seconds, started = job["spec"].get("activeDeadlineSeconds"), value_at(job, "status", "startTime")
        if seconds is None or started is None or job["spec"].get("suspend"):
            return False
        due = seconds_of(started) + seconds
        if due > now:
            self.schedule(due, key)
        return bool(due <= now)

    def _is_complete(self, job: JsonObject, pods: _JobPods) -> bool:
        succeeded, wanted = int(value_at(job, "status", "succeeded", default=0)), job["spec"].get("completions")
        if wanted is None:  # a work queue: one success and no pod left
            return succeeded > 0 and not pods.active and not pods.terminating
        return succeeded >= int(wanted)

    def _finish(self, key: ObjectKey, pods: _JobPods, kind: str, reason: str, message: str, now: float) -> None:
        """Stop what still runs. The final condition comes when no pod is left, so that of a silent node comes late."""
        job = self.plane.store.get(key)
        assert job is not None
        self._delete_pods(pods.active, now)
        conditions = value_at(job, "status", "conditions", default=[])
        left = self._pods_of(job)
        is_over = self.plane.api.is_old or not (left.active or left.terminating)
        for name in self._final_conditions(kind, is_over):
            conditions = with_condition(
                conditions, name, "True", now, reason=reason, message=message, lastProbeTime=timestamp(now)
            )
        self.plane.writer.patch_status(key, {"conditions": conditions})
        if is_over:
            self._report_end(key, kind, reason, message, now)

    def _final_conditions(self, kind: str, is_over: bool) -> list[str]:
        early = [] if self.plane.api.is_old else [{"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[kind]]
        return [*early, kind] if is_over else early

    def _report_end(self, key: ObjectKey, kind: str, reason: str, message: str, now: float) -> None:
        done = {"completionTime": timestamp(now)} if kind == "Complete" else {}
        self.plane.writer.patch_status(key, {"active": None, "ready": 0, "terminating": 0, **done})
        job = self.plane.store.get(key)
        assert job is not None
        text = "Job completed" if kind == "Complete" else message
        event = (NORMAL, "Completed") if kind == "Complete" else (WARNING, reason)
        self.plane.events.record(key, job, event[0], event[1], text, SOURCE, now)

    def _suspend(self, key: ObjectKey, job: JsonObject, pods: _JobPods, now: float) -> None:
        self._delete_pods(pods.active, now)
        if (condition_of(job, "Suspended") or {}).get("status") != "True":
            conditions = self._suspended_condition(job, "True", "JobSuspended", "Job suspended", now)
            self.plane.writer.patch_status(key, {"conditions": conditions, "startTime": None})
            self.plane.events.record(key, job, NORMAL, "Suspended", "Job suspended", SOURCE, now)

    def _suspended_condition(
        self, job: JsonObject, status: str, reason: str, text: str, now: float
    ) -> list[JsonObject]:
        known = value_at(job, "status", "conditions", default=[])
        return with_condition(
            known, "Suspended", status, now, reason=reason, message=text, lastProbeTime=timestamp(now)
        )

    def _run(self, key: ObjectKey, job: JsonObject, pods: _JobPods, now: float) -> None:
        """Bring the number of pods to what the Job wants."""
        self._note_start(key, job, now)
        surplus = len(pods.active) - self._wanted_pod_count(job)
        if surplus > 0:
            self._delete_pods(pods.active[-surplus:], now)
        elif surplus < 0 and (retry_at := self._retry_at(job, now)) > now:
            self.schedule(retry_at, key)
        elif surplus < 0:
            self._create_pods(job, pods, -surplus, now)

    def _note_start(self, key: ObjectKey, job: JsonObject, now: float) -> None:
        if value_at(job, "status", "startTime") is not None:
            return
        status: JsonObject = {"startTime": timestamp(now)}
        if (condition_of(job, "Suspended") or {}).get("status") == "True":
            status["conditions"] = self._suspended_condition(job, "False", "JobResumed", "Job resumed", now)
            self.plane.events.record(key, job, NORMAL, "Resumed", "Job resumed", SOURCE, now)
        self.plane.writer.patch_status(key, status)
        if (seconds := job["spec"].get("activeDeadlineSeconds")) is not None:
            self.schedule(now + seconds, key)

    def _wanted_pod_count(self, job: JsonObject) -> int:
        """How many pods should run now."""
        spec = job["spec"]
        succeeded = int(value_at(job, "status", "succeeded", default=0))
        if spec.get("completions") is None:
            return 0 if succeeded else int(spec["parallelism"])
        return min(int(spec["parallelism"]), max(int(spec["completions"]) - succeeded, 0))

    def _create_pods(self, job: JsonObject, pods: _JobPods, count: int, now: float) -> None:
        """Create pods. Those that are being deleted are replaced when they are gone if the Job says so."""
        if job["spec"].get("podReplacementPolicy") == "Failed":
            count -= len(pods.terminating)
        indexes: Sequence[int | None] = [None] * max(count, 0)
        if job["spec"].get("completionMode") == "Indexed":
            busy = {int(annotations_of(pod).get(INDEX, "0")) for pod in (*pods.active, *pods.terminating)}
            indexes = [*missing_indexes(job, busy)][: max(count, 0)]
        for index in indexes:
            self._create_pod(job, index, now)

    def _create_pod(self, job: JsonObject, index: int | None, now: float) -> None:
        key = ObjectKey(JOBS, str(job["metadata"]["namespace"]), name_of(job))
        try:
            pod = self.plane.writer.create(BY_ID[PODS], key.namespace, new_pod(job, index), now)
        except ApiError as error:
            text = f"Error creating: {error.message}"
            self.plane.events.record(key, job, WARNING, "FailedCreate", text, SOURCE, now)
            self.schedule(now + FIRST_BACKOFF_S, key)
            return
        text = f"Created pod: {name_of(pod)}"
        self.plane.events.record(key, job, NORMAL, "SuccessfulCreate", text, SOURCE, now)

    def _delete_pods(self, pods: Sequence[JsonObject], now: float) -> None:
        for pod in pods:
            key = _pod_key(pod)
            found = self.plane.store.get(key)
            if found is None or is_being_deleted(found):
                continue
            self._release([found])  # what the controller stops itself is not counted as a failure
            self.plane.writer.delete(key, now, DeleteOptions())

    def _write_counts(self, key: ObjectKey) -> None:
        job = self.plane.store.get(key)
        if job is None or is_finished(job):
            return
        pods = self._pods_of(job)
        ready = sum((condition_of(pod, "Ready") or {}).get("status") == "True" for pod in pods.active)
        self.plane.writer.patch_status(
            key, {"active": len(pods.active) or None, "ready": ready, "terminating": len(pods.terminating)}
        )

    def _expire(self, key: ObjectKey, job: JsonObject, now: float) -> None:
        """Delete a finished Job after its time to live, with its pods."""
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        if seconds is None:
            return
        finished = next(one for one in job["status"]["conditions"] if one["type"] in ("Complete", "Failed"))
        due = seconds_of(finished["lastTransitionTime"]) + seconds
        if due <= now:
            self.plane.writer.delete(key, now, DeleteOptions(propagation="Foreground"))
        else:
            self.schedule(due, key)


def new_pod(job: JsonObject, index: int | None) -> JsonObject:
    """The pod that a Job creates from its template."""
    template, name = deep_copy(job["spec"]["template"]), name_of(job)
    given = template.get("metadata") or {}
    metadata: JsonObject = {
        "generateName": f"{name}-" if index is None else f"{name}-{index}-",
        "labels": {**(given.get("labels") or {})},
        "annotations": {**(given.get("annotations") or {})},
        "finalizers": [TRACKING],
        "ownerReferences": [_owner_reference(job)],
    }
    if index is not None:
        metadata["labels"][INDEX] = metadata["annotations"][INDEX] = str(index)
        template["spec"].setdefault("hostname", f"{name}-{index}")
        for container in template["spec"]["containers"]:
            container["env"] = [*(container.get("env") or []), _index_variable()]
    if not metadata["annotations"]:
        del metadata["annotations"]
    return {"metadata": metadata, "spec": template["spec"]}


def _index_variable() -> JsonObject:
    path = f"metadata.labels['{INDEX}']"
    return {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _owner_reference(job: JsonObject) -> JsonObject:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name_of(job),
        "uid": uid_of(job),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _job_key(pod: JsonObject) -> ObjectKey | None:
    """The Job that controls a pod."""
    owner = controller_of(pod)
    if owner is None or owner.get("kind") != "Job" or owner.get("apiVersion") != "batch/v1":
        return None
    return ObjectKey(JOBS, str(pod["metadata"]["namespace"]), str(owner.get("name")))


def _pod_key(pod: JsonObject) -> ObjectKey:
    return ObjectKey(PODS, str(pod["metadata"]["namespace"]), name_of(pod))


def _phase(pod: JsonObject) -> str:
    return str(value_at(pod, "status", "phase", default=""))


def _restarts(pod: JsonObject) -> int:
    """Restarts of containers count as failures while the pod runs."""
    statuses = value_at(pod, "status", "containerStatuses", default=[])
    return sum(int(one.get("restartCount", 0)) for one in statuses)


def _end_of(pod: JsonObject) -> float | None:
    """When the last container of a pod ended."""
    ends = [
        value_at(one, "state", "terminated", "finishedAt")
        for one in value_at(pod, "status", "containerStatuses", default=[])
    ]
    times = [seconds_of(end) for end in ends if end]
    return max(times, default=None)


def is_finished(job: JsonObject) -> bool:
    return any((condition_of(job, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed"))


def parse_indexes(text: str) -> set[int]:
    """The indexes of a text such as `0,2-4`."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def format_indexes(indexes: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run_text(run) for run in runs)


def _run_text(run: list[int]) -> str:
    if len(run) == 1:
        return str(run[0])
    return f"{run[0]},{run[1]}" if len(run) == 2 else f"{run[0]}-{run[-1]}"


def missing_indexes(job: JsonObject, busy: set[int]) -> Iterator[int]:
    """The lowest indexes that have neither succeeded nor a pod."""
    done = parse_indexes(value_at(job, "status", "completedIndexes", default=""))
    return (index for index in range(int(job["spec"]["completions"])) if index not in done and index not in busy)
