"""The schema of an endpoint, from its Rules: what permissions read is what is documented."""

from __future__ import annotations

import re
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent

from jobs.door import pages
from jobs.door.endpoint import Detail, Listing, Verb
from jobs.door.once import LONGEST_KEY
from jobs.door.query import Filter
from jobs.door.rights import Rule
from jobs.door.shapes import Schema, Shape

ERROR = {
    "type": "object",
    "description": "The fields that are wrong and why; `detail` where it is no single field.",
    "additionalProperties": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}

REFUSALS = {
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

CHANGES = ("POST", "PATCH")

PATHS: dict[str, Schema] = {
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


class ByRule(AutoSchema):
    def get_operation(self, path: str, path_regex: str, path_prefix: str, method: str, registry: Any) -> Any:
        rule = getattr(self.view, "rules", {}).get(method)
        if rule is None:
            return None
        operation: Schema = {
            "operationId": _operation_id(method, type(self.view).__name__),
            "summary": rule.says,
            "description": _needs(rule),
            "tags": [self.view.tag],
            "security": [{"run": []}] if self.view.own_credentials else [{"bearer": []}, {"session": []}],
            "parameters": self._parameters(path, method),
            "responses": self._answers(path, method, rule, registry),
        }
        if method in CHANGES:
            kind = "multipart/form-data" if self.view.takes_file else "application/json"
            body = {kind: {"schema": _reference(rule.body, registry)}} if rule.body else {}
            needed = any(field.required for field in rule.body.fields.values()) if rule.body else False
            operation["requestBody"] = {"content": body, "required": needed}
        return operation

    def _parameters(self, path: str, method: str) -> list[Schema]:
        found = [
            {"name": name, "in": "path", "required": True, "schema": PATHS[name]}
            for name in re.findall(r"{(\w+)}", path)
        ]
        if method == "POST" and isinstance(self.view, Verb):
            found.append(_header("Idempotency-Key", "The same key and body: the stored answer.", most=LONGEST_KEY))
        if method in CHANGES:
            if "{" in path:
                found.append(_header("If-Match", "Only if it still is the version of this ETag."))
        elif isinstance(self.view, Listing):
            found += _of_list(self.view)
        elif isinstance(self.view, Detail):
            found += [_header("If-None-Match", "304 if it still is this version."), _fields(self.view.shape)]
        rule = self.view.rules[method]
        found += [_query(name, schema, says) for name, (schema, says) in rule.query.items()]
        return found + [_header(name, says) for name, says in rule.headers.items()]

    def _answers(self, path: str, method: str, rule: Rule, registry: Any) -> dict[str, Schema]:
        registry.register_on_missing(
            ResolvedComponent(name="Error", type=ResolvedComponent.SCHEMA, object="Error", schema=ERROR)
        )
        answer: Schema = {"description": rule.says + "."}
        if rule.answer:
            if rule.many:
                schema = _page(_reference(rule.answer, registry, thinned=True))
            elif isinstance(self.view, Detail) and method == "GET":
                schema = {"anyOf": [_reference(rule.answer, registry, thinned=one) for one in (False, True)]}
            else:
                schema = _reference(rule.answer, registry)
            answer["content"] = {"application/json": {"schema": schema}}
        if rule.media != "application/json":
            answer.setdefault("content", {})[rule.media] = {"schema": {"type": "string"}}
        answers = {str(rule.status): answer | {"headers": _headers(self.view, method, rule)}}
        if isinstance(self.view, Detail) and method == "GET":
            answers["304"] = {"description": "It still is the version of If-None-Match."}
        refusals = {status: REFUSALS[status] for status in _refusals(path, method)}
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        for status, says in {**refusals, **rule.also}.items():
            content = error if status >= 400 else answer.get("content", {})
            answers[str(status)] = {"description": says, "content": content}
        if rule.refused:
            either = [_reference(rule.refused, registry), error["application/json"]["schema"]]
            answers["400"]["content"] = {"application/json": {"schema": {"anyOf": either}}}
        return answers


def _needs(rule: Rule) -> str:
    said = f"Scope: {rule.scope}." + " Needs the permission to operate clusters." * rule.operator
    return said + (f" Needs {rule.permission_words}." if rule.permissions else "")


def _operation_id(method: str, view: str) -> str:
    return f"{method.lower()}_" + re.sub(r"(?<!^)(?=[A-Z])", "_", view).lower()


def _refusals(path: str, method: str) -> list[int]:
    refusals = [400, 401, 403, 429, 503]
    if "{" in path:
        refusals += [404, 405]
    if method in CHANGES:
        refusals += [409, 413, 415] + ([412] if "{" in path else [])
    return sorted(refusals)


def _reference(shape: Shape, registry: Any, thinned: bool = False) -> Schema:
    name = f"{shape.name}Row" if thinned else shape.name
    schema = shape.schema(thinned)
    component = ResolvedComponent(name=name, type=ResolvedComponent.SCHEMA, object=name, schema=schema)
    registry.register_on_missing(component)
    return component.ref


def _page(row: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {
            "next": {"type": ["string", "null"], "format": "uri"},
            "previous": {"type": ["string", "null"], "format": "uri"},
            "results": {"type": "array", "items": row},
        },
        "required": ["next", "previous", "results"],
    }


def _headers(view: Any, method: str, rule: Rule) -> dict[str, Schema]:
    headers = {"X-Request-ID": _answer_header("The id of this request, kept in the Events that it caused.")}
    if isinstance(view, Detail) or (method in CHANGES and rule.team):
        headers["ETag"] = _answer_header("The version; send it as If-Match to change just this one.")
    if isinstance(view, Verb) and method == "POST":
        headers["Idempotency-Replayed"] = _answer_header("true: this is the answer to an earlier request.")
    if rule.status == 201:
        headers["Location"] = _answer_header("Where the new row is.")
    return headers


def _answer_header(says: str) -> Schema:
    return {"description": says, "schema": {"type": "string"}}


def _header(name: str, says: str, most: int | None = None) -> Schema:
    schema: Schema = {"type": "string"} | ({"minLength": 1, "maxLength": most} if most else {})
    return {"name": name, "in": "header", "description": says, "schema": schema}


def _of_list(view: Listing) -> list[Schema]:
    orderings = ", ".join(view.orderings)
    found = [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": pages.HIGHEST_LIMIT}, "Rows of a page."),
        _query("cursor", {"type": "string"}, "From next or previous."),
        _query("ordering", {"type": "string"}, f"Any of {orderings}; - before it for descending. {view.ordering}"),
        _fields(view.shape),
    ]
    for name, one in view.filters.items():
        found += [_filter(name, lookup, one) for lookup in one.lookups]
        if one.by_name:
            found.append(_query(f"{name}__NAME", one.schema, "NAME stands for any: labels__run=7b."))
    return found


def _filter(name: str, lookup: str, one: Filter) -> Schema:
    if lookup == "isnull":
        return _query(f"{name}__isnull", {"type": "boolean"})
    if lookup == "in":
        return _query(f"{name}__in", {"type": "string"}, "Several, with commas between them.")
    return _query(f"{name}__{lookup}" if lookup else name, one.schema)


def _fields(shape: Shape) -> Schema:
    return _query("fields", {"type": "string"}, f"Only these, with commas between them: {', '.join(shape.fields)}")


def _query(name: str, schema: Schema, says: str = "") -> Schema:
    return {"name": name, "in": "query", "schema": schema} | ({"description": says} if says else {})
