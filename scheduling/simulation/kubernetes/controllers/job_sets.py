"""The controller of JobSets: creates their Jobs and their headless Service, and ends them with their Jobs. Pure.

Only what a client of one gang relies on is simulated: suspension, the end of all Jobs, `failurePolicy.maxRestarts`, and
`ttlSecondsAfterFinished`. A restart deletes the Jobs of the attempt before and creates all of them again.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduling.simulation.kubernetes.api.errors import ApiError
from scheduling.simulation.kubernetes.api.job_sets import PREFIX
from scheduling.simulation.kubernetes.api.resources import BY_ID, JOB_SETS, JOBS, SERVICES
from scheduling.simulation.kubernetes.api.writing import DeleteOptions
from scheduling.simulation.kubernetes.objects import (
    JsonObject,
    ObjectKey,
    changed,
    condition_of,
    controller_of,
    deep_copy,
    is_being_deleted,
    labels_of,
    name_of,
    seconds_of,
    uid_of,
    value_at,
    with_condition,
)
from scheduling.simulation.kubernetes.store import ObjectChange

from .base import Controller
from .event_recorder import WARNING

SOURCE = "jobset"
NAME_LABEL, JOB_NAME_LABEL, ATTEMPT_LABEL = (
    f"{PREFIX}/{name}" for name in ("jobset-name", "replicatedjob-name", "restart-attempt")
)
TERMINAL = {"Completed": "AllJobsCompleted", "Failed": "FailedJobs"}


class JobSetController(Controller):
    def observe(self, change: ObjectChange) -> None:
        if change.key.resource == JOB_SETS:
            self.enqueue(change.key)
        elif change.key.resource == JOBS and (name := labels_of(change.stored.object).get(NAME_LABEL)):
            self.enqueue(ObjectKey(JOB_SETS, change.key.namespace, name))

    def reconcile(self, key: ObjectKey, now: float) -> None:
        found = self.plane.store.get(key)
        if found is None or is_being_deleted(found):
            return
        if finished_at(found) is not None:
            self._expire(key, found, now)
            return
        jobs = self._jobs_of(found)
        current = [job for job in jobs if labels_of(job).get(ATTEMPT_LABEL) == str(_restarts(found))]
        for job in jobs:
            if job not in current:
                self._delete_job(job, now)
        if not self._is_ended(key, found, current, now):
            self._keep_service(key, found, now)
            self._keep_jobs(key, found, current, now)
        self._write_counts(key, current)

    def _jobs_of(self, found: JsonObject) -> list[JsonObject]:
        jobs = self.plane.store.objects(JOBS, str(found["metadata"]["namespace"]))
        uid = uid_of(found)
        return [one.object for one in jobs if (controller_of(one.object) or {}).get("uid") == uid]

    # The end

    def _is_ended(self, key: ObjectKey, found: JsonObject, jobs: list[JsonObject], now: float) -> bool:
        """Whether the JobSet has ended, or restarts all its Jobs."""
        if any(_has(job, "Failed") for job in jobs):
            most = int(value_at(found, "spec", "failurePolicy", "maxRestarts", default=0))
            if _restarts(found) < most:
                self.plane.writer.patch_status(key, {"restarts": _restarts(found) + 1})
                self.enqueue(key)
            else:
                failed = next(name_of(job) for job in jobs if _has(job, "Failed"))
                text = f"jobset failed due to one or more job failures (first failed job: {failed})"
                self._finish(key, "Failed", text, now)
            return True
        if jobs and len(jobs) == len(list(job_names(found))) and all(_has(job, "Complete") for job in jobs):
            self._finish(key, "Completed", "jobset completed successfully", now)
            return True
        return False

    def _finish(self, key: ObjectKey, kind: str, message: str, now: float) -> None:
        self._set_condition(key, kind, "True", TERMINAL[kind], message, now)
        self.plane.writer.patch_status(key, {"terminalState": kind})
        found = self.plane.store.get(key)
        assert found is not None
        for job in self._jobs_of(found):
            if not _has(job, "Complete") and not _has(job, "Failed"):
                self._delete_job(job, now)

    def _expire(self, key: ObjectKey, found: JsonObject, now: float) -> None:
        seconds, ended_at = found["spec"].get("ttlSecondsAfterFinished"), finished_at(found)
        if seconds is None or ended_at is None:
            return
        if ended_at + seconds <= now:
            self.plane.writer.delete(key, now, DeleteOptions(propagation="Foreground"))
        else:
            self.schedule(ended_at + seconds, key)

    # What it owns

    def _keep_service(self, key: ObjectKey, found: JsonObject, now: float) -> None:
        """The headless Service under whose name the pods find each other."""
        network = found["spec"]["network"]
        name = str(network.get("subdomain") or key.name)
        if not network.get("enableDNSHostnames") or self.plane.store.get(ObjectKey(SERVICES, key.namespace, name)):
            return
        spec = {
            "clusterIP": "None",
            "selector": {NAME_LABEL: key.name},
            "publishNotReadyAddresses": network["publishNotReadyAddresses"],
        }
        metadata = {"name": name, "ownerReferences": [_owner_reference(found)]}
        self._create(SERVICES, key, found, {"metadata": metadata, "spec": spec}, now)

    def _keep_jobs(self, key: ObjectKey, found: JsonObject, jobs: list[JsonObject], now: float) -> None:
        """Create missing Jobs, and suspend or resume those that exist."""
        suspended, present = found["spec"]["suspend"], {name_of(job): job for job in jobs}
        for name, replicated, index in job_names(found):
            if name not in present:
                self._create(JOBS, key, found, new_job(found, replicated, index, name), now)
            elif bool(present[name]["spec"].get("suspend")) != suspended:
                job_key = ObjectKey(JOBS, key.namespace, name)
                self.plane.writer.put(job_key, changed(present[name], "spec", "suspend", value=suspended))
        known = (condition_of(found, "Suspended") or {}).get("status", "False")
        if suspended != (known == "True"):
            reason, text = (
                ("SuspendedJobs", "jobset is suspended") if suspended else ("ResumeJobs", "jobset is resumed")
            )
            self._set_condition(key, "Suspended", "True" if suspended else "False", reason, text, now)

    def _create(self, resource: str, key: ObjectKey, found: JsonObject, new: JsonObject, now: float) -> None:
        if self.plane.store.get(ObjectKey(resource, key.namespace, new["metadata"]["name"])) is not None:
            return  # the Job of the attempt before is still being deleted; its deletion wakes this controller
        try:
            self.plane.writer.create(BY_ID[resource], key.namespace, new, now)
        except ApiError as error:
            self.plane.events.record(key, found, WARNING, "FailedCreate", error.message, SOURCE, now)

    def _delete_job(self, job: JsonObject, now: float) -> None:
        key = ObjectKey(JOBS, str(job["metadata"]["namespace"]), name_of(job))
        if not is_being_deleted(job):
            self.plane.writer.delete(key, now, DeleteOptions(propagation="Foreground"))

    # Status

    def _write_counts(self, key: ObjectKey, jobs: list[JsonObject]) -> None:
        found = self.plane.store.get(key)
        if found is None:
            return
        rows = [_replicated_status(one, jobs) for one in found["spec"]["replicatedJobs"]]
        self.plane.writer.patch_status(key, {"restarts": _restarts(found), "replicatedJobsStatus": rows})

    def _set_condition(self, key: ObjectKey, kind: str, status: str, reason: str, message: str, now: float) -> None:
        found = self.plane.store.get(key)
        known = value_at(found or {}, "status", "conditions", default=[])
        conditions = with_condition(known, kind, status, now, reason=reason, message=message)
        self.plane.writer.patch_status(key, {"conditions": conditions})


def job_names(found: JsonObject) -> Iterator[tuple[str, JsonObject, int]]:
    """The name of each Job, with the replicated Job that it is made from and its index in it."""
    for replicated in found["spec"]["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            yield f"{name_of(found)}-{replicated['name']}-{index}", replicated, index


def new_job(found: JsonObject, replicated: JsonObject, index: int, name: str) -> JsonObject:
    """A Job of a JobSet, with labels that tell which one it is also on its pods."""
    template = deep_copy(replicated["template"])
    given, spec, pod = template.get("metadata") or {}, template["spec"], template["spec"]["template"]
    marks = {
        NAME_LABEL: name_of(found),
        JOB_NAME_LABEL: replicated["name"],
        f"{PREFIX}/replicatedjob-replicas": str(replicated["replicas"]),
        f"{PREFIX}/job-index": str(index),
        ATTEMPT_LABEL: str(_restarts(found)),
    }
    metadata = pod["metadata"] = dict(pod.get("metadata") or {})
    for one in (given, metadata):
        one["labels"] = {**(one.get("labels") or {}), **marks}
        one["annotations"] = {**(one.get("annotations") or {}), **marks}
    network = found["spec"]["network"]
    if network.get("enableDNSHostnames"):
        pod["spec"].setdefault("subdomain", str(network.get("subdomain") or name_of(found)))
    spec["suspend"] = found["spec"]["suspend"]
    return {"metadata": {**given, "name": name, "ownerReferences": [_owner_reference(found)]}, "spec": spec}


def finished_at(found: JsonObject) -> float | None:
    """When the JobSet ended; None while it runs."""
    ends = [condition_of(found, kind) for kind in TERMINAL]
    times = [one["lastTransitionTime"] for one in ends if one and one["status"] == "True"]
    return seconds_of(times[0]) if times else None


def _replicated_status(replicated: JsonObject, jobs: list[JsonObject]) -> JsonObject:
    mine = [job for job in jobs if labels_of(job).get(JOB_NAME_LABEL) == replicated["name"]]
    rest = [job for job in mine if not _has(job, "Complete") and not _has(job, "Failed")]
    ready = [one for one in rest if value_at(one, "status", "ready", default=0) >= one["spec"]["parallelism"]]
    return {
        "name": replicated["name"],
        "ready": len(ready),
        "succeeded": sum(_has(job, "Complete") for job in mine),
        "failed": sum(_has(job, "Failed") for job in mine),
        "active": sum(bool(value_at(job, "status", "active")) for job in rest),
        "suspended": sum(_has(job, "Suspended") for job in rest),
    }


def _has(job: JsonObject, kind: str) -> bool:
    return (condition_of(job, kind) or {}).get("status") == "True"


def _restarts(found: JsonObject) -> int:
    return int(value_at(found, "status", "restarts", default=0))


def _owner_reference(found: JsonObject) -> JsonObject:
    return {
        "apiVersion": BY_ID[JOB_SETS].api_version,
        "kind": "JobSet",
        "name": name_of(found),
        "uid": uid_of(found),
        "controller": True,
        "blockOwnerDeletion": True,
    }
