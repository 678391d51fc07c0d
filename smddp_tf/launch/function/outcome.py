"""How a job of run() ended: the exception that says it, or the ranks' results."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Sequence
from typing import Any

from smddp_tf.errors import RankFailedError
from smddp_tf.launch import LaunchError
from smddp_tf.launch.function.results import Failure, Results

_OWN = "smddprun: "


def _cause(failure: Failure) -> BaseException | None:
    """The rank's exception; None if it cannot be made here."""
    if not failure.exception:
        return None
    try:
        found = pickle.loads(failure.exception)
    except Exception:  # as of classes that take other arguments than they hand to Exception
        return None
    return found if isinstance(found, BaseException) else None


def _how(code: int) -> str:
    """What an exit code of smddprun means."""
    number = code - 128 if code > 128 else 0
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    return f"exit code {code}" + (f", as of {name}" if name else "")


def raise_failure(results: Results, ranks: int, code: int, last: Sequence[str]) -> None:
    """Raises if a rank failed, or the job did."""
    for rank, failure in results.failures.items():
        if not failure.text:
            break  # the first one, and it has said nothing
        more = [other for other in results.failures if other != rank]
        also = f"\n(after it failed: ranks {', '.join(map(str, more))})" if more else ""
        text = f"rank {rank} failed: {failure.text}{also}"
        raise RankFailedError(text, rank) from _cause(failure)
    if not results.seen and code != 0:
        own = [line.removeprefix(_OWN) for line in last if line.startswith(_OWN)]
        said = own[-1:] if code == 2 and own else [f"no rank has connected ({_how(code)}):", *last]
        raise LaunchError("run(): " + "\n".join(said))
    missing = [rank for rank in range(ranks) if rank not in results.values]
    if missing:
        first = next(iter(results.failures), None)
        which = f"rank {first}" if first is not None else f"ranks {', '.join(map(str, missing))}"
        raise RankFailedError(
            f"{which} ended without a result, and without an exception; the job ended with "
            f"{_how(code)}. Was it killed, as for want of memory, or did it call os._exit()? The "
            "lines above say more",
            first,
        )
    if code != 0:
        raise RankFailedError(
            f"all ranks returned, and the job ended with {_how(code)} after that; the lines above "
            "say more"
        )


def value(rank: int, pickled: bytes) -> Any:
    """A rank's result."""
    try:
        return pickle.loads(pickled)
    except Exception as error:
        raise RankFailedError(
            f"the result of rank {rank} cannot be loaded here: {type(error).__name__}: {error}. "
            "Return numbers, arrays or weights instead",
            rank,
        ) from error
