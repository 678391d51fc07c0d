"""On which host each slot's process runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence


class Places:
    """Hosts, how many ranks each may run, and the slots that have begun there.

    A host is not given up for a rank that fails: it only comes after others that have room.

    Args:
      hosts: (name, ranks) of each, in the order in which they are filled.
    """

    def __init__(self, hosts: Sequence[tuple[str, float]]) -> None:
        self._room: dict[str, float] = {}
        self._hosts: dict[int, str] = {}  # of each slot whose process has not ended
        self._joined: set[int] = set()
        self._failures: Counter[str] = Counter()  # of slots in a row, before they joined
        self.list(hosts)

    def list(self, hosts: Sequence[tuple[str, float]]) -> None:
        """These are the hosts from now on; one that is named twice has the ranks of both."""
        self._room = {}
        for name, ranks in hosts:
            self._room[name] = self._room.get(name, 0) + ranks

    def total(self) -> float:
        """How many ranks may run."""
        return sum(self._room.values())

    def host(self, slot: int) -> str:
        """Where the slot's process runs."""
        return self._hosts[slot]

    def take(self, slot: int, staying: Collection[int]) -> str:
        """Finds a host for a slot.

        Args:
          slot: the slot.
          staying: the slots that are not about to leave.

        Raises:
          OSError: no host is listed.
        """
        if not self._room:
            raise OSError("no host is listed that could run it")
        taken = self._taken(staying)
        order = list(self._room)

        def rank(name: str) -> tuple:
            over = max(0.0, taken[name] + 1 - self._room[name])
            return over, self._failures[name], order.index(name)

        self._hosts[slot] = min(order, key=rank)
        return self._hosts[slot]

    def joined(self, slot: int) -> None:
        """The slot's process has connected: its host is well."""
        self._joined.add(slot)
        self._failures[self._hosts[slot]] = 0

    def ended(self, slot: int) -> None:
        """The slot's process has ended, or could not be started."""
        name = self._hosts.pop(slot, None)
        if name is not None and slot not in self._joined:
            self._failures[name] += 1
        self._joined.discard(slot)

    def unlisted(self, staying: Collection[int]) -> Sequence[int]:
        """The slots for which their hosts have no room any more, the newest of each host.

        If all are on one host they are alike, and none is named: any may leave.
        """
        taken = self._taken(staying)
        if len(taken) == 1 and set(taken) <= set(self._room):
            return []
        over = {name: count - self._room.get(name, 0) for name, count in taken.items()}
        found = []
        for slot in sorted(staying, reverse=True):
            name = self._hosts.get(slot)
            if name is not None and over[name] > 0:
                over[name] -= 1
                found.append(slot)
        return found

    def _taken(self, staying: Collection[int]) -> Counter[str]:
        return Counter(self._hosts[slot] for slot in staying if slot in self._hosts)
