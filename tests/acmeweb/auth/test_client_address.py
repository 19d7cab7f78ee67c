"""The client's address, with and without reverse proxies."""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
import urllib.request

import pytest
import uvicorn
from channels.db import database_sync_to_async  # closes the connection of its thread

from acmeweb.auth import client_address
from acmeweb.auth.client_address import TrustedProxyMiddleware
from acmeweb.common.env import EnvReader, InvalidEnvSetting
from acmeweb.django_asgi import ThreadedASGIHandler
from acmeweb.services.web import UVICORN_OPTIONS
from jobs.models import Event
from tests.jobs.api import api_make as make
from tests.patience import PATIENCE_S, until

PROXIES = [ipaddress.ip_network(text) for text in ("10.0.0.0/8", "127.0.0.1/32", "fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("203.0.113.9", "10.9.9.9", "203.0.113.9"),  # not a trusted proxy
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "192.0.2.1, 198.51.100.7", "198.51.100.7"),  # the left one is forged by the client
        ("10.0.0.1", "192.0.2.1, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "198.51.100.7:4711", "198.51.100.7"),
        ("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7"),
        ("10.0.0.1", "2001:db8::7", "2001:db8::7"),
        ("fd00::1", "198.51.100.7", "198.51.100.7"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "198.51.100.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.7, , 10.0.0.2", "10.0.0.2"),
        ("", "198.51.100.7", ""),
    ],
)
def test_the_client_is_the_first_untrusted_address_from_the_right(peer, forwarded_for, client):
    assert client_address.client_address(peer, forwarded_for, PROXIES) == client


def test_a_list_of_trusted_addresses_is_read_to_a_bound():
    endless = ", ".join(["10.0.0.2"] * 100_000)

    assert client_address.client_address("10.0.0.1", f"198.51.100.7, {endless}", PROXIES) == "10.0.0.2"


def test_several_headers_are_one_list():
    headers = [(b"x-forwarded-for", b"192.0.2.1"), (b"X-Forwarded-For", b"198.51.100.7"), (b"host", b"x")]
    scope = {"type": "http", "scheme": "http", "client": ("10.0.0.1", 5), "headers": headers}

    assert client_address.resolve_client(scope, PROXIES)["client"] == ("198.51.100.7", 0)


@pytest.mark.parametrize(
    ("kind", "peer", "said", "scheme"),
    [
        ("http", "10.0.0.1", b"https", "https"),
        ("http", "10.0.0.1", b"gopher", "http"),
        ("http", "203.0.113.9", b"https", "http"),
        ("websocket", "10.0.0.1", b"https", "wss"),
    ],
)
def test_scheme_is_accepted_only_from_trusted_proxies(kind, peer, said, scheme):
    plain = {"http": "http", "websocket": "ws"}[kind]
    scope = {"type": kind, "scheme": plain, "client": (peer, 5), "headers": [(b"x-forwarded-proto", said)]}

    assert client_address.resolve_client(scope, PROXIES)["scheme"] == scheme


def test_unix_socket_and_lifespan_scopes_are_unchanged():
    for scope in ({"type": "http", "client": None, "headers": []}, {"type": "lifespan"}):
        assert client_address.resolve_client(scope, PROXIES) is scope


def test_invalid_proxy_network_stops_the_start():
    with pytest.raises(InvalidEnvSetting, match="ACME_TRUSTED_PROXIES"):
        EnvReader({"ACME_TRUSTED_PROXIES": "10.0.0.1/8"}).networks("ACME_TRUSTED_PROXIES")


async def echo(scope, receive, send):
    said = json.dumps([scope["client"][0], scope["scheme"]]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": said})


@pytest.mark.parametrize(("trusted", "seen"), [([], ["127.0.0.1", "http"]), (PROXIES, ["10.9.9.9", "https"])])
def test_web_server_ignores_forwarded_addresses_from_loopback(trusted, seen):
    config = uvicorn.Config(
        **{**UVICORN_OPTIONS, "app": TrustedProxyMiddleware(echo, trusted), "lifespan": "off", "log_level": "error"}
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as here:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [here]})
        thread.start()
        try:
            until(lambda: server.started)
            headers = {"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https"}
            address = f"http://127.0.0.1:{here.getsockname()[1]}/"
            request = urllib.request.Request(address, headers=headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                assert json.loads(answer.read())[:2] == seen
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


async def get_me(trusted, secret, forwarded_for, peer="127.0.0.1"):
    headers = {"host": "localhost", "authorization": f"Bearer {secret}", "x-forwarded-for": forwarded_for}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "GET",
        "path": "/api/v1/me/",
        "query_string": b"",
        "client": (peer, 4711),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    said = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        said.append(message)

    await TrustedProxyMiddleware(ThreadedASGIHandler(), trusted)(scope, receive, send)
    return said[0]["status"]


@pytest.mark.django_db(transaction=True)
async def test_a_token_bound_to_a_network_cannot_be_used_with_a_forged_address():
    person = await database_sync_to_async(make.person)()
    secret = await database_sync_to_async(make.token)(person, networks=["10.9.9.9/32"])

    assert await get_me([], secret, "10.9.9.9") == 401
    assert await get_me(PROXIES[1:2], secret, "10.9.9.9") == 200
    assert await get_me(PROXIES[1:2], secret, "10.9.9.9, 198.51.100.7") == 401
    assert not await database_sync_to_async(Event.objects.filter(source="10.9.9.9").exists)()
