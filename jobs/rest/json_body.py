"""Parsing of untrusted JSON: strict, with bounded depth and numbers, and errors that name the position."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser

from acmeweb.common.errors import InvalidField

MAX_DEPTH = 16
MAX_DIGITS = 400


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return read(stream.read())


class JSONContentNegotiation(BaseContentNegotiation):
    """Ignores the Accept header: the API answers in JSON only, and clients with other headers still get an answer."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        kind = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def read(raw: bytes) -> Any:
    """The parsed body; an empty body is an empty object. Raises ParseError or InvalidField."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"The body is not valid UTF-8: byte {error.start} cannot be decoded.") from None
    if not text.strip():
        return {}
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_int=_bounded_integer,
            parse_float=float,
            parse_constant=_reject_constant,
        )
    except json.JSONDecodeError as error:
        raise ParseError(
            f"The body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        raise ParseError(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    _check_depth(value)
    # After UTF-8 decoding, only a \u escape can produce a lone surrogate or a NUL, so most bodies skip this check
    if "\\u" in text:
        _check_texts(value)
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names: set[str] = set()
        twice = next(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
        raise InvalidField(_printable_name(twice)[:40], "is given twice")
    return fields


def _bounded_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ParseError(f"The body contains a number of {len(digits)} digits; at most {MAX_DIGITS} are allowed.")
    return int(digits)


def _reject_constant(name: str) -> NoReturn:
    raise ParseError(f"The body contains {name}, which is not valid JSON.")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _child_values(outer) if isinstance(inner, list | dict)]
        if not level:
            return
    raise ParseError(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _child_values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_texts(value: Any) -> None:
    for field, text in _text_values("", value):
        if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
            raise InvalidField(field or "detail", "contains a lone surrogate")
        if "\x00" in text:
            raise InvalidField(field or "detail", "contains a NUL byte")


def _text_values(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """All names and texts of the body with their path, such as `environment.A`. The depth must be checked before."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, list):
        for inner in value:
            yield from _text_values(field, inner)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            path = f"{field}.{_printable_name(name)[:40]}".lstrip(".")
            yield path, name
            yield from _text_values(path, inner)


def _printable_name(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00") or "detail"
