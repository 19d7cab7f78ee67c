"""Writing an answer for as long as somebody listens. Knows ASGI and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any


async def write_until_disconnect(receive: Any, writing: Coroutine[Any, Any, None]) -> None:
    """Cancels the writing when the caller has hung up."""
    gone, written = asyncio.ensure_future(_wait_for_disconnect(receive)), asyncio.ensure_future(writing)
    try:
        await asyncio.wait({gone, written}, return_when=asyncio.FIRST_COMPLETED)
        if written.done():
            written.result()
    finally:
        for task in (gone, written):
            task.cancel()
        for task in (gone, written):
            with suppress(asyncio.CancelledError, OSError):
                await task


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
