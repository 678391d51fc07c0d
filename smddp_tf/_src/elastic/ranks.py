"""What a state asks of its framework."""

from __future__ import annotations

from typing import Any, Protocol


class Ranks(Protocol):
    """Collectives over the job's ranks; all of them make the same calls in the same order."""

    def any(self, own: bool, name: str) -> bool:
        """Whether it is true on any rank."""

    def allgather_object(self, obj: Any, name: str) -> list[Any]:
        """The objects of all ranks, in their order."""

    def broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        """The object of the rank `root`."""

    def barrier(self) -> None:
        """Waits for all ranks."""

    def count(self) -> Any:
        """How many unnamed things this process has made; they are known by that number."""

    def count_from(self, count: Any) -> None:
        """Numbers go on from count()'s result, as in ranks that have just joined."""
