"""The fields of a job request as fields of the API's shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs.core.masking import mask_secrets, mask_text
from jobs.core.request_fields import Notation, RequestField, Value
from jobs.core.spec import CHOICES
from jobs.rest.shapes import Schema, ShapeField, attribute_path

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "array", "items": TEXT}
TEXT_BY_NAME: Schema = {"type": "object", "additionalProperties": TEXT}
TIME: Schema = TEXT | {"format": "date-time"}
SECONDS: Schema = {"type": "integer", "minimum": 0}
REQUEST_SCHEMAS: dict[Notation, Schema] = {
    Notation.TEXT: TEXT,
    Notation.LINES: TEXT,
    Notation.PATH: TEXT,
    Notation.FLAG: {"type": "boolean"},
    Notation.PAIRS: TEXT_BY_NAME,
    Notation.NAMES: {"oneOf": [TEXTS, TEXT]},
    Notation.MEMORY: {"oneOf": [{"type": "integer"}, TEXT]},
    Notation.DURATION: {"type": ["integer", "string"]},
    Notation.TIME: TIME,
}
# Fields whose values are more than their notation allows
OWN_REQUEST_SCHEMAS: dict[str, Schema] = {
    "gpus_per_node": {
        "oneOf": [
            {"type": "integer", "minimum": 0, "maximum": 1000},
            {"type": "number", "minimum": 0.001, "maximum": 0.999},
        ]
    },
    "deadline_at": TEXT,
}
RESPONSE_SCHEMAS = REQUEST_SCHEMAS | {
    Notation.NUMBER: {"type": "integer"},
    Notation.NAMES: TEXTS,
    Notation.MEMORY: {"type": "integer"},
    Notation.DURATION: SECONDS,
}
# What the description says about the value, after the help of the field
WRITTEN_IN_REQUESTS = {
    Notation.PATH: "An absolute path.",
    Notation.NAMES: "As text, separated by commas.",
    Notation.MEMORY: "In MiB, or a text such as 512G.",
    Notation.DURATION: "Seconds as a number, or a text such as D-HH:MM:SS, HH:MM:SS or minutes.",
    Notation.TIME: "A date and time needs a zone.",
}
WRITTEN_IN_RESPONSES = {
    Notation.LINES: "Secrets are masked.",
    Notation.PAIRS: "Secrets are masked, recognized by the name or by the format of the value.",
    Notation.MEMORY: "In MiB.",
    Notation.DURATION: "In seconds.",
}
MASKS: dict[Notation, Callable[[Any], Any]] = {Notation.LINES: mask_text, Notation.PAIRS: mask_secrets}


def requested_field(name: str, field: RequestField) -> ShapeField:
    """The field in a request."""
    value = field.value
    if value.notation == Notation.NUMBER:
        schema: Schema = {"type": "integer", "minimum": value.low, "maximum": value.high}
    else:
        schema = _choice_schema(name) or REQUEST_SCHEMAS[value.notation]
    schema = OWN_REQUEST_SCHEMAS.get(name, schema)
    described = schema | _description(field.help, WRITTEN_IN_REQUESTS.get(value.notation, ""))
    return ShapeField(schema=described, required=name == "command")


def job_field(name: str, field: RequestField) -> ShapeField:
    """The field in the response that shows a job."""
    value = field.value
    schema = _choice_schema(name) or RESPONSE_SCHEMAS[value.notation]
    if value.null:
        schema = schema | {"type": [schema["type"], "null"]}
    null = f"Null: {value.null}." if value.null else ""
    return ShapeField(
        schema=schema | _description(field.help, WRITTEN_IN_RESPONSES.get(value.notation, ""), null),
        get=_getter(name, value),
        needs=(value.column,) if value.column else None,
        in_lists=field.in_lists,
    )


def _choice_schema(name: str) -> Schema | None:
    return TEXT | {"enum": [choice.value for choice in CHOICES[name]]} if name in CHOICES else None


def _description(*sentences: str) -> Schema:
    return {"description": text} if (text := " ".join(filter(None, sentences))) else {}


def _getter(name: str, value: Value) -> Callable[[Any], Any] | None:
    if mask := MASKS.get(value.notation):
        return lambda job: mask(getattr(job, name))
    return attribute_path(value.column) if value.column else None
