"""The root of the REST API: its URLs, the OpenAPI schema and the reference page. The behavior is in `jobs.rest`."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import include, path, re_path
from drf_spectacular.generators import SchemaGenerator
from rest_framework.response import Response
from rest_framework.views import exception_handler

from acmeweb import api_examples
from acmeweb.api_health import HealthEndpoint
from jobs.api import urls as job_urls  # first: it registers the converters of all paths
from jobs.models import TokenScope
from jobs.rest.endpoint import ApiEndpoint, UnknownPathEndpoint, reject_unknown_params
from jobs.rest.errors import to_api_exception
from jobs.rest.permissions import EndpointRule
from jobs.rest.shapes import ResourceShape, object_field, text_field
from scheduling.api import preview


def answer_error(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the API's response to an exception; None lets Django handle it."""
    return exception_handler(to_api_exception(error), context)


OPENAPI_SHAPE = ResourceShape(
    "OpenAPI",
    {
        "openapi": text_field("3.1.0"),
        **{name: object_field(required=False) for name in ("info", "paths", "components")},
    },
)


@cache
def openapi_schema() -> dict[str, Any]:
    """Return the schema. It is the same for all callers, so it is built once per process."""
    return api_examples.add_examples(SchemaGenerator().get_schema(request=None, public=True))


class OpenApiSchema(ApiEndpoint):
    """The OpenAPI 3.1 schema of this API."""

    tag = "About"
    rules = {
        "GET": EndpointRule(scope=TokenScope.READ, says="The OpenAPI 3.1 schema of this API", answer=OPENAPI_SHAPE)
    }

    def get(self, request: Any) -> Response:
        reject_unknown_params(request)
        return Response(openapi_schema())


def schema_name(body: dict[str, Any] | None) -> str:
    """Return the name of the schema that a request body refers to; empty if there is no body."""
    kinds = body["content"].values() if body else ()
    return next((kind["schema"]["$ref"].rpartition("/")[2] for kind in kinds), "")


def api_docs_page(request: HttpRequest) -> HttpResponse:
    """Render the API reference. It is rendered here and loads nothing from other hosts; it requires a login."""
    schema = openapi_schema()
    tags: dict[str, list[dict[str, Any]]] = {}
    for address, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = schema_name(operation.get("requestBody"))
            examples = api_examples.shown_examples(method, address, operation)
            entry = {"method": method.upper(), "address": address, "body": body, "examples": examples, **operation}
            tags.setdefault(operation["tags"][0], []).append(entry)
    shapes = {name: shape for name, shape in schema["components"]["schemas"].items() if shape.get("properties")}
    return render(request, "api/docs.html", {"tags": tags, "shapes": shapes, "info": schema["info"]})


urlpatterns = [
    path("", include(preview)),  # before the jobs, because "preview" has the form of an id
    path("", include(job_urls)),
    path("", include("failures.api.urls")),
    path("", include("scheduling.api.urls")),
    path("health/", HealthEndpoint.as_view(), name="api-health"),
    path("schema/", OpenApiSchema.as_view(), name="api-schema"),
    path("docs/", api_docs_page, name="api-docs"),
    re_path("", UnknownPathEndpoint.as_view()),
]
