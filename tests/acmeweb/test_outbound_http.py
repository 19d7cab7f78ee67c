"""Webhook targets: URLs that users may make the server call."""

from __future__ import annotations

import ipaddress
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from django.db import connections, transaction

from acmeweb.common import outbound_http
from acmeweb.common.errors import InvalidInput
from acmeweb.common.http_client import HttpClient, RequestDeadline, new_client
from acmeweb.common.outbound_http import check_url
from jobs.models import Team
from tests.patience import PATIENCE_S
from tests.scheduling.backends import hostile
from tests.scheduling.backends.hostile import HEAD, read_request, serving

OPEN = "93.184.215.14"


def to(*addresses):
    return lambda host, port: list(addresses)


INWARD = (
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.7", "172.16.3.4", "192.168.1.1", "169.254.169.254", "169.254.1.1"),
    *("100.64.0.1", "100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255", "192.0.2.5", "240.0.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "fc00::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "64:ff9b::a9fe:a9fe"),
    *("::127.0.0.1", "::10.0.0.7", "::169.254.169.254"),
)


@pytest.mark.parametrize("address", INWARD)
def test_name_with_an_internal_address_is_refused(address):
    with pytest.raises(InvalidInput, match="not a public address"):
        check_url("https://hook.example.org/x", resolve=to(address))


@pytest.mark.parametrize("address", [OPEN, "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"])
def test_name_with_a_public_address_is_allowed(address):
    assert check_url("https://hook.example.org:8443/x", resolve=to(address)).port == 8443


def test_one_internal_address_among_public_ones_is_refused():
    with pytest.raises(InvalidInput):
        check_url("https://hook.example.org/", resolve=to(OPEN, "10.0.0.1"))


def test_a_site_may_allow_a_network_of_its_own_but_never_the_metadata_service():
    link_local = ipaddress.ip_network("169.254.0.0/16")

    assert check_url("http://alerts.lab/", [ipaddress.ip_network("10.1.0.0/16")], to("10.1.2.3")).host == "alerts.lab"
    with pytest.raises(InvalidInput):
        check_url("http://alerts.lab/", [link_local], to("169.254.169.254"))


BAD = ("ftp://x.org/", "file:///etc/passwd", "gopher://x/", "https://", "x.org", "http://[::1", "http://x.org:99999/",
       "https://user:pass@x.org/", "javascript:alert(1)", "http://\uff18.\uff18.\uff18.\uff18/", "http://\uff45x.org/",
       "http://x\u3002org/", "http://x.org:\u0663/", "http://x.org:0/", " https://x.org/", "https://x.o\nrg/",
       "https://" + "x" * 70_000 + ".org/")  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_invalid_url_is_refused_with_a_sentence(url):
    with pytest.raises(InvalidInput) as refused:
        check_url(url, resolve=to(OPEN))

    assert "pass" not in str(refused.value).replace("password", "")


def test_internationalized_name_is_resolved_as_the_request_sends_it():
    asked = []

    def resolve(host, port):
        asked.append((host, port))
        return [OPEN]

    assert check_url("https://fa\u00df.example/", resolve=resolve).host == "xn--fa-hia.example"
    assert asked == [("xn--fa-hia.example", 443)]


def test_unresolvable_name_is_refused():
    def nobody(host, port):
        raise OSError("unknown")

    with pytest.raises(InvalidInput, match="cannot be resolved"):
        check_url("https://nowhere.example/", resolve=nobody)


# --- calls

HERE = (ipaddress.ip_network("127.0.0.0/8"),)


def answering(status, received):
    def conversation(connection, over):
        received.append(read_request(connection).decode())
        connection.sendall(f"HTTP/1.1 {status}\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n".encode())

    return conversation


def test_request_goes_to_the_checked_address_even_if_the_name_changes():
    answers, received = ["127.0.0.1", "169.254.169.254"], []

    def resolve(host, port):
        return [answers.pop(0)]

    with serving(answering("204 No Content", received)) as address:
        url = f"http://hook.example.org:{address.rpartition(':')[2]}/x"
        assert outbound_http.post(url, b"{}", {}, HERE, resolve=resolve) == 204
        with pytest.raises(InvalidInput, match="leads to 169"):
            outbound_http.post(url, b"{}", {}, HERE, resolve=resolve)

    [request] = received
    assert "host: hook.example.org:" in request.lower()


def test_redirect_is_not_followed():
    received = []

    with serving(answering("302 Found", received)) as address:
        assert outbound_http.post(address, b"{}", {}, HERE) == 302

    assert len(received) == 1


def test_network_that_is_not_allowed_is_not_called():
    received = []

    with serving(answering("204 No Content", received)) as address, pytest.raises(InvalidInput):
        outbound_http.post(address, b"{}", {})

    assert received == []


@pytest.mark.parametrize("conversation", [hostile.silent, hostile.deaf, hostile.trickling_headers])
def test_one_deadline_ends_a_call_however_slowly_the_receiver_answers(conversation):
    with serving(conversation) as address, pytest.raises(httpx.TimeoutException):
        outbound_http.post(address, b"x" * (32 << 20), {}, HERE, timeout_s=0.3)


def test_status_is_enough_if_the_body_never_ends():
    with serving(hostile.trickling) as address:
        assert outbound_http.post(address, b"{}", {}, HERE) == 200


def test_deadline_covers_name_resolution():
    over = threading.Event()

    def hang(host, port):
        over.wait()
        return []

    try:
        with pytest.raises(httpx.ConnectTimeout, match="not resolved in time"):
            outbound_http.post("http://hook.example.org/", b"{}", {}, timeout_s=0.1, resolve=hang)
    finally:
        over.set()


def test_name_that_cannot_be_resolved_is_a_failed_connection():
    def nobody(host, port):
        raise OSError("unknown")

    with pytest.raises(httpx.ConnectError, match=r"hook.example.org cannot be resolved"):
        outbound_http.post("http://hook.example.org/", b"{}", {}, resolve=nobody)


# --- servers that the environment names


@pytest.fixture
def without_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("conversation", [hostile.trickling_headers, hostile.trickling])
def test_timeout_of_a_new_client_is_one_for_the_whole_request(without_proxies, conversation):
    with serving(conversation) as address, new_client() as client, pytest.raises(httpx.ReadTimeout):
        client.get(address, timeout=0.3)


def test_new_client_uses_the_proxy_of_the_environment(without_proxies, monkeypatch):
    received = []

    with serving(answering("204 No Content", received)) as address:
        monkeypatch.setenv("HTTP_PROXY", address)
        with new_client() as client:
            assert client.get("http://provider.example/x").status_code == 204

    assert received[0].startswith("GET http://provider.example/x ")


# --- the database


def call_webhook(address):
    outbound_http.post(address, b"{}", {}, HERE)


def call_cluster(address):
    with closing(HttpClient(address, {})) as client:
        client.request("GET", "/", RequestDeadline(PATIENCE_S))


def connections_during(call):
    """The database connections of a thread while it waits for a response. It uses the database before and after."""
    caller, found = [], []

    def conversation(connection, over):
        read_request(connection)
        found.append(caller[0].connection)
        connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")

    def work(address):
        caller.append(connections["default"])
        Team.objects.count()
        call(address)
        Team.objects.count()
        connections.close_all()

    with serving(conversation) as address, ThreadPoolExecutor(1) as executor:
        executor.submit(work, address).result()
    return found


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("call", [call_webhook, call_cluster])
def test_call_holds_no_database_connection(call):
    assert connections_during(call) == [None]


@pytest.mark.django_db(transaction=True)
def test_open_transaction_keeps_its_connection():
    assert connections_during(transaction.atomic(call_webhook)) != [None]
