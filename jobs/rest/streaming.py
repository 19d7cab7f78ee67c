"""Streaming responses under ASGI servers, and the end of a stream when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from django.core.handlers.asgi import ASGIRequest


def is_asgi(request: Any) -> bool:
    """Return whether an ASGI server handles this Django request, so that the response may stream asynchronously."""
    return isinstance(request, ASGIRequest)


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
