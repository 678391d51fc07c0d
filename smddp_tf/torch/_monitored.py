"""A barrier that tells who is missing. It goes by torch's store, so no collective fails by it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import DistBackendError, PrefixStore

_NAP_SECONDS = 0.01
_ALL = "all have come"
_ANSWER_SECONDS = 5  # rank 0 answers when its own limit has passed, which may begin later


def _absent(store: Any, keys: Sequence[str], seconds: float) -> list[int]:
    """Which of these keys are not there after so long, by their places."""
    deadline = time.monotonic() + seconds
    left = list(range(len(keys)))
    while True:
        left = [i for i in left if not store.check([keys[i]])]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_NAP_SECONDS)


def barrier(
    store: Any, rank: int, size: int, name: str, seconds: float, wait_all_ranks: bool
) -> None:
    """Waits for all ranks of a group.

    Args:
      store: of the group.
      rank: this process's, in the group.
      size: of the group.
      name: of this barrier, equal on all ranks.
      seconds: how long rank 0 waits for the others, and they for rank 0.
      wait_all_ranks: name all that are missing; only the first otherwise.

    Raises:
      DistBackendError: a rank has not come; on all ranks that come, the late ones too.
    """
    store = PrefixStore(f"smddp/monitored/{name}", store)
    store.set(str(rank), "here")
    limit = f"within {seconds:g} s (monitored_barrier, {name})"
    if rank == 0:
        absent = _absent(store, [str(one) for one in range(size)], seconds)
        named = absent if wait_all_ranks else absent[:1]
        who = f"rank{'s' * (len(named) > 1)} {', '.join(map(str, named))}"
        answer = f"{who} did not come {limit}" if absent else _ALL
    elif _absent(store, ["0"], seconds):
        answer = f"rank 0 did not come {limit}"
    else:
        came = not _absent(store, ["answer"], seconds + _ANSWER_SECONDS)
        answer = "" if came else f"rank 0 came, and did not answer {limit}"
    # The first answer is everybody's, that of a rank which has given up too.
    outcome = store.compare_set("answer", "", answer) if answer else store.get("answer")
    if outcome.decode() != _ALL:
        raise DistBackendError(f"smddp: {outcome.decode()}")
