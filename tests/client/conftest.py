"""The client is a package of its own: the tests take it from its folder and lead it to the Django app, no network."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections

CLIENT = str(Path(__file__).parents[2] / "client")
if CLIENT not in sys.path:
    sys.path.insert(0, CLIENT)


@pytest.fixture
def door() -> Iterator[httpx.BaseTransport]:
    """A way to the server for httpx. As for Django's own test client, a request leaves the test's transaction open."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield httpx.WSGITransport(app=WSGIHandler())
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
