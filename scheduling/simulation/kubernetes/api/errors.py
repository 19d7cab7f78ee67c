"""Errors of the API as `Status` objects. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduling.simulation.kubernetes.objects import JsonObject

WRONG_TYPE = "FieldValueTypeInvalid"


class ApiError(Exception):
    """A request that the API refuses."""

    def __init__(self, code: int, reason: str, message: str, details: JsonObject | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details

    def body(self) -> JsonObject:
        details = {"details": self.details} if self.details else {}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            **details,
            "code": self.code,
        }


@dataclass(frozen=True)
class FieldError:
    """One wrong field of an object."""

    field: str
    reason: str  # FieldValueRequired, FieldValueInvalid, ...
    message: str

    def cause(self) -> JsonObject:
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(field: str, detail: str = "") -> FieldError:
    return FieldError(field, "FieldValueRequired", "Required value" + (f": {detail}" if detail else ""))


def invalid_value(field: str, value: Any, detail: str) -> FieldError:
    shown = "{}" if isinstance(value, dict) else json.dumps(value, default=str)
    return FieldError(field, "FieldValueInvalid", f"Invalid value: {shown:.300}: {detail}")


def wrong_type(field: str, value: Any, detail: str) -> FieldError:
    """A value that cannot be decoded. The API server refuses such a body before it checks any field."""
    return replace(invalid_value(field, value, detail), reason=WRONG_TYPE)


def not_supported(field: str, value: Any, allowed: Sequence[str]) -> FieldError:
    choices = ", ".join(f'"{one}"' for one in allowed)
    return FieldError(
        field, "FieldValueNotSupported", f'Unsupported value: "{value!s:.80}": supported values: {choices}'
    )


def forbidden_field(field: str, detail: str) -> FieldError:
    return FieldError(field, "FieldValueForbidden", f"Forbidden: {detail}")


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    texts = [f"{error.field}: {error.message}" for error in errors]
    if undecodable := [text for text, error in zip(texts, errors, strict=True) if error.reason == WRONG_TYPE]:
        return bad_request(f"{kind} cannot be handled as a {kind}: {undecodable[0]}")
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    qualified = f"{kind}.{group}" if group else kind
    details = {"name": name, "group": group, "kind": kind, "causes": [error.cause() for error in errors]}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {listed}', _without_empty(details))


def not_found(resource: str, name: str) -> ApiError:
    plural, _, group = resource.partition(".")
    details = _without_empty({"name": name, "group": group, "kind": plural})
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', details)


def path_not_found() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(resource: str, name: str) -> ApiError:
    plural, _, group = resource.partition(".")
    details = _without_empty({"name": name, "group": group, "kind": plural})
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', details)


def conflict(resource: str, name: str, why: str = "") -> ApiError:
    plural, _, group = resource.partition(".")
    details = _without_empty({"name": name, "group": group, "kind": plural})
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: str, name: str, why: str) -> ApiError:
    plural, _, group = resource.partition(".")
    details = _without_empty({"name": name, "group": group, "kind": plural})
    named = f'{resource} "{name}"' if name else resource
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}", details)


def expired(message: str) -> ApiError:
    return ApiError(410, "Expired", message)


def method_not_allowed() -> ApiError:
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def unsupported_media_type(allowed: Sequence[str]) -> ApiError:
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(allowed)
    return ApiError(415, "UnsupportedMediaType", message)


def too_many_requests(message: str, causes: Sequence[JsonObject] = ()) -> ApiError:
    return ApiError(429, "TooManyRequests", message, {"causes": list(causes)} if causes else {})


def success(kind: str, group: str, name: str, uid: str) -> JsonObject:
    """The answer to a deletion that is complete."""
    details = _without_empty({"name": name, "group": group, "kind": kind, "uid": uid})
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _without_empty(details: JsonObject) -> JsonObject:
    return {name: value for name, value in details.items() if value}
