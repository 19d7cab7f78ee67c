"""OpenAPI schema of the endpoints, generated from the same EndpointRules that permissions use."""

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
    "description": "Errors by field name; `detail` for errors that concern no single field.",
    "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}

ERROR_DESCRIPTIONS = {
    400: "Invalid field value.",
    401: "Missing or invalid token.",
    403: "The token's scope or the role in the team is not sufficient.",
    404: "Not found, or not visible to you.",
    405: "Method not allowed. The path may belong to another endpoint, such as jobs/bulk/ in place of a job id.",
    409: "The state does not allow the request, or the Idempotency-Key is in use. With Retry-After, try again.",
    412: "The resource has changed since the version in If-Match.",
    413: "The request body is too large.",
    415: "The body is not JSON, or not multipart/form-data for an upload.",
    429: "Too many requests. Retry-After says when to try again.",
    503: "The database is not responding. Retry-After says when to try again.",
}

WRITE_METHODS = ("POST", "PATCH")

PATH_PARAM_SCHEMAS: dict[str, Schema] = {
    "id": {"type": "string", "pattern": "^[0-9a-z]{1,16}(_[0-9]{1,7})?$"},
    "cluster": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
    "attempt": {"type": "string", "pattern": r"^[0-9a-z]{1,16}(_[0-9]{1,7})?\.[0-9]{1,5}$"},
    **{
        name: {"type": "integer", "minimum": 1, "maximum": 10**18 - 1}
        for name in ("incident", "decision", "override", "channel", "number", "view", "trace")
    },
    "rule": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,60}$"},
}


class EndpointRuleSchema(AutoSchema):
    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        rule = getattr(self.view, "rules", {}).get(method)
        if rule is None:
            return None
        operation: Schema = {
            "operationId": _operation_id(path, method, isinstance(self.view, ListEndpoint)),
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
        params = [
            {"name": name, "in": "path", "required": True, "schema": PATH_PARAM_SCHEMAS[name]}
            for name in re.findall(r"{(\w+)}", path)
        ]
        if method == "POST" and isinstance(self.view, ActionEndpoint):
            says = "Repeating the same key and body returns the stored response."
            params.append(_request_header("Idempotency-Key", says, most=MAX_KEY_LENGTH))
        if method in WRITE_METHODS:
            if "{" in path:
                params.append(_request_header("If-Match", "Change the resource only if it still has this ETag."))
        elif isinstance(self.view, ListEndpoint):
            params += _list_parameters(self.view)
        elif isinstance(self.view, DetailEndpoint):
            params += [
                _request_header("If-None-Match", "Answer 304 if the resource still has this ETag."),
                _fields_parameter(self.view.shape),
            ]
        rule = self.view.rules[method]
        params += [_query_parameter(name, schema, says) for name, (schema, says) in rule.query.items()]
        return params + [_request_header(name, says) for name, says in rule.headers.items()]

    def _response_schemas(self, path: str, method: str, rule: EndpointRule, registry: Any) -> dict[str, Schema]:
        registry.register_on_missing(
            ResolvedComponent(name="Error", type=ResolvedComponent.SCHEMA, object="Error", schema=ERROR_SCHEMA)
        )
        answer: Schema = {"description": rule.says + "."}
        if rule.answer:
            if rule.many:
                schema = _page_schema(_shape_reference(rule.answer, registry, thinned=True))
            elif isinstance(self.view, DetailEndpoint) and method == "GET":
                schema = {"anyOf": [_shape_reference(rule.answer, registry, thinned=thin) for thin in (False, True)]}
            else:
                schema = _shape_reference(rule.answer, registry)
            answer["content"] = {"application/json": {"schema": schema}}
        if rule.media != "application/json":
            answer.setdefault("content", {})[rule.media] = {"schema": rule.media_schema}
        answers = {str(rule.status): answer | {"headers": _response_headers(self.view, method, rule)}}
        if isinstance(self.view, DetailEndpoint) and method == "GET":
            answers["304"] = {"description": "Not modified since the version in If-None-Match."}
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
    text = f"Scope: {rule.scope}." + " Needs the permission to operate clusters." * rule.operator
    return text + (f" Needs {rule.permission_text}." if rule.permissions else "")


def _operation_id(path: str, method: str, is_list: bool) -> str:
    """Return a name made of the path, so that renaming a class changes no client: jobs_list, jobs_get, jobs_cancel."""
    names = [part.replace("-", "_") for part in path.split("/")[3:] if part and not part.startswith("{")]
    if method == "PATCH":
        names.append("update")
    elif method == "GET":
        names.append("list" if is_list else "get")
    elif is_list:
        names.append("create")
    return "_".join(names)


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
    headers = {"X-Request-ID": _response_header("The id of this request, stored in the events that it causes.")}
    if isinstance(view, DetailEndpoint) or (method in WRITE_METHODS and rule.team):
        headers["ETag"] = _response_header("The version. Send it as If-Match to change only this version.")
    if isinstance(view, ActionEndpoint) and method == "POST":
        headers["Idempotency-Replayed"] = _response_header("true: this is the stored response to an earlier request.")
    if rule.status == 201:
        headers["Location"] = _response_header("URL of the new resource.")
    return headers


def _response_header(says: str) -> Schema:
    return {"description": says, "schema": {"type": "string"}}


def _request_header(name: str, says: str, most: int | None = None) -> Schema:
    schema: Schema = {"type": "string"} | ({"minLength": 1, "maxLength": most} if most else {})
    return {"name": name, "in": "header", "description": says, "schema": schema}


def _list_parameters(view: ListEndpoint) -> list[Schema]:
    orderings = ", ".join(view.orderings)
    params = [
        _query_parameter(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": pagination.MAX_LIMIT},
            "Maximum number of rows per page.",
        ),
        _query_parameter("cursor", {"type": "string"}, "Taken from `next` or `previous`."),
        _query_parameter(
            "ordering",
            {"type": "string"},
            f"Any of {orderings}, separated by commas; prefix - for descending. Default: {view.ordering}.",
        ),
        _fields_parameter(view.shape),
    ]
    for name, known in view.filters.items():
        params += [_filter_parameter(name, lookup, known) for lookup in known.lookups]
        if known.by_name:
            says = "Replace NAME with any name, as in labels__run=7b."
            params.append(_query_parameter(f"{name}__NAME", known.schema, says))
    return params


def _filter_parameter(name: str, lookup: str, known: QueryFilter) -> Schema:
    if lookup == "isnull":
        return _query_parameter(f"{name}__isnull", {"type": "boolean"})
    if lookup == "in":
        return _query_parameter(f"{name}__in", {"type": "string"}, "Values separated by commas.")
    return _query_parameter(f"{name}__{lookup}" if lookup else name, known.schema)


def _fields_parameter(shape: ResourceShape) -> Schema:
    return _query_parameter(
        "fields", {"type": "string"}, f"Fields to return, separated by commas: {', '.join(shape.fields)}."
    )


def _query_parameter(name: str, schema: Schema, says: str = "") -> Schema:
    return {"name": name, "in": "query", "schema": schema} | ({"description": says} if says else {})
