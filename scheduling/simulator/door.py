"""The door of a cluster server: who may ask, what a request may look like, and every no in Slurm's words."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from . import wire
from .values import Refusal
from .wire import BadBody

BODY_LIMIT = 4 * 1024 * 1024
Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[..., Response]


class TooLarge(Exception):
    pass


class NotJson(Exception):
    pass


def guarded(handler: Handler, token: str, answered: Answer) -> Handler:
    """Who asks comes before what is asked; then every no becomes errors[] in Slurm's words."""

    async def answer(request: Request) -> Response:
        if "Origin" in request.headers:
            return PlainTextResponse("A browser has no business here.", 403)
        if not _admitted(request, token):
            return PlainTextResponse("Authentication failure", 401)
        if _has_foreign_body(request):
            no = BadBody(wire.UNPARSED, "Unable to parse query", "the body must be application/json")
            return answered({}, status=415, errors=[wire.error(no, handler.__name__)])
        try:
            return await handler(request)
        except (Refusal, BadBody) as no:
            return answered({}, status=wire.status_of(no), errors=[wire.error(no, handler.__name__)])
        except TooLarge:
            return PlainTextResponse("the body is larger than 4 MB", 413)
        except NotJson:
            return PlainTextResponse("Unable to parse query.", 400)
        except ClientDisconnect:
            return PlainTextResponse("", 400)

    return answer


def _admitted(request: Request, token: str) -> bool:
    if not token:
        return True
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    given = request.headers.get("X-SLURM-USER-TOKEN", "") or bearer
    return hmac.compare_digest(given.encode(), token.encode())


def _has_foreign_body(request: Request) -> bool:
    """A body that does not say it is JSON: what a browser may send to another's server without asking it first."""
    if request.headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in request.headers:
        return False
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json"


async def body(request: Request) -> object:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_LIMIT:
            raise TooLarge
        parts.append(part)
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise NotJson from None


def json_answer(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def job_id(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise BadBody(wire.EMPTY_QUERY, "Query empty or not RFC7320 compliant", f"job id {text:.20}")
    return int(text)


def since(request: Request) -> int | None:
    text = request.query_params.get("update_time", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
