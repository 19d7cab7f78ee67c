"""HTTP requests to URLs that users entered (webhooks), never to a machine that only this server can reach.

A name is resolved first, and each of its addresses is checked: loopback, link-local (used by the metadata services of
clouds), private and otherwise special ones are refused, unless the site allows their network. The request then goes to
the address that was checked, so a name that resolves differently a moment later gains nothing. Redirects are not
followed: each would be a new address chosen by a third party.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Sequence[str]]

# Public-looking addresses of metadata services, which webhooks must not reach
METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"))
)
CALL_TIMEOUT_S = 10.0


class ForbiddenUrl(ValueError):
    """A URL that must not be called. The message is a sentence without its subject, to follow a field's name."""


@dataclass(frozen=True, kw_only=True)
class CheckedTarget:
    """A checked destination: the host name, and the addresses that were checked."""

    host: str
    port: int
    addresses: tuple[Address, ...]


def resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host."""
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def check_url(url: str, allowed: Iterable[Network] = (), resolve: Resolve = resolve) -> CheckedTarget:
    """Return the destination of a URL, or raise ForbiddenUrl."""
    try:
        parts, called = urlsplit(url), httpx.URL(url)
        port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    except (ValueError, httpx.InvalidURL):
        raise ForbiddenUrl("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ForbiddenUrl("is not a URL that starts with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise ForbiddenUrl("contains a user name or a password, which would appear in logs")
    if called.host != parts.hostname or called.port not in (parts.port, None):
        raise ForbiddenUrl("has an ambiguous host; write it in plain letters and digits")
    if port == 0:
        raise ForbiddenUrl("has port 0, which is not a valid port")
    host = called.raw_host.decode("ascii")  # as the request sends it, also for internationalized names
    try:
        texts = resolve(host, port)
    except (OSError, UnicodeError):
        raise ForbiddenUrl(f"has the host {parts.hostname[:100]}, which cannot be resolved") from None
    networks = tuple(allowed)
    addresses = tuple(_check_address(text, parts.hostname, networks) for text in texts)
    if not addresses:
        raise ForbiddenUrl(f"has the host {parts.hostname[:100]}, which has no address")
    return CheckedTarget(host=host, port=port, addresses=addresses)


def _check_address(text: str, host: str, networks: Sequence[Network]) -> Address:
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    if address not in METADATA_ADDRESSES and any(address in network for network in networks):
        return address
    if address in METADATA_ADDRESSES or not address.is_global or address.is_multicast:
        raise ForbiddenUrl(f"leads to {address} ({host[:100]}), which is not a public address")
    return address


def is_metadata_service(text: str) -> bool:
    """Whether the address may be a cloud's metadata service, which hands out credentials. Link-local counts too."""
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    return address in METADATA_ADDRESSES or address.is_link_local


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address embeds, so that it is checked as such."""
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo[1] if address.teredo else None
        return address.ipv4_mapped or address.sixtofour or teredo or _nat64_address(address) or address
    return address


def _nat64_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address in a NAT64 or IPv4-compatible address; :: and ::1 are neither."""
    compatible = 1 < int(address) < 2**32
    inside = compatible or address in ipaddress.ip_network("64:ff9b::/96")
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if inside else None


class GuardedTransport(httpx.BaseTransport):
    """For `httpx.Client(transport=…)`: each request is checked, then sent to the address that was checked."""

    def __init__(
        self, allowed: Iterable[Network] = (), *, resolve: Resolve = resolve, inner: httpx.BaseTransport | None = None
    ) -> None:
        self.allowed, self.resolve = tuple(allowed), resolve
        self.inner = inner or httpx.HTTPTransport(retries=0, trust_env=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        target = check_url(str(request.url), self.allowed, self.resolve)
        request.extensions = {**request.extensions, "sni_hostname": target.host}
        request.url = request.url.copy_with(host=str(target.addresses[0]))  # the Host header keeps the name
        return self.inner.handle_request(request)

    def close(self) -> None:
        self.inner.close()


def client(allowed: Iterable[Network] = ()) -> httpx.Client:
    """Return a client for webhooks. It ignores the environment's proxies."""
    return httpx.Client(
        transport=GuardedTransport(allowed), timeout=CALL_TIMEOUT_S, follow_redirects=False, trust_env=False
    )
