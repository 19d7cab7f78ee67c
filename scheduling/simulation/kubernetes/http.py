"""Requests and answers over HTTP: identity, bodies, and errors as `Status` objects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from scheduling.simulation.machines.requests import InvalidSimulatorRequest

from .api.errors import ApiError, bad_request, path_not_found, unsupported_media_type
from .api.requests import Answer

MAX_BODY_BYTES = 4 * 1024 * 1024
Handler = Callable[[Request], Awaitable[Response]]


def json_response(body: Any, status: int = 200) -> Response:
    return Response(json.dumps(body, separators=(",", ":")), status, media_type="application/json")


def answer_response(answer: Answer) -> Response:
    if answer.body is None:
        response = Response(answer.text, answer.status, media_type="application/json")
    else:
        response = json_response(answer.body, answer.status)
    for warning in answer.warnings:
        response.headers.append("Warning", f'299 - "{_header_text(warning)}"')
    return response


def _header_text(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in text).replace('"', "'")


def found(body: Any | None) -> Response:
    """A document that may not exist."""
    if body is None:
        raise path_not_found()
    return json_response(body)


def guard_handler(handler: Handler) -> Handler:
    """Convert every error of a handler to a Status. Requests from web pages are refused."""

    async def guarded_handler(request: Request) -> Response:
        if "Origin" in request.headers:
            return PlainTextResponse("Requests from browsers are not accepted.", 403)
        try:
            return await handler(request)
        except ApiError as error:
            return json_response(error.body(), error.code)
        except InvalidSimulatorRequest as error:
            refused = bad_request(error.words)
            return json_response(refused.body(), refused.code)
        except ClientDisconnect:
            return PlainTextResponse("", 400)

    return guarded_handler


async def read_json_body(request: Request, allowed: tuple[str, ...] = ("application/json",)) -> Any:
    """The body; None if there is none. A body of no type is JSON, except that of a patch. Raises ApiError."""
    content = await _read_body(request)
    if not content:
        return None
    kind = media_type(request.headers) or "application/json"
    if kind not in allowed:
        raise unsupported_media_type(allowed)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise bad_request("the body of the request is not valid JSON") from None


async def _read_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(413, "RequestEntityTooLarge", f"limit is {MAX_BODY_BYTES}")
        parts.append(part)
    return b"".join(parts)


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("Content-Type", "").partition(";")[0].strip().lower()


def bearer_token(headers: Mapping[str, str]) -> str:
    kind, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
