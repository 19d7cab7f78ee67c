"""The programs' door: which addresses there are, and what describes them. How it behaves is in `jobs.door`."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import include, path, re_path
from drf_spectacular.generators import SchemaGenerator
from rest_framework.response import Response
from rest_framework.views import exception_handler

from jobs.door.endpoint import Endpoint, Nowhere, refuse_unknown
from jobs.door.errors import translated
from jobs.door.rights import Rule
from jobs.door.shapes import Shape, anything, text
from jobs.models import Scope


def answer_error(error: Exception, context: dict[str, Any]) -> Response | None:
    return exception_handler(translated(error), context)


OPENAPI = Shape(
    "OpenAPI",
    {"openapi": text("3.1.0"), **{name: anything(required=False) for name in ("info", "paths", "components")}},
)


@cache
def schema() -> dict[str, Any]:
    """It is the same for everybody and as long as the process runs."""
    return SchemaGenerator().get_schema(request=None, public=True)


class Schema(Endpoint):
    """This description, as OpenAPI 3.1."""

    tag = "About"
    rules = {"GET": Rule(scope=Scope.READ, says="This description, as OpenAPI 3.1", answer=OPENAPI)}

    def get(self, request: Any) -> Response:
        refuse_unknown(request)
        return Response(schema())


def schema_name(body: dict[str, Any] | None) -> str:
    kinds = body["content"].values() if body else ()
    return next((kind["schema"]["$ref"].rpartition("/")[2] for kind in kinds), "")


def docs(request: HttpRequest) -> HttpResponse:
    """The same for people: rendered here, nothing is loaded from elsewhere. Behind the login like every page."""
    described = schema()
    tags: dict[str, list[dict[str, Any]]] = {}
    for address, methods in described["paths"].items():
        for method, operation in methods.items():
            body = schema_name(operation.get("requestBody"))
            entry = {"method": method.upper(), "address": address, "body": body, **operation}
            tags.setdefault(operation["tags"][0], []).append(entry)
    shapes = {name: one for name, one in described["components"]["schemas"].items() if one.get("properties")}
    return render(request, "api/docs.html", {"tags": tags, "shapes": shapes, "info": described["info"]})


urlpatterns = [
    path("", include("jobs.api.urls")),
    path("", include("failures.api.urls")),
    path("", include("scheduling.api.urls")),
    path("schema/", Schema.as_view()),
    path("docs/", docs, name="api-docs"),
    re_path("", Nowhere.as_view()),
]
