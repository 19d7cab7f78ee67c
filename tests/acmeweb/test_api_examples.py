"""Each operation of the API has an example of its request and of its response, and both are valid."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.urls import resolve
from jsonschema import Draft202012Validator

from acmeweb.api_examples import TEXT_EXAMPLES, ResponseExample, example_path, shown_examples
from acmeweb.api_root import openapi_schema
from tests.jobs.api import api_make as make
from tests.jobs.api.api_make import Caller

OPERATIONS = [
    pytest.param(method, address, id=f"{method} {address}")
    for address, methods in openapi_schema()["paths"].items()
    for method in methods
]


def described(method, address):
    return openapi_schema()["paths"][address][method]


def request_contents(method, address):
    return described(method, address).get("requestBody", {}).get("content", {})


def validate(schema, example):
    whole = {**schema, "components": openapi_schema()["components"]}
    validator = Draft202012Validator(whole, format_checker=Draft202012Validator.FORMAT_CHECKER)
    validator.validate(json.loads(json.dumps(example)))


@pytest.mark.parametrize(("method", "address"), OPERATIONS)
def test_every_request_example_is_valid(method, address):
    for content in request_contents(method, address).values():
        assert content["example"] is not None, "Add an example to the shape of the body."
        validate(content["schema"], content["example"])


@pytest.mark.parametrize(("method", "address"), OPERATIONS)
def test_every_response_example_is_valid(method, address):
    answers = [answer for status, answer in described(method, address)["responses"].items() if status < "300"]

    contents = [content for answer in answers for content in answer["content"].items()]

    assert contents
    for media, content in contents:
        assert content["example"]
        if media not in TEXT_EXAMPLES:
            validate(content["schema"], content["example"])


@pytest.mark.django_db
@pytest.mark.parametrize(("method", "address"), OPERATIONS)
def test_every_request_example_is_read_by_its_endpoint(method, address):
    """The path leads to the endpoint, and its readers accept each field of the body."""
    make.cluster()
    view = resolve(example_path(address)).func.cls
    readers = getattr(view, "takes", {})

    for media, content in request_contents(method, address).items():
        if media == "application/json" and readers:
            assert all(readers[name](name, value) is not None for name, value in content["example"].items())


@pytest.mark.django_db
def test_job_examples_can_be_submitted():
    make.cluster()
    ada = Caller(make.person("ada"))

    for address in ("jobs/", "jobs/bulk/"):
        answer = ada.post(
            address, described("post", f"/api/v1/{address}")["requestBody"]["content"]["application/json"]["example"]
        )
        assert answer.status_code == 201, answer.content


def test_a_field_without_a_value_names_the_table():
    shapes = {"New": {"properties": {"velocity": {"type": "number"}}}}

    with pytest.raises(KeyError, match=r"New\.velocity to acmeweb/example_values\.py"):
        ResponseExample(shapes).of({"$ref": "#/components/schemas/New"})


def test_requests_are_shown_as_commands():
    shown = shown_examples("post", "/api/v1/jobs/{id}/hold/", described("post", "/api/v1/jobs/{id}/hold/"))

    assert shown["request"].startswith(
        'curl -X POST "$ACME_URL/api/v1/jobs/01k3v9q2m7t/hold/" \\\n  -H "Authorization: '
    )
    assert '"reason": "The data set is incomplete."' in shown["request"]
    assert json.loads(shown["response"])["id"] == "01k3v9q2m7t"


@pytest.mark.django_db
def test_reference_page_shows_the_examples():
    client = Client()
    client.force_login(make.person("ada"))

    page = client.get("/api/v1/docs/").content.decode()

    assert page.count("Example request") == page.count("Example response") == len(OPERATIONS)
    assert "-F trace_file=@january.csv" in page
