"""Reads the new lines of all pods of a job, and adds how they ended.

Each pod has a position of its own. The lines are merged by time; if one response was cut off at its limit, lines of
other pods that are newer are left for the next call. The log of a pod that is being deleted is followed, because it
cannot be read any more when the pod has ended. A pod whose kubelet does not answer costs the others nothing: it
is tried again after a pause that grows to a minute. Its end is reported at once, and its lines follow if they can be
read within `GIVE_UP_AFTER` of its end.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from urllib.parse import quote

from acmeweb.common.http_client import RequestDeadline
from jobs.core.lifecycle import State

from ...base import ClusterUnreachable, LogUpdate
from ..api_client import ApiClient
from ..api_errors import NOT_FOUND, ApiRefusal
from ..ends import PodEnd
from ..fields import mappings_at, text_at
from . import log_messages
from .log_lines import BEGINNING, LogLine, ReadPosition, find_new_lines, merge_by_time, parse_lines

PARALLEL_READS = 32
GIVE_UP_AFTER = timedelta(minutes=5)
FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 60.0
MAX_WAIT_REASONS = 8
MAX_EVENTS = 20  # of one object
MAX_EXPLAINED_PODS = 16  # whose Events are read; of a gang, the first failures are the causes


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    new_bytes: int = 1 << 20  # of a pod in one call
    call_bytes: int = 16 << 20  # of all pods of a job
    least_new_bytes: int = 64 << 10
    window_bytes: int = 64 << 20  # lines of one second; kubelets rotate their files at 10 MiB
    timeout_s: float = 4.0  # of one request
    follow_s: float = 2.0  # how long a log is followed whose pod is about to be deleted

    def per_pod(self, pods: int) -> int:
        return max(self.least_new_bytes, min(self.new_bytes, self.call_bytes // max(pods, 1)))


DEFAULT_LIMITS = ReadLimits()


@dataclass(frozen=True, kw_only=True)
class LoggedPod:
    """A pod of a job, as the log needs it."""

    uid: str
    namespace: str
    name: str
    rank: int
    node: str
    container: str
    has_started: bool  # a container runs or has run
    is_gone: bool = False  # its object was deleted
    is_ending: bool = False  # its object is deleted as soon as its containers have ended
    waits: str = ""
    end: PodEnd | None = None  # also that of a pod whose node is lost, if the job has ended


@dataclass(frozen=True, kw_only=True)
class LoggedJob:
    """A job of which all pods are known. `state` is None while it has not ended."""

    uid: str
    namespace: str
    pods: Sequence[LoggedPod]
    state: State | None = None


@dataclass(frozen=True, kw_only=True)
class PodProgress:
    """What has been written about one pod. Stored as one text per pod."""

    namespace: str
    name: str
    position: ReadPosition = BEGINNING
    waits: tuple[str, ...] = ()  # reasons that were written
    has_end: bool = False  # its end was written
    is_done: bool = False

    def to_text(self) -> str:
        return json.dumps(
            [self.namespace, self.name, self.position.to_json(), self.waits, self.has_end, self.is_done],
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> PodProgress | None:
        try:
            match json.loads(text):
                case [str(namespace), str(name), position, [*waits], bool(has_end), bool(is_done)]:
                    return cls(
                        namespace=namespace,
                        name=name,
                        position=ReadPosition.from_json(position),
                        waits=tuple(map(str, waits)),
                        has_end=has_end,
                        is_done=is_done,
                    )
        except (ValueError, RecursionError):
            pass
        return None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one request for a log returned."""

    lines: Sequence[LogLine] = ()  # of the whole response
    start: int = 0  # of the new lines among them
    is_gap: bool = False
    is_cut: bool = False  # there is more
    jump: ReadPosition | None = None  # where to read on if even the largest response has nothing new
    error: str = ""
    is_gone: bool = False  # the pod no longer exists

    @property
    def new(self) -> Sequence[LogLine]:
        return self.lines[self.start :]


class PodLogReader:
    """Reads logs for several threads. Remembers which pods do not answer."""

    def __init__(
        self,
        api: ApiClient,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
        limits: ReadLimits = DEFAULT_LIMITS,
    ) -> None:
        self._api, self._now, self._monotonic, self._limits = api, now, monotonic, limits
        self._lock = threading.Lock()
        self._pauses: dict[str, tuple[float, float]] = {}  # pod uid -> (retry at, pause)
        self._executor: ThreadPoolExecutor | None = None

    def read(self, job: LoggedJob, positions: Mapping[str, str]) -> LogUpdate:
        """The new lines of a job. A pod whose log cannot be read now has none."""
        progress = _parse_positions(positions)
        pods = {pod.uid: pod for pod in job.pods}
        for pod in job.pods:
            progress.setdefault(pod.uid, PodProgress(namespace=pod.namespace, name=pod.name))
        readings = self._read_all(job, progress)
        lines, unfinished = _take_lines(readings, pods, progress, with_rank=len(progress) > 1)
        lines += self._messages(job, {uid: one for uid, one in readings.items() if uid not in unfinished}, progress)
        if job.state is not None:
            lines += self._lines_of_forgotten(progress.keys() - pods.keys(), progress)
        is_complete = job.state is not None and all(one.is_done for one in progress.values())
        if is_complete and job.state:
            lines += [*self._owner_events(job), log_messages.last_line(len(progress), job.state)]
        return LogUpdate(lines=lines, positions=_texts(progress), is_complete=is_complete)

    def read_forgotten(self, positions: Mapping[str, str]) -> LogUpdate:
        """What is left to write about a job that the cluster does not know any more."""
        progress = _parse_positions(positions)
        lines = self._lines_of_forgotten(progress, progress)
        is_complete = bool(progress) and all(one.is_done for one in progress.values())
        return LogUpdate(lines=lines, positions=_texts(progress), is_complete=is_complete)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # Reading

    def _read_all(self, job: LoggedJob, progress: Mapping[str, PodProgress]) -> dict[str, Reading]:
        pods = [pod for pod in job.pods if pod.has_started and not progress[pod.uid].is_done]
        largest = self._limits.per_pod(len(pods))
        readings: dict[str, Reading] = {}

        def read(pod: LoggedPod) -> None:
            readings[pod.uid] = self._read_pod(pod, progress[pod.uid].position, largest)

        if len(pods) > 1:
            list(self._pool().map(read, pods))
        else:
            for pod in pods:
                read(pod)
        return readings

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="pod logs")
            return self._executor

    def _read_pod(self, pod: LoggedPod, position: ReadPosition, largest: int) -> Reading:
        if pod.is_gone:
            return Reading(is_gone=True, error="the pod was deleted")
        if self._monotonic() < self._pauses.get(pod.uid, (0.0, 0.0))[0]:
            return Reading(error="its kubelet does not answer")
        try:
            reading = self._read_new(pod, position, largest)
        except ApiRefusal as error:
            if error.status == NOT_FOUND:
                return Reading(is_gone=True, error="the pod was deleted")
            return self._pause(pod, str(error))
        except ClusterUnreachable as error:
            return self._pause(pod, str(error))
        self._pauses.pop(pod.uid, None)
        return reading

    def _pause(self, pod: LoggedPod, error: str) -> Reading:
        before = self._pauses.get(pod.uid, (0.0, 0.0))[1]
        pause = min(max(2 * before, FIRST_PAUSE_S), MAX_PAUSE_S)
        self._pauses[pod.uid] = (self._monotonic() + pause, pause)
        return Reading(error=error)

    def _read_new(self, pod: LoggedPod, position: ReadPosition, largest: int) -> Reading:
        """Read on from the position. A line, or a second, that is longer than the limit is read with a larger one."""
        limit = position.size + largest
        while True:
            raw = self._request(pod, position, limit)
            is_cut = len(raw) >= limit
            has_ended = pod.end is not None and not is_cut
            lines = parse_lines(raw, is_last_complete=has_ended)
            found = find_new_lines(lines, position)
            if found.start < len(lines) or not is_cut:
                return Reading(lines=lines, start=found.start, is_gap=found.is_gap, is_cut=is_cut)
            if limit >= self._limits.window_bytes:
                return Reading(jump=_next_second(raw, position), is_cut=True)
            limit *= 4

    def _request(self, pod: LoggedPod, position: ReadPosition, limit: int) -> bytes:
        options = {"sinceTime": position.since_time} if position.since_time else {}
        seconds = self._limits.timeout_s
        if pod.is_ending:
            options, seconds = {**options, "follow": "true"}, self._limits.follow_s
        return self._api.read_start(
            f"{_pod_path(pod.namespace, pod.name)}/log",
            RequestDeadline(seconds),
            limit,
            container=pod.container,
            timestamps="true",
            limitBytes=limit,
            **options,
        )

    # What Acme writes

    def _messages(self, job: LoggedJob, readings: Mapping[str, Reading], progress: dict[str, PodProgress]) -> list[str]:
        """About pods that wait, and about those that ended, unless more of their lines follow."""
        lines = [line for pod in job.pods for line in _waiting_lines(pod, progress)]
        ended = [pod for pod in job.pods if pod.end and not progress[pod.uid].is_done]
        explained = [pod.uid for pod in sorted(ended, key=_failure_order)[:MAX_EXPLAINED_PODS]]
        for pod in ended:
            if pod.uid in readings or not pod.has_started:
                error = readings[pod.uid] if pod.uid in readings else Reading()
                lines += self._end_of_pod(pod, error, progress, explain=pod.uid in explained)
        return lines

    def _end_of_pod(
        self, pod: LoggedPod, reading: Reading, progress: dict[str, PodProgress], *, explain: bool
    ) -> list[str]:
        known, end = progress[pod.uid], pod.end
        assert end is not None
        lines = []
        if not known.has_end:
            if explain and end.state != State.COMPLETED:
                lines += self._events(pod.namespace, pod.uid, f"pod {pod.name}")
            lines.append(log_messages.ended_line(pod.name, pod.node, end))
        is_late = end.at is not None and self._now() - end.at > GIVE_UP_AFTER
        is_done = not reading.error or reading.is_gone or is_late
        if reading.error and is_done:
            lines.append(log_messages.incomplete_line(pod.name, reading.error))
        progress[pod.uid] = replace(known, has_end=True, is_done=is_done)
        return lines

    def _lines_of_forgotten(self, uids: Iterable[str], progress: dict[str, PodProgress]) -> list[str]:
        """About pods that were known earlier, and whose deletion nobody saw."""
        lines = []
        for uid in sorted(uids):
            known = progress[uid]
            if not known.is_done and self._is_deleted(uid, known):
                progress[uid] = replace(known, has_end=True, is_done=True)
                lines.append(log_messages.incomplete_line(known.name, "the pod was deleted"))
        return lines

    def _is_deleted(self, uid: str, known: PodProgress) -> bool:
        """Whether it is certainly gone. What is followed may be behind what another process saw."""
        try:
            found = self._api.get(_pod_path(known.namespace, known.name), RequestDeadline(self._limits.timeout_s))
        except ApiRefusal as refusal:
            return refusal.status == NOT_FOUND
        except ClusterUnreachable:
            return False
        return text_at(found, "metadata", "uid") != uid

    def _owner_events(self, job: LoggedJob) -> list[str]:
        if job.state == State.COMPLETED or any(pod.uid == job.uid for pod in job.pods):
            return []
        return self._events(job.namespace, job.uid, "the job")

    def _events(self, namespace: str, uid: str, name: str) -> list[str]:
        selector = f"involvedObject.uid={uid},type=Warning"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"
        try:
            found = self._api.get(
                path, RequestDeadline(self._limits.timeout_s), fieldSelector=selector, limit=MAX_EVENTS
            )
        except ClusterUnreachable as error:
            return [f"acme: the Events of {name} cannot be read: {error}"]
        events = sorted(mappings_at(found, "items")[:MAX_EVENTS], key=lambda event: text_at(event, "lastTimestamp"))
        return list(dict.fromkeys(map(log_messages.event_line, events)))


def _take_lines(
    readings: Mapping[str, Reading],
    pods: Mapping[str, LoggedPod],
    progress: dict[str, PodProgress],
    *,
    with_rank: bool,
) -> tuple[list[str], set[str]]:
    """The new lines up to the time at which a response was cut off, and the pods of which more lines follow. Moves
    the positions past the lines.
    """
    cut = [reading.lines[-1].at_ns for reading in readings.values() if reading.is_cut and reading.lines]
    taken: dict[int, Sequence[LogLine]] = {}
    gaps, unfinished = [], set()
    for uid, reading in readings.items():
        pod, known = pods[uid], progress[uid]
        count = len(reading.new) if reading.is_cut or not cut else _count_until(reading.new, min(cut))
        if reading.is_cut or count < len(reading.new):
            unfinished.add(uid)
        if count:
            taken[pod.rank] = reading.new[:count]
            gaps += [log_messages.gap_line(pod.name)] if reading.is_gap else []
            progress[uid] = replace(known, position=known.position.after(reading.lines[: reading.start + count]))
        elif reading.jump:
            progress[uid] = replace(known, position=reading.jump)
    return gaps + merge_by_time(taken, with_rank=with_rank), unfinished


def _count_until(lines: Sequence[LogLine], until: int) -> int:
    return next((index for index, line in enumerate(lines) if line.at_ns > until), len(lines))


def _waiting_lines(pod: LoggedPod, progress: dict[str, PodProgress]) -> list[str]:
    """Why its containers do not start, once for each reason."""
    known, reason = progress[pod.uid], pod.waits.partition(":")[0]
    if not pod.node or not reason or reason in known.waits or len(known.waits) >= MAX_WAIT_REASONS:
        return []
    progress[pod.uid] = replace(known, waits=(*known.waits, reason))
    return [log_messages.waiting_line(pod.name, pod.waits)]


def _parse_positions(positions: Mapping[str, str]) -> dict[str, PodProgress]:
    return {uid: known for uid, text in positions.items() if (known := PodProgress.from_text(text))}


def _texts(progress: Mapping[str, PodProgress]) -> dict[str, str]:
    return {uid: one.to_text() for uid, one in progress.items()}


def _failure_order(pod: LoggedPod) -> tuple[bool, bool, float]:
    """Failures that explain themselves first, then the earliest."""
    end = pod.end
    assert end is not None
    return (end.state == State.COMPLETED, not end.reason, end.at.timestamp() if end.at else float("inf"))


def _next_second(raw: bytes, position: ReadPosition) -> ReadPosition:
    """The position after a second, or a line, that is too long to be read. What is missing is reported as a gap."""
    begun = parse_lines(raw, is_last_complete=True)
    return ReadPosition(second=(begun[-1].second if begun else position.second) + 1, count=1)


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
