"""Django under an ASGI server: each request is one call in one thread.

Django's own handler switches to a thread and back for each middleware, and starts a thread for each request; with ten
middlewares that is more work than most of our responses. Nothing of ours is asynchronous below this line, so the body
is read here, then one thread does everything from the first middleware to the bytes of the response.

A disconnect is only noticed when the response is sent: a working thread cannot be stopped anyway.

Django documents `get_asgi_application` but not the class behind it. This is the only module that relies on that class;
`tests/acmeweb/test_handler.py` checks the methods that are used here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django import setup
from django.conf import settings
from django.core.exceptions import RequestAborted, RequestDataTooBig
from django.core.handlers.asgi import ASGIHandler
from django.core.signals import request_started
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix

from jobs.rest.streaming import write_until_disconnect

REQUEST_THREADS = 40  # more than database connections, so /healthz is answered even if all of those are busy


class ThreadedASGIHandler(ASGIHandler):
    def __init__(self) -> None:
        setup(set_prefix=False)
        super().__init__()
        self.threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="request")

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middlewares as synchronous ones. Django's ASGI handler asks for asynchronous ones."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise ValueError(f"This serves HTTP, not {scope['type']}.")
        body, whole = await self._body(receive)
        if not whole:
            return
        response, content = await self._in_thread(self._handle_in_thread, scope, body)
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": _response_headers(response)}
        )
        if not response.streaming:
            return await send({"type": "http.response.body", "body": content})
        try:
            await write_until_disconnect(receive, self._stream(response, send))
        finally:
            await self._in_thread(response.close)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    async def _stream(self, response: Any, send: Any) -> None:
        async for part in response if response.is_async else self._read_parts(iter(response)):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _read_parts(self, parts: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (part := await self._in_thread(next, parts, None)) is not None:
            yield part

    async def _body(self, receive: Any) -> tuple[Any, bool]:
        try:
            return await self.read_body(receive), True
        except RequestAborted:
            return None, False

    def _handle_in_thread(self, scope: Any, body: Any) -> tuple[HttpResponseBase, bytes]:
        """Handle the request in the thread. Close what can be closed, so the connection returns to the pool first."""
        set_script_prefix(settings.FORCE_SCRIPT_NAME or scope.get("root_path", ""))
        request_started.send(sender=self.__class__, scope=scope)
        request, refusal = self.create_request(scope, body)
        response: Any = refusal if request is None else self._respond_or_413(request)
        response._handler_class = self.__class__
        if response.streaming:
            return response, b""
        content = response.content
        response.close()
        return response, content

    def _respond_or_413(self, request: Any) -> HttpResponseBase:
        try:
            return self.get_response(request)
        except RequestDataTooBig:
            return HttpResponse("413 Payload too large", status=413)


def _response_headers(response: HttpResponseBase) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    cookies = (morsel.OutputString().encode("ascii") for morsel in response.cookies.values())
    return headers + [(b"Set-Cookie", cookie) for cookie in cookies]
