"""Everything that Acme changes on a Kubernetes cluster: attempts of its own, and cordons of nodes.

Decisions are made from what the caches show, under the lock of the backend; commands are sent without it, so that a
slow command does not delay a look. An attempt is read again before it is stopped, because a cache may lag behind its
end (`following`): an attempt that has ended is not stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from urllib.parse import quote

from acmeweb.common.http_client import RequestDeadline
from jobs.core.lifecycle import NodeFlag, State

from ...base import BackendError, EvictionRefused, RequestRejected, SubmitRequest
from ..api_client import MERGE_PATCH, ApiClient
from ..api_errors import DISRUPTION_BUDGET, NOT_FOUND, CommandRefused
from ..attempts import OwnAttempt, attempt_end, running_pods
from ..changes import ChangeReader
from ..ends import PodEnd
from ..fields import mappings_at, text_at
from ..following import DISCOVER_EVERY_S, NODES, PODS, ClusterFollower
from ..groups import GroupCache
from ..nodes import NodeReport, awake_patch, cordon_patch, power_patch, uncordon_patch
from ..ownership import KEY_LABEL
from ..pod_objects import ApiFeatures
from ..pod_template import NamespaceMode, PodTemplate
from ..pods import Pod
from .admission import NEVER, RecordEnd, Step, idle_until, next_steps, obstacles, step_after_end
from .advancing import StepRunner, object_path
from .capacity import CapacityInUse, FreeCapacity
from .parallel import ParallelCommands
from .probes import eviction_version, probe_features
from .submission import ClusterLook, CreatedOwner, Submitter

MAX_PASSES = 3  # create pods, admit them, and once for pods that appeared in between
WAIT_FOR_PODS_S, LOOK_EVERY_S = 1.0, 0.05  # for controllers to create the pods of new gangs


class AttemptDriver:
    """`installation`: attempts of other installations are left alone; empty: there are no others."""

    def __init__(
        self,
        api: ApiClient,
        cluster: ClusterFollower,
        lock: threading.Lock,
        *,
        template: PodTemplate,
        installation: str,
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._api, self._cluster, self._lock = api, cluster, lock
        self._template, self._installation = template, installation
        self._monotonic, self._now = monotonic, now
        self._commands = ParallelCommands()
        self._submitter = Submitter(api, cluster, template, self._commands)
        self._runner = StepRunner(api, cluster, self._commands)
        self._attempts = AttemptIndex(cluster.groups, self._is_ours)
        self._in_use = CapacityInUse(cluster.pods_by_node)
        self._deleted_uids: set[str] = set()  # of admitted pods: looked up, and not there
        self._features: tuple[ApiFeatures, float] | None = None
        self._await_pods_until: dict[str, float] = {}  # by the uid of the owner, of attempts created by this process

    # Operations

    def submit(self, request: SubmitRequest) -> str:
        """Submit an attempt and place its pods, if they exist within a second."""
        deadline = self._api.new_deadline()
        (answer,) = self.submit_all([request], deadline)
        if isinstance(answer, BackendError):
            raise answer
        if self._await_pods_until:
            with suppress(BackendError):  # the job was submitted; the next turn does the rest, and reports its error
                self._advance_new(deadline)
        return answer

    def submit_all(
        self, requests: Sequence[SubmitRequest], deadline: RequestDeadline | None = None
    ) -> list[str | BackendError]:
        """Create attempts. Meanwhile, make the steps of those that were submitted before: their pods are placed while
        the next ones are created. Nothing waits for the pods of the new ones here; `advance` does.
        """
        if not requests:
            return []
        deadline = deadline or self._api.new_deadline()
        try:
            with self._lock:
                self._cluster.follow_all(deadline)
                look = self._look(deadline)
        except BackendError as error:
            return [error for _ in requests]
        steps: list[Step] = []
        with suppress(BackendError), self._lock:  # not of these attempts, as below
            steps = self._steps_of_attempts(look.free, deadline) if self._await_pods_until else []
        started = self._runner.start(steps, self._now(), deadline)
        try:
            created = self._submitter.submit_all(requests, look, deadline)
        finally:
            with suppress(BackendError):  # not of these attempts; decided again by the next look, which reports it
                self._runner.finish(steps, started)
        self._expect_pods([owner for owner in created if isinstance(owner, CreatedOwner)])
        return [owner.uid if isinstance(owner, CreatedOwner) else owner for owner in created]

    def advance(self) -> None:
        """Make the next steps of all attempts until nothing is left to do now, and until no new attempt waits for
        its pods, for at most a second. Nodes that woke up are opened before.
        """
        deadline = self._api.new_deadline()
        self._open_awake_nodes(deadline)
        self._advance_new(deadline)

    def _advance_new(self, deadline: RequestDeadline) -> None:
        self._make_steps(deadline)
        while self._is_waiting_for_pods() and not deadline.over:
            time.sleep(LOOK_EVERY_S)
            self._make_steps(deadline)

    def _make_steps(self, deadline: RequestDeadline) -> None:
        for _ in range(MAX_PASSES):
            with self._lock:
                self._cluster.follow_all(deadline)
                steps = self._steps_of_attempts(self._free_capacity(), deadline)
            if not steps:
                return
            self._runner.run(steps, self._now(), deadline)

    def cancel(self, backend_id: str) -> None:
        deadline = self._api.new_deadline()
        if attempt := self._read_again(self.attempt(backend_id, deadline), deadline):
            self._stop(attempt, State.CANCELLED, deadline)

    def evict(self, backend_id: str) -> None:
        deadline = self._api.new_deadline()
        attempt = self._read_again(self.attempt(backend_id, deadline), deadline)
        if attempt is None:
            return
        with self._lock:
            lost = self._cluster.lost_nodes()
            running = [pod for pod in running_pods(attempt.pods, lost) if not pod.is_deleting]
            is_over = attempt.is_over or attempt_end(attempt, lost) is not None
            version = eviction_version(self._api, deadline) if running and not is_over else ""
        if running and not is_over:
            evict_pod(self._api, running[0], version, deadline)
        self._stop(attempt, State.PREEMPTED, deadline)

    def drain(self, node: str, reason: str) -> None:
        self._patch_node(node, cordon_patch(reason))

    def resume(self, node: str) -> None:
        self._patch_node(node, uncordon_patch())

    def power_down(self, node: str) -> None:
        self._patch_node(node, power_patch("down"))

    def power_up(self, node: str) -> None:
        """Has no effect on a node that does not sleep."""
        deadline = self._api.new_deadline()
        with self._lock:
            self._cluster.follow_nodes_and_pods(deadline)
            sleeps = any(one.name == node and one.power for one in self._cluster.nodes.cache.objects.values())
        if sleeps:
            self._patch_node(node, power_patch("up"))

    def _open_awake_nodes(self, deadline: RequestDeadline) -> None:
        with self._lock:
            self._cluster.follow_nodes_and_pods(deadline)
            nodes = self._cluster.nodes.cache.objects.values()
            awake = [node for node in nodes if node.power == "up" and node.is_ready]
        for node in awake:
            self._patch_node(node.name, awake_patch(drained=NodeFlag.DRAIN in node.flags))

    def close(self) -> None:
        self._commands.close()

    # What the listing of jobs needs

    def attempts(self) -> Mapping[str, OwnAttempt]:
        """The attempts of this installation in namespaces that are ours, by the uid of the owner."""
        return self._index().all

    def _index(self) -> AttemptIndex:
        self._cluster.update_groups()
        self._attempts.update()
        return self._attempts

    def wait_reasons(self) -> dict[str, str]:
        """By the uid of the owner: why an attempt is not placed."""
        waiting = self._index().not_admitted.values()
        return {**dict(obstacles(waiting, self._free_capacity())), **self._runner.refusals}

    def late_uids(self, deadline: RequestDeadline) -> frozenset[str]:
        """The admitted pods that exist, although no event about them has arrived.

        The events of pods and of owners come over different connections, so a missing pod is looked up before its
        attempt counts as ended.
        """
        late: set[str] = set()
        for attempt in self._index().incomplete.values():
            if unseen := set(attempt.unseen_uids) - self._deleted_uids:
                found = self._listed_uids(attempt, deadline)
                late |= unseen & found
                self._deleted_uids |= unseen - found
        return frozenset(late)

    def _listed_uids(self, attempt: OwnAttempt, deadline: RequestDeadline) -> set[str]:
        path = f"/api/v1/namespaces/{quote(attempt.owner.namespace, safe='')}/pods"
        answer = self._api.get(path, deadline, labelSelector=f"{KEY_LABEL}={attempt.owner.owner.key}")
        return {text_at(item, "metadata", "uid") for item in mappings_at(answer, "items")}

    # Looks, under the lock

    def _steps_of_attempts(self, free: FreeCapacity, deadline: RequestDeadline) -> list[Step]:
        """Takes from `free` what they need."""
        late, lost, now = self.late_uids(deadline), self._cluster.lost_nodes(), self._now()
        index = self._index()
        attempts = index.may_need_step(lost, late, now)
        steps = next_steps(attempts, free, lost, late, now)
        index.note_idle(attempts, steps, lost, late)
        return steps

    def _look(self, deadline: RequestDeadline) -> ClusterLook:
        features = self._probed_features(deadline)
        return ClusterLook(features=features, nodes=self._nodes_by_name(), free=self._free_capacity())

    def _free_capacity(self) -> FreeCapacity:
        return FreeCapacity(self._nodes_by_name(), self._in_use.update())

    def _nodes_by_name(self) -> dict[str, NodeReport]:
        return {node.name: node for node in self._cluster.nodes.cache.objects.values()}

    def _is_ours(self, attempt: OwnAttempt) -> bool:
        owner = attempt.owner
        is_here = self._installation in ("", owner.owner.installation)
        return is_here and self._template.namespace_mode(owner.namespace) == NamespaceMode.OURS

    def _probed_features(self, deadline: RequestDeadline) -> ApiFeatures:
        if self._features is None or self._monotonic() >= self._features[1]:
            features = probe_features(self._api, self._template.namespace, self._cluster.api_groups, deadline)
            self._features = (features, self._monotonic() + DISCOVER_EVERY_S)
        return self._features[0]

    # Single attempts

    def attempt(self, backend_id: str, deadline: RequestDeadline) -> OwnAttempt | None:
        """The attempt with this id; None if there is none any more. Raises RequestRejected if it is not ours."""
        with self._lock:
            self._cluster.follow_all(deadline)
            if attempt := self.attempts().get(backend_id):
                return None if attempt.owner.gone_at else attempt
            self._refuse_foreign(backend_id)
        return None

    def _refuse_foreign(self, backend_id: str) -> None:
        found = self._cluster.workloads().get(backend_id) or self._cluster.pods.cache.objects.get(backend_id)
        if found is None or found.gone_at:
            return
        mode = self._template.namespace_mode(found.namespace)
        why = "it was not submitted by this installation" if mode == NamespaceMode.OURS else f"its mode is {mode}"
        raise RequestRejected(f"Acme does not change {found.name} in namespace {found.namespace}: {why}")

    def _read_again(self, attempt: OwnAttempt | None, deadline: RequestDeadline) -> OwnAttempt | None:
        """The attempt as the API server has it now; None if its owner was deleted."""
        if attempt is None:
            return None
        owner = attempt.owner
        with self._lock:
            found = self._cluster.read_attempts([owner.owner.key], deadline, owner.kind)
            return self.attempts().get(owner.uid) if owner.uid in found else None

    def _stop(self, attempt: OwnAttempt, state: State, deadline: RequestDeadline) -> None:
        """Record that it was stopped, which deletes the pods with their grace period. If it has ended by itself, make
        the step that follows from that.
        """
        now = self._now()
        with self._lock:
            end = attempt_end(attempt, self._cluster.lost_nodes())
        if end is None and not attempt.is_over:
            self._runner.run([RecordEnd(attempt=attempt, end=PodEnd(state=state, at=now))], now, deadline)
        elif end and (step := step_after_end(attempt, end, now)):
            self._runner.run([step], now, deadline)

    # Attempts whose pods controllers create

    def _expect_pods(self, created: Sequence[CreatedOwner]) -> None:
        give_up_at = self._monotonic() + WAIT_FOR_PODS_S
        with self._lock:
            self._await_pods_until.update((owner.uid, give_up_at) for owner in created if not owner.has_its_node)

    def _is_waiting_for_pods(self) -> bool:
        with self._lock:
            if due := self._await_pods_until:
                attempts, now = self.attempts(), self._monotonic()
                self._await_pods_until = {
                    uid: at
                    for uid, at in due.items()
                    if now < at and ((one := attempts.get(uid)) is None or _waits_for_pods(one))
                }
            return bool(self._await_pods_until)

    def _patch_node(self, node: str, patch: object) -> None:
        path = f"{NODES}/{quote(node, safe='')}"
        answer = self._api.command("PATCH", path, self._api.new_deadline(), patch, MERGE_PATCH)
        self._cluster.expect_version(NODES, text_at(answer, "metadata", "resourceVersion"))


def _waits_for_pods(attempt: OwnAttempt) -> bool:
    """Whether the pods of an attempt should exist soon. Those of a suspended one wait for Kueue."""
    return not attempt.is_over and not attempt.owner.suspended and None in attempt.members


def evict_pod(api: ApiClient, pod: Pod, version: str, deadline: RequestDeadline) -> None:
    """Raises EvictionRefused, naming the budget, if the pod may not be evicted now. `version` as served.

    The Eviction API respects PodDisruptionBudgets. A gang runs with all its pods or not at all, so one granted eviction
    ends the attempt, and its other pods are deleted. Asking for each of them would stop halfway: a budget that allows
    one disruption refuses the second. Killed after the eviction and before the end is recorded, the next `advance_jobs`
    finds an attempt that lost a pod, and ends the others. The command is repeated until all are gone.
    """
    if not version:
        raise RequestRejected(f"{api.server} does not serve evictions")
    path = f"{object_path(PODS, pod.namespace, pod.name)}/eviction"
    metadata = {"name": pod.name, "namespace": pod.namespace}
    body = {"apiVersion": version, "kind": "Eviction", "metadata": metadata}
    body["deleteOptions"] = {"preconditions": {"uid": pod.uid}}
    try:
        api.command("POST", path, deadline, body)
    except CommandRefused as error:
        if error.reason == DISRUPTION_BUDGET:
            raise EvictionRefused(f"pod {pod.namespace}/{pod.name} may not be evicted now: {error}") from None
        if error.status != NOT_FOUND:
            raise


class AttemptIndex:
    """The attempts of this installation by the uid of their owner, and which of them may need a step.

    Thousands of attempts run unchanged for days, so a look derives anew only what belongs to changed groups.
    """

    def __init__(self, groups: GroupCache, is_ours: Callable[[OwnAttempt], bool]) -> None:
        self._groups, self._is_ours, self._reader = groups, is_ours, ChangeReader()
        self.all: dict[str, OwnAttempt] = {}
        self.not_admitted: dict[str, OwnAttempt] = {}
        self.incomplete: dict[str, OwnAttempt] = {}  # admitted pods are not known
        self._may_need_step: dict[str, OwnAttempt] = {}
        self._idle_until: dict[str, datetime] = {}  # of attempts that need a step later, even if nothing changes
        self._next_step_at = NEVER  # the earliest of these times
        self._last_look: object = None  # lost nodes and late pods, on which ends of attempts depend

    def update(self) -> None:
        with self._reader.changes([self._groups.changes]) as changed:
            if changed is None:
                self.all, self.not_admitted, self.incomplete = {}, {}, {}
                self._may_need_step, self._idle_until = {}, {}
                changed = set(self._groups.listed)
            for uid in changed:
                self._replace(uid)

    def _replace(self, uid: str) -> None:
        for entries in (self.all, self.not_admitted, self.incomplete, self._may_need_step, self._idle_until):
            entries.pop(uid, None)
        group = self._groups.listed.get(uid)
        attempt = group.attempt if group else None
        if attempt is None or not self._is_ours(attempt):
            return
        self.all[uid] = self._may_need_step[uid] = attempt
        if not attempt.plan.admitted and not attempt.is_over:
            self.not_admitted[uid] = attempt
        if attempt.unseen_uids:
            self.incomplete[uid] = attempt

    def may_need_step(self, lost_nodes: Collection[str], late: Collection[str], now: datetime) -> Sequence[OwnAttempt]:
        if self._last_look != (lost_nodes, late):
            self._may_need_step = dict(self.all)
            self._last_look = (lost_nodes, late)
        if now >= self._next_step_at:
            due = [uid for uid, until in self._idle_until.items() if until <= now]
            self._may_need_step |= {uid: self.all[uid] for uid in due}
            self._next_step_at = min((at for at in self._idle_until.values() if at > now), default=NEVER)
        return [attempt for attempt in self._may_need_step.values() if attempt.owner.gone_at is None]

    def note_idle(
        self,
        attempts: Sequence[OwnAttempt],
        steps: Sequence[Step],
        lost_nodes: Collection[str],
        late: Collection[str],
    ) -> None:
        """Remember which of the attempts that were looked at need no step until something changes."""
        with_step = {step.attempt.owner.uid for step in steps}
        for attempt in attempts:
            uid = attempt.owner.uid
            until = None if uid in with_step else idle_until(attempt, lost_nodes, late)
            if until is None:
                continue
            if until < NEVER:
                self._idle_until[uid] = until
                self._next_step_at = min(self._next_step_at, until)
            self._may_need_step.pop(uid, None)
