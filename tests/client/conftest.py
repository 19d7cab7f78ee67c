"""The client is a separate package: the tests import it from its folder and connect it to Django without a network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from typer.testing import CliRunner

from tests.jobs.api import api_make as make

CLIENT = str(Path(__file__).parents[2] / "client")
if CLIENT not in sys.path:
    sys.path.insert(0, CLIENT)


@pytest.fixture
def door() -> Iterator[httpx.BaseTransport]:
    """An httpx transport to the Django app. Like Django's test client, a request keeps the test's transaction open."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield httpx.WSGITransport(app=WSGIHandler())
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def acme(door, monkeypatch, tmp_path):
    """Run `acme WORDS` as ada."""
    from acme_client.cli import app  # importable only now that its folder is on the path

    make.cluster()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ACME_URL", "http://localhost")
    monkeypatch.setenv("ACME_TOKEN", make.token(make.operator("ada")))

    def call(*words, stdin=None):
        result = CliRunner().invoke(app, [str(word) for word in words], obj=door, input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def ada():
    return make.person("ada")
