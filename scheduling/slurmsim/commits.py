"""The world's changes on their way to the disk: many requests at a time, and each hears when its own are there."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from .controller import ClusterController
from .store import StateStore
from .values import StateChanges

log = logging.getLogger("acme.cluster")


class CommitQueue:
    """Writes the world's changes, many requests at a time, and tells each when its own are on the disk."""

    def __init__(self, world: ClusterController, store: StateStore, forget: Callable[[StateChanges], None]) -> None:
        self._world, self._store, self._forget = world, store, forget
        self._asked = self._done = 0
        self._turn = asyncio.Lock()

    async def flush(self) -> None:
        """Return when everything that changed before the call is on the disk."""
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done >= mine:
                return
            covered, changes = self._asked, self._world.take_changes()
            if changes:
                await self._write_to_store(changes)
            self._done = covered

    async def _write_to_store(self, changes: StateChanges) -> None:
        try:
            await run_in_threadpool(self._store.write, changes)
        except Exception:
            # What is in memory is now more than what is on the disk: going on would promise what a restart forgets.
            log.critical("the state cannot be written; the server stops", exc_info=True)
            os._exit(1)
        self._forget(changes)
