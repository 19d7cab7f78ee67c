"""Calling addresses that users gave us (webhooks): never a machine that only we can reach.

A name is resolved first, and every address it has is checked: loopback, link-local (there live the metadata services of
clouds), private and otherwise special ones are refused, unless the site allows their network. The call then goes to the
very address that was checked, so that a name which means another machine a moment later gains nothing. Redirects are
not followed: each would be a new address that a stranger chose.
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

# Reachable from outside and still not for webhooks: metadata services that live on public-looking addresses
METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"))
)
CALL_TIMEOUT_S = 10.0


class ForbiddenUrl(ValueError):
    """The message is a sentence without its subject, as of a field."""


@dataclass(frozen=True, kw_only=True)
class CheckedTarget:
    """Where a call may go: the name it is for, and the addresses that were checked."""

    host: str
    port: int
    addresses: tuple[Address, ...]


def resolve(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def check_url(url: str, allowed: Iterable[Network] = (), resolve: Resolve = resolve) -> CheckedTarget:
    """Raises ForbiddenTarget."""
    try:
        parts, called = urlsplit(url), httpx.URL(url)
        port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    except (ValueError, httpx.InvalidURL):
        raise ForbiddenUrl("is no address") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ForbiddenUrl("is no address that begins with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise ForbiddenUrl("holds a name or a password; they would stand in every log")
    if called.host != parts.hostname or called.port not in (parts.port, None):
        raise ForbiddenUrl("is no address that everybody reads alike; write its host in plain letters and digits")
    if port == 0:
        raise ForbiddenUrl("names port 0, where nobody listens")
    host = called.raw_host.decode("ascii")  # as the call will name it, also where it is written in other letters
    try:
        found = resolve(host, port)
    except (OSError, UnicodeError):
        raise ForbiddenUrl(f"names {parts.hostname[:100]}, which no name server knows") from None
    networks = tuple(allowed)
    addresses = tuple(_check_address(text, parts.hostname, networks) for text in found)
    if not addresses:
        raise ForbiddenUrl(f"names {parts.hostname[:100]}, which has no address")
    return CheckedTarget(host=host, port=port, addresses=addresses)


def _check_address(text: str, host: str, networks: Sequence[Network]) -> Address:
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    if address not in METADATA_ADDRESSES and any(address in network for network in networks):
        return address
    if address in METADATA_ADDRESSES or not address.is_global or address.is_multicast:
        raise ForbiddenUrl(f"leads to {address} ({host[:100]}), which is not on the open internet")
    return address


def is_metadata_service(text: str) -> bool:
    """Where clouds hand out a machine's credentials; link-local addresses are for nothing else that is called."""
    address = _embedded_ipv4(ipaddress.ip_address(text.partition("%")[0]))
    return address in METADATA_ADDRESSES or address.is_link_local


def _embedded_ipv4(address: Address) -> Address:
    """An IPv4 address in the clothes of an IPv6 one is judged as what it is."""
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo[1] if address.teredo else None
        return address.ipv4_mapped or address.sixtofour or teredo or _nat64_address(address) or address
    return address


def _nat64_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Of NAT64, and of the old IPv4-compatible addresses, among which :: and ::1 are not."""
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
    """What a webhook is called with; the environment's proxies are not for it."""
    return httpx.Client(
        transport=GuardedTransport(allowed), timeout=CALL_TIMEOUT_S, follow_redirects=False, trust_env=False
    )
