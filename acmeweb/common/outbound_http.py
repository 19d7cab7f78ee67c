"""HTTP requests to URLs that users entered (webhooks), never to a machine that only this server can reach.

Each address of the host is checked: loopback, link-local (used by the metadata services of clouds), private and
otherwise special ones are refused, unless the site allows their network. `post` checks the address that it connects to,
so a name that resolves differently a moment after `check_url` gains nothing. Redirects are not followed: each would be
a new address chosen by a third party.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpcore
import httpx

from acmeweb.common.errors import InvalidInput
from acmeweb.common.http_client import (
    DeadlineTransport,
    RequestDeadline,
    Resolve,
    prepare_call,
    resolve,
    resolve_in_time,
)
from acmeweb.common.special_addresses import METADATA_ADDRESSES, Network, read_address

CALL_TIMEOUT_S = 10.0  # for a whole call, however slowly the receiver answers
RESOLVE_TIMEOUT_S = 5.0


CALL_ERRORS = (InvalidInput, httpx.HTTPError, httpx.InvalidURL, OSError)


@dataclass(frozen=True, kw_only=True)
class UrlTarget:
    """The host of a URL, as a request sends it, and the port."""

    host: str
    port: int


def check_url(url: str, allowed: Iterable[Network] = (), resolve: Resolve = resolve) -> UrlTarget:
    """Return the target of a URL that may be called now, or raise InvalidInput."""
    target, networks = _parse_url(url), tuple(allowed)
    prepare_call()
    try:
        addresses = resolve_in_time(resolve, target.host, target.port, RESOLVE_TIMEOUT_S)
    except (httpcore.ConnectError, httpcore.ConnectTimeout):
        raise InvalidInput(f"has the host {target.host[:100]}, which cannot be resolved") from None
    if not addresses:
        raise InvalidInput(f"has the host {target.host[:100]}, which has no address")
    for address in addresses:
        _check_address(target.host, address, networks)
    return target


def _parse_url(url: str) -> UrlTarget:
    try:
        parts, called = urlsplit(url), httpx.URL(url)
        port = parts.port if parts.port is not None else (443 if parts.scheme == "https" else 80)
    except (ValueError, httpx.InvalidURL):
        raise InvalidInput("is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("is not a URL that starts with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("contains a user name or a password, which would appear in logs")
    if called.host != parts.hostname or called.port not in (parts.port, None):
        raise InvalidInput("has an ambiguous host; write it in plain letters and digits")
    if port == 0:
        raise InvalidInput("has port 0, which is not a valid port")
    # Internationalized names are encoded
    return UrlTarget(host=called.raw_host.decode("ascii"), port=port)


def _check_address(host: str, text: str, networks: Sequence[Network]) -> None:
    address = read_address(text)
    if address not in METADATA_ADDRESSES and any(address in network for network in networks):
        return
    if address in METADATA_ADDRESSES or not address.is_global or address.is_multicast:
        raise InvalidInput(f"leads to {address} ({host[:100]}), which is not a public address")


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    allowed: Iterable[Network] = (),
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    resolve: Resolve = resolve,
) -> int:
    """Post the body and return the status of the response. Raises one of CALL_ERRORS. The environment's proxies are
    not used."""
    deadline = RequestDeadline(timeout_s)
    networks = tuple(allowed)
    _parse_url(url)
    transport = DeadlineTransport(check=lambda host, address: _check_address(host, address, networks), resolve=resolve)
    with (
        httpx.Client(transport=transport, follow_redirects=False, trust_env=False) as client,
        client.stream("POST", url, content=body, headers=headers, extensions={"deadline": deadline.at}) as response,
    ):
        return response.status_code  # the body of the response is not read: it might never end
