"""Streaming responses under ASGI servers, and the end of a stream when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.db import connections


def is_asgi(request: Any) -> bool:
    """Return whether an ASGI server handles this Django request, so that the response may stream asynchronously."""
    return isinstance(request, ASGIRequest)


async def read_in_threads(pieces: Iterator[str]) -> AsyncIterator[str]:
    """Yield the pieces, each made by queries in a thread."""
    while piece := await asyncio.to_thread(_next_piece, pieces):
        yield piece


def _next_piece(pieces: Iterator[str]) -> str:
    try:
        return next(pieces, "")
    finally:
        connections.close_all()  # of this thread; the next piece may be made in another thread, or never


async def write_until_disconnect(receive: Any, writing: Coroutine[Any, Any, None]) -> None:
    """Run `writing` and cancel it when the client disconnects. Exceptions of `writing` are raised."""
    disconnect, writer = asyncio.ensure_future(_wait_for_disconnect(receive)), asyncio.ensure_future(writing)
    try:
        await asyncio.wait({disconnect, writer}, return_when=asyncio.FIRST_COMPLETED)
        if writer.done():
            writer.result()
    finally:
        for task in (disconnect, writer):
            task.cancel()
        for task in (disconnect, writer):
            with suppress(asyncio.CancelledError, OSError):
                await task


async def _wait_for_disconnect(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
