"""The address of the client, also behind reverse proxies.

`X-Forwarded-For` is written by the sender of the request, so it counts only if the peer of the connection is a proxy
named in ACME_TRUSTED_PROXIES. Proxies append on the right; therefore the list is read from the right past trusted
proxies, and the first other address is the client. Without the setting the peer is the client, also on loopback.

The result replaces `scope["client"]` before anything else sees the request, so token networks, login limits, Events
and /metrics all use the same address (Django's REMOTE_ADDR).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_HOPS = 32  # addresses further left are ignored
PROXY_SCHEMES = {"http": {"http": "http", "https": "https"}, "websocket": {"http": "ws", "https": "wss"}}


class TrustedProxyMiddleware:
    """ASGI middleware; the outermost one."""

    def __init__(self, application: Any, trusted: Sequence[Network]) -> None:
        self.application, self.trusted = application, trusted

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.application(resolve_client(scope, self.trusted), receive, send)


def resolve_client(scope: Mapping[str, Any], trusted: Sequence[Network]) -> Mapping[str, Any]:
    """Return the scope as if the client had connected directly; unchanged unless a trusted proxy sent it."""
    peer = scope.get("client")
    if scope["type"] not in PROXY_SCHEMES or not peer or not _is_trusted(_parse_address(peer[0]), trusted):
        return scope
    client = client_address(peer[0], _joined_header(scope, b"x-forwarded-for", ","), trusted)
    forwarded_scheme = _joined_header(scope, b"x-forwarded-proto", ",").strip().lower()
    scheme = PROXY_SCHEMES[scope["type"]].get(forwarded_scheme, scope.get("scheme"))
    return {**scope, "client": (client, peer[1] if client == peer[0] else 0), "scheme": scheme}


def client_address(peer: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """Return the first address from the right that is not a trusted proxy; an unreadable entry stops the search."""
    client, address = peer, _parse_address(peer)
    for entry in reversed(forwarded_for.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
        if not _is_trusted(address, trusted):
            break
        address = _parse_address(_without_port(entry.strip()))
        if address is None:
            break
        client = str(address)
    return client


def _is_trusted(address: Address | None, trusted: Iterable[Network]) -> bool:
    return address is not None and any(address in network for network in trusted)


def _parse_address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _without_port(entry: str) -> str:
    """Remove the port from `203.0.113.7:4711` and `[2001:db8::7]:4711`, as some proxies write them."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _joined_header(scope: Mapping[str, Any], name: bytes, separator: str) -> str:
    """Return a header as one list, also if it was sent several times."""
    return separator.join(value.decode("latin1") for key, value in scope["headers"] if key.lower() == name)
