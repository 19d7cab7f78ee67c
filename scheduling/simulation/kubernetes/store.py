"""All objects of a cluster in memory, with resource versions and the recent history of changes. Pure.

Every change gets the next version. The history answers watches and reads of earlier versions, until it is compacted: a
reader that asks for an older version gets `VersionExpired` and must list again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .objects import JsonObject, ObjectKey

MAX_HISTORY = 20_000  # changes per resource


class ChangeKind(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class VersionExpired(Exception):
    """The requested version is older than the history."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {version} ({oldest})")


class StoredObject:
    """An object with its JSON text, which is written once and used by every list and watch."""

    __slots__ = ("_text", "object", "version")

    def __init__(self, stored: JsonObject, version: int) -> None:
        self.object, self.version = stored, version
        self._text: bytes | None = None

    @property
    def text(self) -> bytes:
        if self._text is None:
            self._text = json.dumps(self.object, separators=(",", ":"), ensure_ascii=False).encode(
                "utf-8", "backslashreplace"
            )
        return self._text


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One change. `stored` is the new state; of a deleted object, its last one."""

    version: int
    kind: ChangeKind
    key: ObjectKey
    stored: StoredObject
    previous: StoredObject | None = None


@dataclass(frozen=True, kw_only=True)
class StoreChanges:
    """What changed since the last call, as complete values, so that writing them twice is harmless."""

    objects: dict[ObjectKey, StoredObject] = field(default_factory=dict)
    deleted: tuple[ObjectKey, ...] = ()
    version: int = 0

    def __bool__(self) -> bool:
        return bool(self.objects or self.deleted)


class _ResourceTable:
    """The objects and the history of one resource."""

    def __init__(self, version: int) -> None:
        self.objects: dict[ObjectKey, StoredObject] = {}
        self.history: list[ObjectChange] = []
        self.compacted = version  # changes up to this version are gone
        self._sorted: list[ObjectKey] | None = None

    def sorted_keys(self) -> list[ObjectKey]:
        if self._sorted is None:
            self._sorted = sorted(self.objects)
        return self._sorted

    def apply(self, change: ObjectChange) -> None:
        if change.kind == ChangeKind.DELETED:
            del self.objects[change.key]
        else:
            self.objects[change.key] = change.stored
        if change.kind != ChangeKind.MODIFIED:
            self._sorted = None
        self.history.append(change)

    def changes_after(self, version: int) -> Sequence[ObjectChange]:
        if version < self.compacted:
            raise VersionExpired(version, self.compacted)
        return self.history[bisect_right(self.history, version, key=lambda change: change.version) :]

    def forget(self, count: int) -> None:
        if count > 0:
            self.compacted = self.history[count - 1].version
            del self.history[:count]


class ObjectStore:
    def __init__(
        self,
        objects: Iterable[tuple[ObjectKey, JsonObject]] = (),
        *,
        version: int = 1,
        volatile: frozenset[str] = frozenset(),
        most_history: int = MAX_HISTORY,
    ) -> None:
        """`volatile` resources are written again after a restart by those who own them, so they are not kept."""
        self.version = self._first_version = version
        self._volatile, self._most_history = volatile, most_history
        self._tables: dict[str, _ResourceTable] = {}
        self._changed: dict[ObjectKey, None] = {}
        self._unseen: list[ObjectChange] = []
        self._listeners: list[Callable[[ObjectChange], None]] = []
        for key, stored in objects:
            self._table(key.resource).objects[key] = StoredObject(stored, int(stored["metadata"]["resourceVersion"]))

    # Reading

    def get(self, key: ObjectKey) -> JsonObject | None:
        found = self.stored(key)
        return None if found is None else found.object

    def stored(self, key: ObjectKey) -> StoredObject | None:
        table = self._tables.get(key.resource)
        return None if table is None else table.objects.get(key)

    def objects(self, resource: str, namespace: str = "") -> list[StoredObject]:
        """The objects of a namespace, or all of them, ordered by namespace and name."""
        table = self._table(resource)
        return [table.objects[key] for key in table.sorted_keys() if namespace == "" or key.namespace == namespace]

    def objects_at(self, resource: str, namespace: str, version: int) -> list[StoredObject]:
        """The list as it was at a version. Raises VersionExpired."""
        table = self._table(resource)
        objects = dict(table.objects)
        for change in reversed(table.changes_after(version)):
            if change.previous is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.previous
        return [objects[key] for key in sorted(objects) if namespace == "" or key.namespace == namespace]

    def changes_after(self, resource: str, version: int) -> Sequence[ObjectChange]:
        """The changes of a resource after a version, oldest first. Raises VersionExpired."""
        return self._table(resource).changes_after(version)

    # Changing

    def put(self, key: ObjectKey, new: JsonObject) -> JsonObject:
        """Add or replace an object. Returns it with its new version, or the old one if nothing would change."""
        previous = self.stored(key)
        if previous is not None and _same_apart_from_version(previous.object, new):
            return previous.object
        kind = ChangeKind.ADDED if previous is None else ChangeKind.MODIFIED
        return self._record(kind, key, new, previous)

    def delete(self, key: ObjectKey) -> JsonObject:
        """Remove an object. Returns its last state with the version of its deletion."""
        previous = self._tables[key.resource].objects[key]
        return self._record(ChangeKind.DELETED, key, previous.object, previous)

    def compact(self) -> None:
        """Forget the history, as etcd does every few minutes."""
        for table in self._tables.values():
            table.forget(len(table.history))
            table.compacted = self.version

    def listen(self, listener: Callable[[ObjectChange], None]) -> None:
        """Call the listener during every change; it must not change anything. For indexes."""
        self._listeners.append(listener)

    def take_unseen(self) -> list[ObjectChange]:
        """The changes since the last call, for the controllers."""
        unseen, self._unseen = self._unseen, []
        return unseen

    def replay(self) -> list[ObjectChange]:
        """All objects as additions, for indexes and controllers after a restart."""
        return [
            ObjectChange(found.version, ChangeKind.ADDED, key, found)
            for table in self._tables.values()
            for key, found in table.objects.items()
        ]

    def take_changes(self) -> StoreChanges:
        """Everything that must be written to disk since the last call."""
        keys, self._changed = self._changed, {}
        present = {key: found for key in keys if (found := self.stored(key)) is not None}
        return StoreChanges(
            objects=present, deleted=tuple(key for key in keys if key not in present), version=self.version
        )

    def _record(self, kind: ChangeKind, key: ObjectKey, new: JsonObject, previous: StoredObject | None) -> JsonObject:
        self.version += 1
        numbered = {**new, "metadata": {**new["metadata"], "resourceVersion": str(self.version)}}
        change = ObjectChange(self.version, kind, key, StoredObject(numbered, self.version), previous)
        table = self._table(key.resource)
        table.apply(change)
        if len(table.history) > 2 * self._most_history:
            table.forget(self._most_history)
        self._unseen.append(change)
        for listener in self._listeners:
            listener(change)
        if key.resource not in self._volatile:
            self._changed[key] = None
        return numbered

    def _table(self, resource: str) -> _ResourceTable:
        return self._tables.setdefault(resource, _ResourceTable(self._first_version))


def _same_apart_from_version(old: JsonObject, new: JsonObject) -> bool:
    version = {"resourceVersion": old["metadata"]["resourceVersion"]}
    return old == {**new, "metadata": {**new["metadata"], **version}}
