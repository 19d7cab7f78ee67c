"""One request example and one response example for each operation of the OpenAPI schema.

Examples of requests are written beside the shapes, as they are what users copy. Examples of responses are built from
the schema: values come from `example_values` by field name, so a new field needs at most one line there.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from acmeweb.example_values import PATH_VALUES, VALUES

Schema = dict[str, Any]
NOON = "2026-01-31T12:00:00Z"
REFERENCE_PREFIX = "#/components/schemas/"
# Responses that are not JSON, by media type
TEXT_EXAMPLES = {
    "text/plain": "step 12000 | loss 2.31 | 4.2 s\n",
    "text/event-stream": 'event: start\ndata: {"attempt": 1, "offset": 0}\n\nid: 31\ndata: step 12000 | loss 2.31\n\n',
    "application/x-ndjson": '{"id":90211,"at":"2026-01-31T12:00:00Z","type":"login.succeeded","by":"ada"}\n',
    "text/csv": "root_cause,num,gpu_hours_lost\nNVLinkError,14,49.0\n",
}


def add_examples(schema: Schema) -> Schema:
    """Add an `example` to each request body and each successful response of the schema, in place."""
    shapes = schema["components"]["schemas"]
    for operations in schema["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                content["example"] = _request_example(content["schema"], shapes)
            for status, response in operation["responses"].items():
                if status.startswith("2"):
                    for media, content in response.get("content", {}).items():
                        content["example"] = TEXT_EXAMPLES.get(media) or ResponseExample(shapes).of(content["schema"])
    return schema


def _request_example(schema: Schema, shapes: dict[str, Schema]) -> Any:
    """Return the example of the shape. A body without fields is {}. None if an example is missing."""
    shape = shapes[schema["$ref"].removeprefix(REFERENCE_PREFIX)]
    return shape["examples"][0] if "examples" in shape else {} if not shape["properties"] else None


class ResponseExample:
    """Builds the example of a schema. A field without a value in the table raises KeyError with its names."""

    def __init__(self, shapes: dict[str, Schema]) -> None:
        self.shapes = shapes

    def of(self, schema: Schema, path: tuple[str, ...] = ()) -> Any:
        if reference := schema.get("$ref"):
            name = reference.removeprefix(REFERENCE_PREFIX)
            shape = self.shapes[name]
            # A row of a list has the same fields as the shape of its name
            return self.of(shape, (name.removesuffix("Row") if name.endswith("Row") else name,))
        if "anyOf" in schema:
            return self.of(schema["anyOf"][0], path)
        if "properties" in schema:
            return {name: self._field(field, (*path, name)) for name, field in schema["properties"].items()}
        raise KeyError(".".join(path))

    def _field(self, field: Schema, path: tuple[str, ...]) -> Any:
        """Return the value of a field: that of the table, a nested example, or one that follows from the type."""
        if len(path) == 1 and path[0] in ("next", "previous"):
            return None  # a list on one page
        if path == ("results",):
            return [self.of(field["items"])]
        owned, listed, name = f"{path[0]}.{path[-1]}", ".".join(path[-2:]), path[-1]
        for key in (listed, owned):
            if key in VALUES:
                return VALUES[key]
        if isinstance(VALUES.get(name), dict):
            return VALUES[name]
        if "properties" in field:
            return self.of(field, path)
        if "properties" in field.get("items", {}) and VALUES.get(name) != []:
            return [self.of(field["items"], path)]
        return self._plain_value(field, path)

    def _plain_value(self, field: Schema, path: tuple[str, ...]) -> Any:
        name = path[-1]
        choices = field.get("enum")
        if choices:
            return VALUES[name] if VALUES.get(name) in choices else next(filter(None, choices))
        if name in VALUES:
            return VALUES[name]
        if field.get("format") == "date-time":
            return NOON
        if "boolean" in field.get("type", ()):
            return False
        raise KeyError(f"Add {name} or {path[0]}.{name} to acmeweb/example_values.py")


def example_path(address: str) -> str:
    """Return the path of an operation with values for its parameters: `/api/v1/jobs/01k3v9q2m7t/`."""
    collection = address.removeprefix("/api/v1/").partition("/")[0]

    def value(match: re.Match[str]) -> str:
        return PATH_VALUES.get(f"{collection}/{match[1]}") or PATH_VALUES[match[1]]

    return re.sub(r"{(\w+)}", value, address)


def shown_examples(method: str, address: str, operation: Schema) -> dict[str, str]:
    """Return the request as a curl command, and the response, as the reference page shows them."""
    responses = (answer for status, answer in operation["responses"].items() if status.startswith("2"))
    media, content = next(iter(next(responses)["content"].items()))
    response = content["example"]
    return {
        "request": _curl_command(method, address, operation.get("requestBody", {}).get("content", {})),
        "response": response if media in TEXT_EXAMPLES else json.dumps(response, indent=2, ensure_ascii=False),
    }


def _curl_command(method: str, address: str, contents: dict[str, Schema]) -> str:
    parts = [f'curl -X {method.upper()} "$ACME_URL{example_path(address)}"', '-H "Authorization: Bearer $ACME_TOKEN"']
    if method == "get":
        parts[0] = parts[0].replace("-X GET ", "")
    for media, content in contents.items():
        if media == "application/json":
            parts += [
                "-H 'Content-Type: application/json'",
                f"-d {shlex.quote(json.dumps(content['example'], indent=2))}",
            ]
        else:
            parts += [f"-F {shlex.quote(f'{name}={value}')}" for name, value in content["example"].items()]
    return " \\\n  ".join(parts)
