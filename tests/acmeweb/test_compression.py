"""Sizes of what browsers load: compressed responses, and minified, hashed and compressed static files."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from django.core.management import call_command
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from acmeweb.middleware import CompressionMiddleware
from acmeweb.staticfiles import MINIFIERS, is_minified_here
from tests import make

STATIC = Path(__file__).parents[2] / "static"
TEXT = "gpu allocated " * 100


def compressed(response):
    return CompressionMiddleware(lambda _: response)(RequestFactory().get("/", headers={"Accept-Encoding": "gzip, br"}))


def test_whole_response_is_compressed():
    answer = compressed(HttpResponse(TEXT))

    assert answer["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.content).decode() == TEXT
    assert int(answer["Content-Length"]) == len(answer.content) < len(TEXT)


def test_stream_is_sent_line_by_line():
    answer = compressed(StreamingHttpResponse(iter([b"step 1\n", b"step 2\n"])))

    assert "Content-Encoding" not in answer
    assert list(answer) == [b"step 1\n", b"step 2\n"]


@pytest.mark.django_db
def test_page_is_compressed_and_its_csrf_token_differs_in_each_response(client):
    client.force_login(make.user("ada"))
    answers = [client.get("/jobs/new/", headers={"Accept-Encoding": "gzip"}) for _ in range(2)]

    tokens = [
        re.findall(r'csrfmiddlewaretoken" value="(\w+)"', gzip.decompress(one.content).decode()) for one in answers
    ]
    assert tokens[0] and not set(tokens[0]) & set(tokens[1])


@pytest.mark.django_db
def test_form_with_the_environment_of_an_earlier_job_is_not_compressed(client):
    client.force_login(make.user("ada"))
    job = make.job(by="ada", environment={"HF_TOKEN": "secret"})

    answer = client.get(f"/jobs/new/?from={job}&comment=guess", headers={"Accept-Encoding": "gzip"})

    assert "Content-Encoding" not in answer and b"guess" in answer.content


@pytest.mark.parametrize(
    "path", [path for path in STATIC.glob("*.*") if path.suffix in MINIFIERS], ids=lambda path: path.name
)
def test_minified_file_is_smaller_and_cannot_be_minified_further(path):
    minify, text = MINIFIERS[path.suffix], path.read_text()

    assert len(minify(text)) < 0.9 * len(text)
    assert minify(minify(text)) == minify(text)


def test_minified_style_sheet_keeps_the_spaces_that_have_a_meaning():
    assert (
        MINIFIERS[".css"]("a { width: calc(100% - 3px); }\n\nb  c { top: 0 }") == "a{width:calc(100% - 3px)}b c{top:0}"
    )


@pytest.mark.parametrize(
    ("name", "minified"),
    [
        ("app.css", True),
        ("live.js", True),
        ("icon.svg", False),
        ("vendor/htmx-4.0.1.min.js", False),
        ("admin/js/core.js", False),
    ],
)
def test_only_our_style_sheets_and_scripts_are_minified(name, minified):
    assert is_minified_here(name) is minified


def test_collected_files_are_minified_hashed_and_compressed(settings, tmp_path):
    settings.STATIC_ROOT = tmp_path
    backend = {"BACKEND": "acmeweb.staticfiles.MinifiedStaticFilesStorage"}
    settings.STORAGES = settings.STORAGES | {"staticfiles": backend}
    ignored = {"ignore_patterns": ["admin", "rest_framework"]}
    call_command("collectstatic", interactive=False, verbosity=0, **ignored)
    call_command("collectstatic", interactive=False, verbosity=0, **ignored)  # the second one finds minified files

    names = json.loads((tmp_path / "staticfiles.json").read_text())["paths"]
    script = (tmp_path / names["live.js"]).read_text()
    assert script == MINIFIERS[".js"]((STATIC / "live.js").read_text())
    assert gzip.decompress((tmp_path / f"{names['live.js']}.gz").read_bytes()).decode() == script
    assert "vendor" in names["vendor/htmx-4.0.1.min.js"]
