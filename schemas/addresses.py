"""Which IP addresses a request may go to that somebody else's URL asks for; and where we listen.

A URL is not trusted to lead outside: it may name the machine itself, its network, or the service
with the credentials of a virtual machine. So an address is public only if it is known to be: all
that is not listed here as public or private is `special`, and nothing is ever sent there.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, Literal

from ayes.schemas.errors import BadInput

#: The hosts by which a machine reaches itself alone.
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

type Reach = Literal["public", "private", "special"]

#: Of this machine, its link and its network; an operator may allow them.
_PRIVATE_4: Final = tuple(
    map(
        IPv4Network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "172.16.0.0/12",
            "192.168.0.0/16",
        ),
    )
)
_PRIVATE_6: Final = tuple(map(IPv6Network, ("::1/128", "fc00::/7", "fe80::/10")))
#: The anycast address of 6to4 relays, which `ipaddress` has as global.
_RELAYS_4: Final = IPv4Network("192.88.99.0/24")
_UNICAST_6: Final = IPv6Network("2000::/3")
#: 6to4 and Teredo, which lead to an IPv4 address inside of them; identifiers (ORCHIDv2, RFC 7343),
#: and addresses for documentation (RFC 9637), which `ipaddress` has as global.
_SPECIAL_6: Final = tuple(map(IPv6Network, ("2002::/16", "2001::/32", "2001:20::/28", "3fff::/20")))
#: How a host without IPv4 reaches an IPv4 address (RFC 6052).
_NAT64: Final = IPv6Network("64:ff9b::/96")


def check_reach(option: str, host: str, *, has_tls: bool, how: str) -> None:
    """Refuse to listen where others can reach it and read what is sent on the way.

    Args:
        has_tls: whether the operator says that a proxy with TLS stands before it.
        how: how they say that.
    """
    if host not in LOOPBACK and not has_tls:
        raise BadInput(
            f"{option} {host} can be reached from elsewhere, and this speaks plain HTTP: what is "
            f"sent could be read on the way. Put a proxy with TLS before it and say {how}, or "
            "listen on 127.0.0.1."
        )


def client_of(address: str) -> str:
    """The client at an address: a network of IPv6 (/64) is given to one."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return (
        address if isinstance(found, IPv4Address) else str(IPv6Network((found, 64), strict=False))
    )


def reach(text: str) -> Reach:
    """Where an IP address leads. `special` too if it is not an address, or has a zone."""
    try:
        address = ip_address(text)
    except ValueError:
        return "special"
    return _reach_4(address) if isinstance(address, IPv4Address) else _reach_6(address)


def _reach_4(address: IPv4Address) -> Reach:
    if any(address in network for network in _PRIVATE_4):
        return "private"
    if not address.is_global or address.is_multicast or address.is_reserved:
        return "special"
    return "special" if address in _RELAYS_4 else "public"


def _reach_6(address: IPv6Address) -> Reach:
    if address.scope_id is not None:
        return "special"
    if (mapped := address.ipv4_mapped) is not None:
        return _reach_4(mapped)
    if address in _NAT64:
        return _reach_4(IPv4Address(int(address) & 0xFFFF_FFFF))
    if any(address in network for network in _PRIVATE_6):
        return "private"
    if address not in _UNICAST_6 or not address.is_global:
        return "special"
    return "special" if any(address in network for network in _SPECIAL_6) else "public"
