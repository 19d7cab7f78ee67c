"""Checks requests to a cluster server: authentication, body format, and errors in Slurm's format."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response

from scheduling.simulation.machines.requests import InvalidSimulatorRequest

from . import wire
from .values import SlurmError
from .wire import InvalidRequest

MAX_BODY_BYTES = 4 * 1024 * 1024
Handler = Callable[[Request], Awaitable[Response]]
ResponseFactory = Callable[..., Response]


def guard_handler(handler: Handler, token: str, json_answer: ResponseFactory) -> Handler:
    """Authenticate first; then convert every error of the handler to errors[] in Slurm's format."""

    async def guarded_handler(request: Request) -> Response:
        if "Origin" in request.headers:
            return PlainTextResponse("Requests from browsers are not accepted.", 403)
        if not _is_authorized(request, token):
            return PlainTextResponse("Authentication failure", 401)
        if _has_non_json_body(request):
            no = InvalidRequest(wire.UNPARSABLE_QUERY, "Unable to parse query", "the body must be application/json")
            return json_answer({}, status=415, errors=[wire.error_struct(no, handler.__name__)])
        try:
            return await handler(request)
        except InvalidSimulatorRequest as error:
            no = InvalidRequest(wire.EMPTY_QUERY, error.words, error.where)
            return json_answer({}, status=wire.http_status(no), errors=[wire.error_struct(no, handler.__name__)])
        except (SlurmError, InvalidRequest) as no:
            return json_answer({}, status=wire.http_status(no), errors=[wire.error_struct(no, handler.__name__)])
        except HTTPException as refusal:
            return PlainTextResponse(refusal.detail, refusal.status_code)
        except ClientDisconnect:
            return PlainTextResponse("", 400)

    return guarded_handler


def _is_authorized(request: Request, token: str) -> bool:
    if not token:
        return True
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    sent_token = request.headers.get("X-SLURM-USER-TOKEN", "") or bearer
    return hmac.compare_digest(sent_token.encode(), token.encode())


def _has_non_json_body(request: Request) -> bool:
    """Whether the body is not declared as JSON: browsers can send such bodies to other sites without a preflight."""
    if request.headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in request.headers:
        return False
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json"


async def read_json_body(request: Request) -> object:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413, "the body is larger than 4 MB")
        parts.append(part)
    try:
        return json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        raise HTTPException(400, "Unable to parse query.") from None


def json_response(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


def job_id_from_path(request: Request) -> int:
    text = request.path_params["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise InvalidRequest(wire.EMPTY_QUERY, "Query empty or not RFC7320 compliant", f"job id {text:.20}")
    return int(text)


def update_time_from_query(request: Request) -> int | None:
    text = request.query_params.get("update_time", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
