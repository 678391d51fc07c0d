"""The address of this host by which the ranks on other hosts reach it."""

from __future__ import annotations

import ipaddress

from smddp_tf.launch import machine
from smddp_tf.torch import _environment

LOOPBACK = "127.0.0.1"
# Reserved for documentation (RFC 5737), so only the default route leads there.
_ANYWHERE = "192.0.2.1"


def _towards(host: str) -> str:
    """This host's address on the way to another; "" if there is no way. Nothing is sent."""
    try:
        return machine.address_towards(host)
    except OSError:
        return ""


def _is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def own_address() -> str:
    """That of the interface which the user names, or on the way to rank 0; "" without a network."""
    for name in _environment.gloo_interfaces():
        address = machine.interface_address(name)
        if address:
            return address
    master = _environment.master()
    own = _towards(master) if master else ""
    if _is_loopback(own) and master not in ("localhost", LOOPBACK):
        own = _towards(_ANYWHERE) or own  # the master's name is in its own /etc/hosts
    return own
