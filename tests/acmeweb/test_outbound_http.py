"""Webhook targets: URLs that users may make the server call."""

from __future__ import annotations

import ipaddress

import httpx
import pytest

from acmeweb.common.outbound_http import ForbiddenUrl, GuardedTransport, check_url

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
    with pytest.raises(ForbiddenUrl, match="not a public address"):
        check_url("https://hook.example.org/x", resolve=to(address))


@pytest.mark.parametrize("address", [OPEN, "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"])
def test_name_with_a_public_address_is_allowed(address):
    assert check_url("https://hook.example.org:8443/x", resolve=to(address)).port == 8443


def test_one_internal_address_among_public_ones_is_refused():
    with pytest.raises(ForbiddenUrl):
        check_url("https://hook.example.org/", resolve=to(OPEN, "10.0.0.1"))


def test_a_site_may_allow_a_network_of_its_own_but_never_the_metadata_service():
    link_local = ipaddress.ip_network("169.254.0.0/16")

    assert check_url("http://alerts.lab/", [ipaddress.ip_network("10.1.0.0/16")], to("10.1.2.3")).host == "alerts.lab"
    with pytest.raises(ForbiddenUrl):
        check_url("http://alerts.lab/", [link_local], to("169.254.169.254"))


BAD = ("ftp://x.org/", "file:///etc/passwd", "gopher://x/", "https://", "x.org", "http://[::1", "http://x.org:99999/",
       "https://user:pass@x.org/", "javascript:alert(1)", "http://\uff18.\uff18.\uff18.\uff18/", "http://\uff45x.org/",
       "http://x\u3002org/", "http://x.org:\u0663/", "http://x.org:0/", " https://x.org/", "https://x.o\nrg/",
       "https://" + "x" * 70_000 + ".org/")  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_invalid_url_is_refused_with_a_sentence(url):
    with pytest.raises(ForbiddenUrl) as refused:
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

    with pytest.raises(ForbiddenUrl, match="cannot be resolved"):
        check_url("https://nowhere.example/", resolve=nobody)


def test_request_goes_to_the_checked_address_even_if_the_name_changes():
    answers = [OPEN, "127.0.0.1"]
    sent = []

    def inner(request):
        sent.append((request.url.host, request.headers["Host"], request.extensions["sni_hostname"]))
        return httpx.Response(302, headers={"Location": "http://127.0.0.1/"})

    transport = GuardedTransport(resolve=lambda host, port: [answers.pop(0)], inner=httpx.MockTransport(inner))
    with httpx.Client(transport=transport) as client:
        assert client.post("https://hook.example.org/x").status_code == 302
        with pytest.raises(ForbiddenUrl):
            client.post("https://hook.example.org/x")

    assert sent == [(OPEN, "hook.example.org", "hook.example.org")]


def test_redirect_to_an_internal_address_is_refused():
    def inner(request):
        return httpx.Response(302, headers={"Location": "http://127.0.0.1:9/"})

    hosts = {"hook.example.org": OPEN, "127.0.0.1": "127.0.0.1"}
    transport = GuardedTransport(resolve=lambda host, port: [hosts[host]], inner=httpx.MockTransport(inner))
    with httpx.Client(transport=transport, follow_redirects=True) as client, pytest.raises(ForbiddenUrl):
        client.get("https://hook.example.org/")
