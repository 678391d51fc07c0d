"""Whether hosts can connect to each other, in both directions, before MPI needs it.

The first rank of each host listens on a port that smddprun has chosen and connects to the same port
of all other hosts. A firewall or a security group that lets one direction through only is the usual
reason for a job that hangs when it starts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence

from smddp_tf.doctor.findings import ERROR, NOTE, Finding
from smddp_tf.launch import hosts

_HELLO_BYTES = 4
_ATTEMPT_SECONDS = 1.0
SECONDS = 10.0  # in all; ranks do not start at the same moment
NO_ANSWER, REFUSED = "no answer", "refused"
_NO_NAME = "its name cannot be resolved"
# No packet gets that far, so no rule of a firewall is missing.
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH)


def plan(environment: Mapping[str, str], rank: int) -> tuple | None:
    """(names of the hosts, this one's index, the port) for the first rank of a host.

    None for other ranks, and for a job that smddprun has not launched on several hosts.
    """
    text = environment.get("SMDDP_LAUNCH_HOSTS", "")
    port = environment.get("SMDDP_LAUNCH_PORT", "")
    if not text or not port.isdigit():
        return None
    first = 0
    named = hosts.parse_hosts(text)
    for index, host in enumerate(named):
        if first == rank:
            return [one.name for one in named], index, int(port)
        first += host.slots
    return None


class _Listener:
    """Accepts connections, and notes which hosts they came from."""

    def __init__(self, port: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: set = set()
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        self._server = socket.create_server(
            ("", port), family=family, backlog=128, dualstack_ipv6=both
        )
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        self.came: set = set()

    def poll(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            connection = key.data
            if connection is None:
                connection, _ = self._server.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, connection)
                self._connections.add(connection)
                continue
            with contextlib.suppress(OSError):
                hello = connection.recv(_HELLO_BYTES)
                if len(hello) == _HELLO_BYTES:
                    self.came.add(int.from_bytes(hello, "big"))
            self._selector.unregister(connection)
            self._connections.remove(connection)
            connection.close()

    def close(self) -> None:
        for one in (self._server, *self._connections):
            one.close()
        self._selector.close()


def _attempt(name: str, port: int, index: int) -> str:
    """Connects and says which host this is. Returns "" or why it cannot."""
    try:
        with socket.create_connection((name, port), timeout=_ATTEMPT_SECONDS) as connection:
            connection.sendall(index.to_bytes(_HELLO_BYTES, "big"))
    except socket.gaierror as error:
        return f"{_NO_NAME}: {error.strerror}"
    except TimeoutError:
        return NO_ANSWER
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return error.strerror or str(error)
    return ""


def try_ports(names: Sequence[str], index: int, port: int, seconds: float = SECONDS) -> dict:
    """Connects to all other hosts and waits for theirs; ends early when all is well.

    Args:
      names: the hosts, the same on each.
      index: this one's.
      port: on which all listen meanwhile.
      seconds: the limit.

    Returns:
      {"port", "names", "index", "to": {name: "" or why not}, "from": {name: whether it came}}.

    Raises:
      OSError: the port cannot be listened on.
    """
    others = [i for i in range(len(names)) if i != index]
    listener = _Listener(port)
    to = dict.fromkeys(others, NO_ANSWER)
    start = time.monotonic()
    unreachable = os.strerror(errno.ENETUNREACH)  # which waiting does not change
    try:
        while any(to.values()) or len(listener.came) < len(others):
            lonely = all(reason == unreachable for reason in to.values())
            if time.monotonic() - start > (min(seconds, 2) if lonely else seconds):
                break
            for i in others:
                if to[i]:
                    to[i] = _attempt(names[i], port, index)
                listener.poll(0)
            listener.poll(0.1)
    finally:
        listener.close()
    return {
        "port": port,
        "names": list(names),
        "index": index,
        "to": {names[i]: reason for i, reason in to.items()},
        "from": {names[i]: i in listener.came for i in others},
    }


def check(found: Mapping) -> list:
    """Findings about what try_ports() returned."""
    here, port = found["names"][found["index"]], found["port"]
    findings = []
    for peer, reason in found["to"].items():
        came = found["from"][peer]
        if not reason and came:
            continue
        if reason.startswith(_NO_NAME):
            what = f"{here} cannot connect to {peer}: {reason}"
            remedy = (
                f"let all hosts resolve {peer}, by DNS or a line in /etc/hosts; or name the hosts "
                "by their addresses"
            )
        elif reason and came:
            what = f"{here} cannot connect to {peer} (port {port}: {reason}), but {peer} to {here}"
            remedy = _rule(here, peer)
        elif came is False and not reason:
            what = f"{peer} did not connect to {here} (port {port}), but {here} can to {peer}"
            remedy = _rule(peer, here)
        else:
            what = f"{here} and {peer} cannot connect to each other (port {port}: {reason})"
            remedy = f"{_rule(here, peer)}; and the same the other way; see that both are up"
            if reason in map(os.strerror, _NO_WAY):
                remedy = (
                    f"a route between the networks of {here} and {peer}: `ip route` on both, or "
                    "the route tables of a cloud's subnets; or hosts of one subnet"
                )
        findings.append(Finding(ERROR, what, remedy))
    return findings


def _rule(source: str, target: str) -> str:
    return (
        f"allow all TCP ports from {source} to {target}: outbound at {source}, inbound at "
        f"{target}. A security group needs itself as source and as destination"
    )


def examine(environment: Mapping[str, str], rank: int) -> list:
    """Findings of this rank, before the ranks are connected."""
    planned = plan(environment, rank)
    if planned is None:
        return []
    try:
        return check(try_ports(*planned))
    except OSError as error:
        return [Finding(NOTE, f"port {planned[2]} cannot be tried here: {error}", "")]
