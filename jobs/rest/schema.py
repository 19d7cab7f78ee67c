"""The schema of an endpoint, from its Rules: what permissions read is what is documented."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from jobs.rest import pagination
from jobs.rest.endpoint import ActionEndpoint, DetailEndpoint, ListEndpoint
from jobs.rest.idempotency import MAX_KEY_LENGTH
from jobs.rest.permissions import EndpointRule
from jobs.rest.query_params import QueryFilter
from jobs.rest.shapes import ResourceShape, Schema

ERROR_SCHEMA = {
    "type": "object",
    "description": "The fields that are wrong and why; `detail` where it is no single field.",
    "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}

ERROR_DESCRIPTIONS = {
    400: "A field cannot be as it is.",
    401: "Nobody knows who asks.",
    403: "The scope of the token or the role in the team does not reach.",
    404: "There is no such thing, or it is none of yours.",
    405: "The address is that of something else, such as jobs/bulk/ where an id was meant.",
    409: "It is in another state by now, or the same Idempotency-Key is in use; with Retry-After, try again.",
    412: "It has changed since the version in If-Match.",
    413: "The body is too large.",
    415: "The body is no JSON; with a file, no multipart/form-data.",
    429: "Too many requests; Retry-After says when to come back.",
    503: "The database does not answer at the moment; Retry-After says when to come back.",
}

WRITE_METHODS = ("POST", "PATCH")

PATH_PARAM_SCHEMAS: dict[str, Schema] = {
    "id": {"type": "string", "pattern": "^[0-9a-z]{1,16}(_[0-9]{1,7})?$"},
    "cluster": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "attempt": {"type": "string", "pattern": r"^[0-9a-z]{1,16}(_[0-9]{1,7})?\.[0-9]{1,5}$"},
    **{
        name: {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
        for name in ("incident", "decision", "order", "channel", "number", "view", "trace")
    },
    "rule": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,60}$"},
}


class EndpointRuleSchema(AutoSchema):
    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        rule = getattr(self.view, "rules", {}).get(method)
        if rule is None:
            return None
        operation: Schema = {
            "operationId": _operation_id(method, type(self.view).__name__),
            "summary": rule.says,
            "description": _requirements_text(rule),
            "tags": [self.view.tag],
            "security": [{"run": []}] if self.view.own_credentials else [{"bearer": []}, {"session": []}],
            "parameters": self._parameter_schemas(path, method),
            "responses": self._response_schemas(path, method, rule, registry),
        }
        if method in WRITE_METHODS:
            kind = "multipart/form-data" if self.view.takes_file else "application/json"
            body = {kind: {"schema": _shape_reference(rule.body, registry)}} if rule.body else {}
            needed = any(field.required for field in rule.body.fields.values()) if rule.body else False
            operation["requestBody"] = {"content": body, "required": needed}
        return operation

    def _parameter_schemas(self, path: str, method: str) -> list[Schema]:
        found = [
            {"name": name, "in": "path", "required": True, "schema": PATH_PARAM_SCHEMAS[name]}
            for name in re.findall(r"{(\w+)}", path)
        ]
        if method == "POST" and isinstance(self.view, ActionEndpoint):
            found.append(
                _request_header("Idempotency-Key", "The same key and body: the stored answer.", most=MAX_KEY_LENGTH)
            )
        if method in WRITE_METHODS:
            if "{" in path:
                found.append(_request_header("If-Match", "Only if it still is the version of this ETag."))
        elif isinstance(self.view, ListEndpoint):
            found += _list_parameters(self.view)
        elif isinstance(self.view, DetailEndpoint):
            found += [
                _request_header("If-None-Match", "304 if it still is this version."),
                _fields_parameter(self.view.shape),
            ]
        rule = self.view.rules[method]
        found += [_query_parameter(name, schema, says) for name, (schema, says) in rule.query.items()]
        return found + [_request_header(name, says) for name, says in rule.headers.items()]

    def _response_schemas(self, path: str, method: str, rule: EndpointRule, registry: Any) -> dict[str, Schema]:
        registry.register_on_missing(
            ResolvedComponent(name="Error", type=ResolvedComponent.SCHEMA, object="Error", schema=ERROR_SCHEMA)
        )
        answer: Schema = {"description": rule.says + "."}
        if rule.answer:
            if rule.many:
                schema = _page_schema(_shape_reference(rule.answer, registry, thinned=True))
            elif isinstance(self.view, DetailEndpoint) and method == "GET":
                schema = {"anyOf": [_shape_reference(rule.answer, registry, thinned=one) for one in (False, True)]}
            else:
                schema = _shape_reference(rule.answer, registry)
            answer["content"] = {"application/json": {"schema": schema}}
        if rule.media != "application/json":
            answer.setdefault("content", {})[rule.media] = {"schema": {"type": "string"}}
        answers = {str(rule.status): answer | {"headers": _response_headers(self.view, method, rule)}}
        if isinstance(self.view, DetailEndpoint) and method == "GET":
            answers["304"] = {"description": "It still is the version of If-None-Match."}
        refusals = {status: ERROR_DESCRIPTIONS[status] for status in _error_statuses(path, method)}
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        for status, says in {**refusals, **rule.also}.items():
            content = error if status >= 400 else answer.get("content", {})
            answers[str(status)] = {"description": says, "content": content}
        if rule.refused:
            either = [_shape_reference(rule.refused, registry), error["application/json"]["schema"]]
            answers["400"]["content"] = {"application/json": {"schema": {"anyOf": either}}}
        return answers


def _requirements_text(rule: EndpointRule) -> str:
    said = f"Scope: {rule.scope}." + " Needs the permission to operate clusters." * rule.operator
    return said + (f" Needs {rule.permission_text}." if rule.permissions else "")


def _operation_id(method: str, view: str) -> str:
    return f"{method.lower()}_" + re.sub(r"(?<!^)(?=[A-Z])", "_", view).lower()


def _error_statuses(path: str, method: str) -> list[int]:
    refusals = [400, 401, 403, 429, 503]
    if "{" in path:
        refusals += [404, 405]
    if method in WRITE_METHODS:
        refusals += [409, 413, 415] + ([412] if "{" in path else [])
    return sorted(refusals)


def _shape_reference(shape: ResourceShape, registry: Any, thinned: bool = False) -> Schema:
    name = f"{shape.name}Row" if thinned else shape.name
    schema = shape.schema(thinned)
    component = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, object=name, schema=schema)
    registry.register_on_missing(component)
    return component.ref


def _page_schema(row: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {
            "next": {"type": ["string", "null"], "format": "uri"},
            "previous": {"type": ["string", "null"], "format": "uri"},
            "results": {"type": "array", "items": row},
        },
        "required": ["next", "previous", "results"],
    }


def _response_headers(view: Any, method: str, rule: EndpointRule) -> dict[str, Schema]:
    headers = {"X-Request-ID": _response_header("The id of this request, kept in the Events that it caused.")}
    if isinstance(view, DetailEndpoint) or (method in WRITE_METHODS and rule.team):
        headers["ETag"] = _response_header("The version; send it as If-Match to change just this one.")
    if isinstance(view, ActionEndpoint) and method == "POST":
        headers["Idempotency-Replayed"] = _response_header("true: this is the answer to an earlier request.")
    if rule.status == 201:
        headers["Location"] = _response_header("Where the new row is.")
    return headers


def _response_header(says: str) -> Schema:
    return {"description": says, "schema": {"type": "string"}}


def _request_header(name: str, says: str, most: int | None = None) -> Schema:
    schema: Schema = {"type": "string"} | ({"minLength": 1, "maxLength": most} if most else {})
    return {"name": name, "in": "header", "description": says, "schema": schema}


def _list_parameters(view: ListEndpoint) -> list[Schema]:
    orderings = ", ".join(view.orderings)
    found = [
        _query_parameter(
            "limit", {"type": "integer", "minimum": 1, "maximum": pagination.MAX_LIMIT}, "Rows of a page."
        ),
        _query_parameter("cursor", {"type": "string"}, "From next or previous."),
        _query_parameter(
            "ordering", {"type": "string"}, f"Any of {orderings}; - before it for descending. {view.ordering}"
        ),
        _fields_parameter(view.shape),
    ]
    for name, one in view.filters.items():
        found += [_filter_parameter(name, lookup, one) for lookup in one.lookups]
        if one.by_name:
            found.append(_query_parameter(f"{name}__NAME", one.schema, "NAME stands for any: labels__run=7b."))
    return found


def _filter_parameter(name: str, lookup: str, one: QueryFilter) -> Schema:
    if lookup == "isnull":
        return _query_parameter(f"{name}__isnull", {"type": "boolean"})
    if lookup == "in":
        return _query_parameter(f"{name}__in", {"type": "string"}, "Several, with commas between them.")
    return _query_parameter(f"{name}__{lookup}" if lookup else name, one.schema)


def _fields_parameter(shape: ResourceShape) -> Schema:
    return _query_parameter(
        "fields", {"type": "string"}, f"Only these, with commas between them: {', '.join(shape.fields)}"
    )


def _query_parameter(name: str, schema: Schema, says: str = "") -> Schema:
    return {"name": name, "in": "query", "schema": schema} | ({"description": says} if says else {})
