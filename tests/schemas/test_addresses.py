"""Which addresses a webhook's request may go to."""

import pytest

from ayes.schemas.addresses import reach

PUBLIC = ("1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700:4700::1111", "2001:4860:4860::8888")
PRIVATE = (
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "127.0.0.1", "127.255.255.254", "::1",
    "169.254.169.254", "169.254.0.1", "fe80::1",
    "100.64.0.1", "100.127.255.255",
    "fc00::1", "fd00:ec2::254",
)  # fmt: skip
SPECIAL = (
    "0.0.0.0", "0.1.2.3", "::",
    "224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1",
    "240.0.0.1", "255.255.255.255",
    "192.0.0.8", "192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1",
    "2001:20::1", "2001:2f:ffff::1",
    "198.18.0.1", "192.88.99.1",
    "2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378::1", "::7f00:1", "::808:808",
    "64:ff9b:1::808:808", "100::1", "fec0::1", "5f00::1", "4000::1",
    "fe80::1%eth0", "", "localhost", "127.1", "0x7f000001", "2130706433", "127.0.0.1 ",
)  # fmt: skip
#: An IPv4 address within an IPv6 address that leads there.
WITHIN = ("::ffff:{}", "64:ff9b::{}")


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_public(address):
    """Only an address that is known to be public counts as public."""
    assert reach(address) == "public"


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_private(address):
    """This machine, its link, its network, and that of a carrier."""
    assert reach(address) == "private"


@pytest.mark.parametrize("address", SPECIAL)
def test_everything_else_is_special(address):
    """Multicast, reserved, documentation, tunnels, zones; and what is not an address at all."""
    assert reach(address) == "special"


@pytest.mark.parametrize("form", WITHIN)
@pytest.mark.parametrize(
    "address", [one for one in (*PUBLIC, *PRIVATE, *SPECIAL[:2], "224.0.0.1") if "." in one]
)
def test_an_address_within_another_counts(form, address):
    """IPv4-mapped and NAT64 addresses lead to the IPv4 address inside."""
    assert reach(form.format(address)) == reach(address)
