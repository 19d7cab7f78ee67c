"""The objects of one resource as reduced values, kept current by the events of a watch. Pure.

Level-triggered: the cache is what the last list or event says, and an event that arrives twice changes nothing. Objects
that vanished are kept for a while with the time at which they did, because their ends may be read only from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from acmeweb.common.errors import MalformedResponse

from ..base import UnreadableRow
from .changes import ChangeLog, ChangeReader
from .fields import mapping_at, text_at

T = TypeVar("T")
Reduce = Callable[[Mapping[str, Any]], T]

KEEP_VANISHED = timedelta(hours=1)
MAX_VANISHED = 20_000
GONE = 410  # the status code and the code of an error event: the resource version is no longer known


class WatchFailed(Exception):
    """The watch reported an error or something that is not an event, or the API server has forgotten the changes since
    the cache's version: everything must be listed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReducedObject(Generic[T]):
    """What is kept of one object: its value, or why it cannot be read."""

    uid: str
    version: int = 0  # 0: unknown
    value: T | None = None
    unreadable: UnreadableRow | None = None


class ObjectCache(Generic[T]):
    """`changes` has the uid of each value that may have changed; most events are heartbeats, which change no value.
    `row_kind` is "node" or "job".

    A malformed pod or owner may belong to any job, so its row has no name: no absence means anything then. An object is
    never replaced by an older version of itself: it may have been read by itself, before its event arrived.
    """

    def __init__(self, reduce: Reduce[T], row_kind: str, *, keep_vanished: bool = False) -> None:
        self._reduce, self._row_kind, self._keep_vanished = reduce, row_kind, keep_vanished
        self.objects: dict[str, T] = {}
        self.vanished: dict[str, T] = {}
        self._unreadable: dict[str, UnreadableRow] = {}
        self._versions: dict[str, int] = {}  # by uid
        self.resource_version = ""
        self.changes = ChangeLog()

    @property
    def unreadable(self) -> tuple[UnreadableRow, ...]:
        return tuple(self._unreadable.values())

    def reduce(self, item: Mapping[str, Any]) -> ReducedObject[T]:
        """The value of one object, or the row that says why it cannot be read."""
        uid, version = text_at(item, "metadata", "uid"), text_at(item, "metadata", "resourceVersion")
        number = int(version) if version.isascii() and version.isdigit() else 0
        try:
            return ReducedObject(uid=uid, version=number, value=self._reduce(item))
        except MalformedResponse as error:
            name = text_at(item, "metadata", "name", largest=253)
            return ReducedObject(uid=uid or name, version=number, unreadable=self._unreadable_row(name, str(error)))

    def replace_all(self, listed: Iterable[ReducedObject[T]], resource_version: str, now: datetime) -> None:
        """Take over a complete list."""
        found = {reduced.uid: reduced for reduced in listed}
        for uid in (self.objects.keys() | self._unreadable.keys()) - found.keys():
            self._remove(uid, now)
        for reduced in found.values():
            self._store(reduced)
        self._forget_vanished(now)
        self.resource_version = resource_version

    def apply(self, event: object, now: datetime) -> None:
        """Apply one event of a watch. Raises WatchFailed, and then changes nothing."""
        kind, item = text_at(event, "type"), mapping_at(event, "object")
        if kind == "ERROR":
            raise WatchFailed(text_at(item, "message") or "the watch reported an error without a message")
        version = text_at(item, "metadata", "resourceVersion")
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not version:
            raise WatchFailed(f"the watch sent an event of type {kind[:20]!r} with resourceVersion {version[:20]!r}")
        if kind != "BOOKMARK":
            self._apply_change(kind, item, now)
        self.resource_version = version

    def _apply_change(self, kind: str, item: Mapping[str, Any], now: datetime) -> None:
        reduced = self.reduce(item)
        self._store(reduced)
        if kind == "DELETED":
            self._remove(reduced.uid, now)
            self._forget_vanished(now)

    def put(self, item: Mapping[str, Any]) -> None:
        """Take over an object that was read by itself. The version of the cache stays the same."""
        self._store(self.reduce(item))

    def forget_versions(self) -> None:
        """Let older versions replace newer ones, as after the restore of a backup."""
        self._versions.clear()

    def _store(self, reduced: ReducedObject[T]) -> None:
        """An equal value stays the same object, because others keep what they derived from it."""
        if reduced.version and reduced.version < self._versions.get(reduced.uid, 0):
            return
        self._versions[reduced.uid] = reduced.version
        known = self.objects.get(reduced.uid)
        if reduced.value is None:
            self.objects.pop(reduced.uid, None)
            self._unreadable[reduced.uid] = reduced.unreadable or self._unreadable_row("", "is empty")
            self.changes.add(reduced.uid)
            return
        is_known = known is not None and known == reduced.value
        self.objects[reduced.uid] = known if known is not None and is_known else reduced.value
        self._unreadable.pop(reduced.uid, None)
        self.vanished.pop(reduced.uid, None)
        if not is_known:
            self.changes.add(reduced.uid)

    def _unreadable_row(self, name: str, sentence: str) -> UnreadableRow:
        if self._row_kind == "node":
            return UnreadableRow(kind="node", name=name, sentence=sentence)
        return UnreadableRow(kind="job", sentence=f"{name or 'an object without a name'}: {sentence}")

    def _remove(self, uid: str, now: datetime) -> None:
        known = self.objects.get(uid)
        if self._keep_vanished and known is not None:
            self.vanished[uid] = replace(known, gone_at=now)  # type: ignore[type-var]
        self.objects.pop(uid, None)
        self._unreadable.pop(uid, None)
        self._versions.pop(uid, None)
        self.changes.add(uid)

    def _forget_vanished(self, now: datetime) -> None:
        """Forget what vanished long ago (the first in the dict), and the oldest if there are too many."""
        for uid, known in list(self.vanished.items()):
            recent = now - known.gone_at < KEEP_VANISHED  # type: ignore[attr-defined]
            if recent and len(self.vanished) <= MAX_VANISHED:
                return
            del self.vanished[uid]
            self.changes.add(uid)


class CacheIndex(Generic[T]):
    """The objects of a cache by a key of each, for example pods by their node, with those that vanished. `changes` has
    the keys whose objects changed.
    """

    def __init__(self, cache: ObjectCache[T], key_of: Callable[[T], str]) -> None:
        self.changes = ChangeLog()
        self._cache, self._key_of, self._reader = cache, key_of, ChangeReader()
        self._by_key: dict[str, dict[str, T]] = {}
        self._keys: dict[str, str] = {}  # by uid

    def update(self) -> Mapping[str, Mapping[str, T]]:
        """The objects as the cache has them now, by key and uid."""
        with self._reader.changes([self._cache.changes]) as changed:
            if changed is None:
                self._by_key, self._keys = {}, {}
                self.changes.add_everything()
                changed = {*self._cache.objects, *self._cache.vanished}
            for uid in changed:
                self._remove(uid)
                if (found := self._cache.objects.get(uid) or self._cache.vanished.get(uid)) is not None:
                    self._add(uid, found)
        return self._by_key

    def _remove(self, uid: str) -> None:
        if (key := self._keys.pop(uid, None)) is not None:
            del self._by_key[key][uid]
            if not self._by_key[key]:
                del self._by_key[key]
            self.changes.add(key)

    def _add(self, uid: str, found: T) -> None:
        key = self._keys[uid] = self._key_of(found)
        self._by_key.setdefault(key, {})[uid] = found
        self.changes.add(key)
