"""Signals and logs of the attempts of this installation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime

from jobs.core.lifecycle import State

from ...base import LogUpdate
from ..api_client import ApiClient
from ..attempts import OwnAttempt, attempt_end
from ..driving.driver import AttemptDriver
from ..ends import PodEnd
from ..following import ClusterFollower
from ..pod_objects import CONTAINER
from ..pods import Pod, pod_end
from .exec_client import ContainerPlace
from .pod_logs import LoggedJob, LoggedPod, PodLogReader
from .signals import SignaledPod, signal_pods

LOOK_EVERY_S = 1.0  # logs of many jobs are read one after another, and share a look


class AttemptContainers:
    """What the caches show is read under the lock of the backend; requests to containers are sent without it."""

    def __init__(
        self,
        api: ApiClient,
        cluster: ClusterFollower,
        driver: AttemptDriver,
        lock: threading.Lock,
        *,
        monotonic: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self._api, self._cluster, self._driver, self._lock = api, cluster, driver, lock
        self._monotonic = monotonic
        self._logs = PodLogReader(api, now, monotonic)
        self._look_at = monotonic()

    def signal(self, backend_id: str, name: str, *, shell: bool) -> None:
        deadline = self._api.new_deadline()
        attempt = self._driver.attempt(backend_id, deadline)
        if attempt is None:
            return
        running = [
            SignaledPod(place=ContainerPlace(namespace=pod.namespace, pod=pod.name, container=CONTAINER), rank=rank)
            for rank, pod in enumerate(attempt.members)
            if pod and pod.is_live and pod.running
        ]
        signal_pods(self._api, running, attempt.owner.owner.key, name, deadline, shell=shell)

    def new_log_lines(self, backend_id: str, positions: Mapping[str, str]) -> LogUpdate:
        with self._lock:
            attempt = self._attempts().get(backend_id)
            job = _logged_job(attempt, self._cluster.lost_nodes()) if attempt else None
        return self._logs.read(job, positions) if job else self._logs.read_forgotten(positions)

    def close(self) -> None:
        self._logs.close()

    def _attempts(self) -> Mapping[str, OwnAttempt]:
        if self._monotonic() >= self._look_at:
            self._cluster.follow_all(self._api.new_deadline())
            self._look_at = self._monotonic() + LOOK_EVERY_S
        return self._driver.attempts()


def _logged_job(attempt: OwnAttempt, lost_nodes: frozenset[str]) -> LoggedJob:
    """A pod that was admitted, but that no event has shown yet, cannot be the end of the job."""
    end = attempt_end(attempt, lost_nodes, attempt.unseen_uids)
    owner = attempt.owner
    pods = tuple(_logged_pods(attempt, lost_nodes, has_ended=end is not None))
    return LoggedJob(uid=owner.uid, namespace=owner.namespace, pods=pods, state=end.state if end else None)


def _logged_pods(attempt: OwnAttempt, lost_nodes: frozenset[str], *, has_ended: bool) -> Iterator[LoggedPod]:
    for rank, pod in enumerate(attempt.members):
        if pod:
            yield LoggedPod(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                rank=rank,
                node=pod.node,
                container=CONTAINER,
                has_started=pod.running,
                is_gone=pod.gone_at is not None,
                is_ending=pod.is_deleting and pod.is_live,
                waits=pod.waits,
                end=_end_of_pod(pod, lost_nodes, has_ended=has_ended),
            )


def _end_of_pod(pod: Pod, lost_nodes: frozenset[str], *, has_ended: bool) -> PodEnd | None:
    """The end of a pod; of a job that has ended, also that of a pod whose node nobody hears from."""
    if not pod.is_live:
        return pod_end(pod, lost_nodes)
    if has_ended and pod.node in lost_nodes:
        return PodEnd(state=State.NODE_FAIL, at=None, reason=f"NodeLost: node {pod.node} does not respond")
    return None
