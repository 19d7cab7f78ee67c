"""IP addresses that Acme must not call for somebody else, above all those of the metadata services of clouds."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Some look public
METADATA_ADDRESSES = frozenset(
    map(ipaddress.ip_address, ("169.254.169.254", "fd00:ec2::254", "168.63.129.16", "100.100.100.200"))
)


def read_address(text: str) -> Address:
    """Return the address. If an IPv6 address embeds one of IPv4, return that one, so that it is checked as such."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo[1] if address.teredo else None
        return address.ipv4_mapped or address.sixtofour or teredo or _nat64_address(address) or address
    return address


def is_metadata_service(text: str) -> bool:
    """Whether the address may be a cloud's metadata service, which hands out credentials. Link-local counts too."""
    address = read_address(text)
    return address in METADATA_ADDRESSES or address.is_link_local


def _nat64_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address in a NAT64 or IPv4-compatible address; :: and ::1 are neither."""
    compatible = 1 < int(address) < 2**32
    inside = compatible or address in ipaddress.ip_network("64:ff9b::/96")
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if inside else None
