"""Reading JSON that a stranger sent: strict, bounded, and refused in sentences that name the place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from rest_framework.exceptions import ParseError
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import BaseParser

from jobs.rest.errors import InvalidRequestField

MAX_DEPTH = 16
MAX_DIGITS = 400


class StrictJSONParser(BaseParser):
    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return read(stream.read())


class JSONContentNegotiation(BaseContentNegotiation):
    """There is one form of answer; a strange Accept header is no reason to refuse one."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        kind = (request.content_type or "").partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def read(raw: bytes) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"The body is no UTF-8: byte {error.start} cannot be read.") from None
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
        raise ParseError(f"The body is no JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise ParseError(f"The body is nested more than {MAX_DEPTH} deep.") from None
    _check_depth(value)
    # Only an escape can smuggle half a character or a NUL through UTF-8; most bodies need no second look
    if "\\u" in text:
        _check_texts(value)
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InvalidRequestField(_printable_name(twice)[:40], "is given twice")
    return found


def _bounded_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ParseError(f"The body holds a number of {len(digits)} digits.")
    return int(digits)


def _reject_constant(name: str) -> NoReturn:
    raise ParseError(f"The body holds {name}, which is no JSON.")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in _child_values(outer) if isinstance(inner, list | dict)]
        if not level:
            return
    raise ParseError(f"The body is nested more than {MAX_DEPTH} deep.")


def _child_values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_texts(value: Any) -> None:
    for field, text in _text_values("", value):
        if any(0xD800 <= ord(char) <= 0xDFFF for char in text):
            raise InvalidRequestField(field or "detail", "contains half a character (a lone surrogate)")
        if "\x00" in text:
            raise InvalidRequestField(field or "detail", "contains a NUL byte")


def _text_values(field: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text of the body with the way to it, `environment.A`; the depth is checked already."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, list):
        for inner in value:
            yield from _text_values(field, inner)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            way = f"{field}.{_printable_name(name)[:40]}".lstrip(".")
            yield way, name
            yield from _text_values(way, inner)


def _printable_name(name: str) -> str:
    return name.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00") or "detail"
