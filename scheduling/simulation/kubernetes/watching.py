"""Watches: streams of changes as lines of JSON. Pure, except for waiting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from .api.errors import ApiError, expired
from .api.reading import object_text, with_kind
from .api.requests import TRUE_TEXTS, ApiRequest, int_query
from .api.selectors import Matches, object_matcher
from .store import ChangeKind, ObjectChange, ObjectStore, StoredObject, VersionExpired

BOOKMARK_S = 60.0
DEFAULT_TIMEOUT_S = 1800.0
MAX_TIMEOUT_S = 86_400.0


class WatchCut(Exception):
    """Somebody asked for the connections of all watches to break; the server does not end them in order."""


class VersionSignal:
    """The version up to which changes are on disk, and a way to wait for the next one."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.cuts = 0  # how often all watches were cut
        self.watches = 0  # that are open
        self._waiting: set[asyncio.Future[None]] = set()

    def publish(self, version: int) -> None:
        if version > self.version:
            self.version = version
            self._wake()

    def cut(self) -> int:
        """Break all watches in the middle of an object; returns how many there are."""
        self.cuts += 1
        self._wake()
        return self.watches

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait for a newer version, at most for some seconds."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, max(seconds, 0.0))
        except TimeoutError:
            pass
        finally:
            self._waiting.discard(future)


class Watch:
    """One watch. It shows only changes that are on disk, so nothing that a restart would lose."""

    def __init__(
        self, store: ObjectStore, request: ApiRequest, signal: VersionSignal, clock: Callable[[], float]
    ) -> None:
        self._store, self._request, self._signal, self._clock = store, request, signal, clock
        self._selects = _matcher(request)
        self._bookmarks = request.query.get("allowWatchBookmarks") in TRUE_TEXTS
        self._version = int_query(request.query, "resourceVersion") or 0
        self._timeout_s = min(int_query(request.query, "timeoutSeconds") or DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S)
        if self._version > store.version:
            raise ApiError(504, "Timeout", f"Timeout: Too large resource version: {self._version}")

    async def lines(self) -> AsyncIterator[bytes]:
        """The events until the watch times out, its version has expired, or it is cut."""
        self._signal.watches += 1
        try:
            async for batch in self._batches(self._signal.cuts):
                yield batch
        finally:
            self._signal.watches -= 1

    async def _batches(self, cuts: int) -> AsyncIterator[bytes]:
        until = self._clock() + self._timeout_s
        bookmark_at = self._clock() + BOOKMARK_S
        if not self._version:
            for line in self._initial_lines():
                yield line
        while (now := self._clock()) < until:
            if self._signal.cuts > cuts:
                yield self._half_event()
                raise WatchCut
            try:
                batch = b"".join(self._new_lines())
            except VersionExpired as error:
                yield _line("ERROR", json.dumps(expired(str(error)).body()).encode())
                return
            if batch:
                yield batch
            if self._bookmarks and now >= bookmark_at:
                bookmark_at = now + BOOKMARK_S
                yield self._bookmark()
            if self._signal.version <= self._version and self._signal.cuts == cuts:
                await self._signal.wait(min(until, bookmark_at) - now)
        if self._bookmarks:
            yield self._bookmark()

    def _initial_lines(self) -> Iterator[bytes]:
        """All present objects as additions."""
        self._version = self._signal.version
        for stored in self._store.objects_at(self._request.resource.id, self._request.namespace, self._version):
            if self._selects is None or self._selects(stored.object):
                yield self._event(ChangeKind.ADDED, stored)

    def _new_lines(self) -> Iterator[bytes]:
        until = self._signal.version
        changes = self._store.changes_after(self._request.resource.id, self._version)
        for change in changes:
            if change.version > until:
                break
            if self._is_in_scope(change) and (kind := self._shown_kind(change)):
                yield self._event(kind, change.stored)
        self._version = max(until, self._version)

    def _is_in_scope(self, change: ObjectChange) -> bool:
        request = self._request
        return (not request.namespace or change.key.namespace == request.namespace) and (
            not request.name or change.key.name == request.name
        )

    def _shown_kind(self, change: ObjectChange) -> ChangeKind | None:
        """An object that begins to be selected is an addition, and one that is no longer selected a deletion."""
        if self._selects is None:
            return change.kind
        before = change.previous is not None and self._selects(change.previous.object)
        after = change.kind != ChangeKind.DELETED and self._selects(change.stored.object)
        if before and after:
            return ChangeKind.MODIFIED
        return ChangeKind.ADDED if after else ChangeKind.DELETED if before else None

    def _event(self, kind: ChangeKind, stored: StoredObject) -> bytes:
        return _line(kind, object_text(self._request.resource, stored.text))

    def _half_event(self) -> bytes:
        """The first half of the next event, or of a bookmark if nothing has changed."""
        with suppress(VersionExpired):
            for line in self._new_lines():
                return line[: len(line) // 2]
        return self._bookmark()[:40]

    def _bookmark(self) -> bytes:
        metadata = {"resourceVersion": str(self._version), "creationTimestamp": None}
        return _line("BOOKMARK", json.dumps(with_kind(self._request.resource, {"metadata": metadata})).encode())


def _matcher(request: ApiRequest) -> Matches | None:
    return object_matcher(
        request.resource.id, request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    )


def _line(kind: str, text: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + text + b"}\n"
