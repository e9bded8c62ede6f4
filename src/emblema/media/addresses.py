"""Which addresses lie in the public internet, by IANA's registries of special-purpose addresses."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

# IANA IPv4 Special-Purpose Address Registry (RFC 6890 and later), and multicast. Blocks that the registry calls
# globally reachable are refused too: relays, name servers and the like, where no medium is.
_REFUSED_V4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier; 100.100.100.200 is Alibaba's metadata server
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local; 169.254.169.254 is most clouds' metadata server
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata server
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        # In no registry, though reached from inside a cloud alone: Azure's server for agents.
        "168.63.129.16/32",
    )
)
_UNICAST_V6 = IPv6Network("2000::/3")
"""All that IANA has given out. Loopback, link-local, private and multicast addresses lie outside."""
_REFUSED_V6 = tuple(
    IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID, drones and more
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address of any kind, over a relay
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""NAT64: its last four bytes are an IPv4 address."""


def is_public(address: Address) -> bool:
    """Return whether an address is in the public internet; of an IPv4 address inside an IPv6 one, whether that is."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _TRANSLATED:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        refused = address not in _UNICAST_V6 or any(address in block for block in _REFUSED_V6)
    else:
        refused = any(address in block for block in _REFUSED_V4)
    # Python's own list beside this one: it may be newer.
    return not refused and address.is_global
