"""One collection of objects, followed: listed once in pages, then watched.

Failure story: every step leaves a state from which the next look continues. A list that does not end within a look's
deadline goes on with its next page. A watch that ended or was cut begins again at the last complete event. If the API
server has forgotten that version, or says something that is not an event, everything is listed again; until then the
old objects stay, so what vanished meanwhile is noticed. A list that is older than what is known is refused: what it
lacks has not vanished, it did not exist then. A look that was interrupted at any instruction, as by a time limit, may
have lost events or changes: everything is listed again and counts as changed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from acmeweb.common.http_client import RequestDeadline

from ..base import BackendError, ClusterUnreachable
from .api_client import ApiClient
from .api_errors import ApiRefusal
from .cache import GONE, ObjectCache, ReducedObject, WatchFailed
from .watch_stream import WatchStream

T = TypeVar("T")

MAX_RESTARTS = 3  # within one look
MAX_EVENT_DELAY_S = 1.0  # of the events of our own commands


class FollowedCollection(Generic[T]):
    """`selector` limits it to the objects with a label."""

    def __init__(self, api: ApiClient, path: str, cache: ObjectCache[T], selector: str = "") -> None:
        self._api, self.path, self._selector, self.cache = api, path, selector, cache
        self._expected: dict[str, Callable[[T | None], bool]] = {}  # by uid
        self._expected_version = 0
        self._expectations = threading.Lock()
        self._listed: list[ReducedObject[T]] = []
        self._next_page = ""
        self._is_listed = self._may_be_older = self._was_interrupted = False
        self._stream: WatchStream | None = None
        self._stream_generation = 0

    def catch_up(self, deadline: RequestDeadline, now: datetime) -> None:
        """Bring the cache up to what the API server has sent. Raises ClusterUnreachable."""
        if self._was_interrupted:
            self.list_again()
            self.cache.changes.add_everything()
        self._was_interrupted = True
        try:
            self._apply_news(deadline, now)
        except BackendError:
            self._was_interrupted = False
            raise
        self._was_interrupted = False

    def _apply_news(self, deadline: RequestDeadline, now: datetime) -> None:
        for _ in range(MAX_RESTARTS):
            try:
                self._take_events(now)
                if not self._is_listed:
                    self._list(deadline, now)
                self._keep_watching(deadline)
                self._await_expected(deadline, now)
                return
            except WatchFailed:
                self.list_again()
        raise ClusterUnreachable(f"{self._api.server}: {self.path} cannot be followed; it is listed again next time")

    def is_newer_than(self, version: str) -> bool:
        known = self.cache.resource_version
        return known.isdigit() and version.isdigit() and int(known) > int(version)

    def expect_version(self, version: str) -> None:
        """The next look must include this version of one of the objects. May be called by any thread."""
        with self._expectations:
            self._expected_version = max(self._expected_version, int(version) if version.isdigit() else 0)

    def expect(self, uid: str, is_so: Callable[[T | None], bool]) -> None:
        """The next look must show this object so; None if it is gone. May be called by any thread."""
        with self._expectations:
            self._expected[uid] = is_so

    def list_again(self) -> None:
        """Forget the version, not the objects."""
        self.stop()
        self._is_listed, self._listed, self._next_page = False, [], ""

    def list_restored(self) -> None:
        """List again, although the storage is older than what is known: it was restored from a backup."""
        self.list_again()
        self.cache.forget_versions()
        self._may_be_older = True
        with self._expectations:
            self._expected_version = 0
            self._expected.clear()

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _await_expected(self, deadline: RequestDeadline, now: datetime) -> None:
        """Take events until they show our own commands. Raises WatchFailed if they do not come."""
        limit = RequestDeadline(min(MAX_EVENT_DELAY_S, deadline.remaining_s))
        while not self._shows_expected():
            if self._stream is None or not self._stream.wait_for_lines(limit.remaining_s):
                raise WatchFailed("our own commands are not shown")
            self._take_events(now)
        self._keep_watching(deadline)

    def _shows_expected(self) -> bool:
        known = self.cache.resource_version
        with self._expectations:
            for uid, is_so in list(self._expected.items()):
                if is_so(self.cache.objects.get(uid)):
                    del self._expected[uid]
            return not self._expected and (not known.isdigit() or int(known) >= self._expected_version)

    def _list(self, deadline: RequestDeadline, now: datetime) -> None:
        with self._expectations:
            shown = set(self._expected)  # by the list, which begins after those commands
        while True:
            try:
                items, self._next_page, version = self._api.list_page(
                    self.path, deadline, self._next_page, self._selector
                )
            except ApiRefusal as error:
                if error.status == GONE and self._next_page:
                    raise WatchFailed("the resource version of the list has expired") from None
                raise
            self._listed += map(self.cache.reduce, items)
            if not self._next_page:
                break
        if self.is_newer_than(version) and not self._may_be_older:
            self.list_again()
            raise ClusterUnreachable(f"{self._api.server}: the list {self.path} is older than an earlier response")
        self.cache.replace_all(self._listed, version, now)
        self._is_listed, self._may_be_older, self._listed = True, False, []
        with self._expectations:
            for uid in shown:
                self._expected.pop(uid, None)

    def _take_events(self, now: datetime) -> None:
        if self._stream is None:
            return
        ended = self._stream.ended  # read before the lines: no line is added after it is set
        for line in self._stream.take_lines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                raise WatchFailed("the watch sent a line that is not JSON") from None
            self.cache.apply(event, now)
        if ended or self._stream_generation != self._api.generation:
            self.stop()

    def _keep_watching(self, deadline: RequestDeadline) -> None:
        if self._stream is not None:
            return
        self._stream, self._stream_generation = (
            self._api.watch(self.path, self.cache.resource_version, self._selector),
            self._api.generation,
        )
        stream = self._stream
        if stream.wait_for_status(deadline) and stream.status == 200:
            return
        self.stop()
        if stream.status == GONE:
            raise WatchFailed("the resource version has expired")
        raise self._api.refused_watch(stream)
