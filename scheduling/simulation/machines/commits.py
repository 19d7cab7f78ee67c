"""Writes the controller's changes to disk, those of many requests in one transaction."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from starlette.concurrency import run_in_threadpool

log = logging.getLogger("acme.cluster")

Changes = TypeVar("Changes")
SourceChanges = TypeVar("SourceChanges", covariant=True)
StoreChanges = TypeVar("StoreChanges", contravariant=True)


class ChangeSource(Protocol[SourceChanges]):
    """The state in memory. Its changes are true in a boolean context if there are any."""

    def take_changes(self) -> SourceChanges: ...


class ChangeStore(Protocol[StoreChanges]):
    def write(self, changes: StoreChanges) -> None:
        """Write the changes; they are on disk on return."""
        ...


class CommitQueue(Generic[Changes]):
    """Batches the writes of many requests; each waits until its own changes are on disk."""

    def __init__(
        self, controller: ChangeSource[Changes], store: ChangeStore[Changes], drop: Callable[[Changes], None]
    ) -> None:
        self._controller, self._store, self._drop = controller, store, drop
        self._asked = self._done = 0
        self._turn = asyncio.Lock()

    async def flush(self) -> None:
        """Return when everything that changed before the call is on disk."""
        self._asked += 1
        request_number = self._asked
        async with self._turn:
            if self._done >= request_number:
                return
            last_covered, changes = self._asked, self._controller.take_changes()
            if changes:
                await self._write_to_store(changes)
            self._done = last_covered

    async def _write_to_store(self, changes: Changes) -> None:
        try:
            await run_in_threadpool(self._store.write, changes)
        except Exception:
            # Memory is now ahead of the disk: continuing would confirm changes that a restart loses
            log.critical("cannot write the state; stopping the server", exc_info=True)
            os._exit(1)
        self._drop(changes)
