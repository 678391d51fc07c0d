"""Runs a collective: a generator that yields requests, and goes on when each is done.

Its return value is the collective's result. What it refers to stays alive until it has ended.

The ranks match their requests in the order of calls; several may be under way. Each collective of a
group also has a number, so two ranks that call different ones get an error that shows both. What a
collective requests later goes by that number, as its place in the order differs between ranks; so
does what other threads than the main one call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import DistBackendError, Work

from smddp_tf._src.job import native
from smddp_tf._src.job.enums import Code, Matching
from smddp_tf.torch import _requests, _streams
from smddp_tf.torch._checks import BadInputError

Steps = Generator[native.Request, None, Any]

_Done = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_numbers = itertools.count(1)
_pending: dict[int, Pending] = {}  # requests of which the core has not told yet
_under_way: set[Pending] = set()  # until their last request is done
_taken: set[tuple[int, bytes]] = set()  # process sets and names of what is matched by name
_taking = threading.Lock()

# What ranks match by name runs in the first rank's order. So one rank can wait for a collective
# that comes after another which this rank begins later, if at all. A wait asks that often whether
# it is so.
_LOOKS_AGAIN = 0.02  # seconds
# Called then with the process set; returns whether it has begun what the others wait for.
helpers: list[Callable[[int], bool]] = []
_callers: set[int] = set()  # threads that have called what ranks match by name


def in_compiled_backward() -> bool:
    """Whether a compiled backward pass runs."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(module, "in_compiled_autograd_region", False))


def in_backward() -> bool:
    """Whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1 or in_compiled_backward()


def note_caller() -> None:
    """Notes that this thread calls collectives; those of backward passes do not count."""
    if not in_backward():
        _callers.add(threading.get_ident())


def has_threads() -> bool:
    """Whether several threads are known to call collectives."""
    return len(_callers) > 1


def is_awaited(process_set: int, name: str | None = None) -> bool:
    """Whether the other ranks wait for what this one has not begun: of this name, or any."""
    given = None if name is None else name.encode()
    return bool(native.core().smddp_is_awaited(process_set, given))


def _order_of_calls() -> Matching:
    """Which of a thread's calls all ranks make in the same order."""
    in_main = threading.current_thread() is threading.main_thread()
    return Matching.SEVERAL_IN_ORDER if in_main else Matching.IN_ORDER_OR_BY_NAME


class Collective:
    """One collective, for requests and messages.

    Args:
      what: the name of the function that was called.
      name: by which ranks match it; no other that is under way has it.
      process_set: the core's number of the ranks.
      matching: in which order; by default that of calls.
      limit: seconds that nothing may move for; 0: SMDDP_TIMEOUT_SECONDS.
    """

    def __init__(
        self,
        what: str,
        name: str,
        process_set: int,
        matching: Matching | None = None,
        limit: float = 0,
    ) -> None:
        self.what, self.process_set, self._limit = what, process_set, limit
        self._matching = _order_of_calls() if matching is None else matching
        self._name = name.encode()
        self.by_name, self._key = matching is Matching.BY_NAME, (process_set, self._name)

    def take_name(self) -> None:
        """Keeps others from its name until give_name_back(), if ranks match it by that.

        Raises:
          ValueError: another one of that name is under way, and ranks would take them for this one.
        """
        if not self.by_name:
            return
        with _taking:
            if self._key in _taken:
                raise ValueError(
                    f"{self._name.decode()!r} is under way already: give each collective a name of "
                    "its own, or synchronize() the first one before"
                )
            _taken.add(self._key)

    def give_name_back(self) -> None:
        """Others may have its name now."""
        if self.by_name:
            _taken.discard(self._key)

    def named(self, request: native.Request) -> Any:
        """The request with its name, for the C API."""
        request.name, request.process_set = self._name, self.process_set
        request.matching = self._matching
        request.timeout_seconds = self._limit
        return ctypes.byref(request)

    def goes_on(self) -> None:
        """What it requests from now on has no place in the order of calls."""
        self._matching = Matching.BY_NAME

    def error(self, message: str) -> DistBackendError:
        """The exception for a failure that the core tells of."""
        name = self._name.decode()
        where = self.what if name in message else f"{self.what}, {name}"
        return DistBackendError(f"smddp: {message} ({where})")

    def late(self, seconds: float) -> DistBackendError:
        """The exception for a wait that has ended before the collective has."""
        whom = ctypes.create_string_buffer(512)
        size = ctypes.c_size_t(len(whom))
        native.core().smddp_waits_for(self.process_set, self._name, whom, size)
        awaited = whom.value.decode(errors="replace")
        text = f"not complete after {seconds:g} s, and goes on"
        return self.error(f"{text}; it waits for {awaited}" if awaited else text)

    def run(self, request: native.Request) -> None:
        """Runs one request; the calling thread moves the bytes.

        Raises:
          DistBackendError: the ranks' requests differ, a rank died, or a limit was exceeded.
        """
        if native.core().smddp_run(self.named(request)) != Code.OK:
            raise self.error(native.last_error())

    def refuse(self, problem: BadInputError) -> None:
        """Has all ranks fail, since this one cannot take part. Does nothing if all cannot.

        Raises:
          DistBackendError: other ranks have requested a collective, or have another problem.
        """
        try:
            self.run(_requests.barrier(f"refused on this rank: {problem}"))
        except DistBackendError as error:
            raise DistBackendError(f"{problem}. {error}") from problem


class Pending(Work):
    """A collective that goes on by itself.

    Args:
      collective: for its requests and messages.
      steps: which have yielded `first`.
      first: its first request.
      stream: of the GPU, in which the caller works.
    """

    def __init__(
        self,
        collective: Collective,
        steps: Steps,
        first: native.Request,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        super().__init__()
        self._collective, self._steps, self._stream = collective, steps, stream
        self._result: Any = None
        self._error: Exception | None = None
        self._over = False
        self._told: Any = None  # completed at the end, for _future
        self._future: Any = None
        self._guard = threading.Lock()
        self._ended = threading.Lock()  # held until the end: cheaper than an Event
        self._ended.acquire()
        _under_way.add(self)
        self._post(first)

    def _post(self, request: native.Request) -> None:
        number = next(_numbers)
        _pending[number] = self
        self._request = request  # which keeps its tensors
        named = self._collective.named(request)
        native.core().smddp_post(named, _done, ctypes.c_void_p(number))

    def done(self, code: int, message: str) -> None:
        """A request is done. Called on any thread."""
        with _streams.working_in(self._stream):
            self._go_on(code, message)

    def _go_on(self, code: int, message: str) -> None:
        error: Exception | None = None
        try:
            if code == Code.OK:
                request = next(self._steps)
                self._collective.goes_on()
                self._post(request)
                return
            error = self._collective.error(message)
        except StopIteration as end:
            self._result = end.value
        except BadInputError as problem:
            error = self._collective.error(str(problem))
        except Exception as problem:  # wait() raises it
            error = problem
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._steps.close()
        self._collective.give_name_back()
        with self._guard:
            self._error, self._over = error, True
            told = self._told
        _under_way.discard(self)
        self._ended.release()
        if told is not None:
            told.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end.

        Args:
          timeout: of this wait; the collective itself goes on after it.

        Raises:
          DistBackendError: the collective failed, or the timeout has passed; then the text has the
            ranks that are awaited.
        """
        seconds = timeout.total_seconds() if timeout else 0
        if not self._acquire(seconds if seconds > 0 else threading.TIMEOUT_MAX):
            raise self._collective.late(seconds)
        self._ended.release()
        if self._error is not None:
            raise self._error
        _streams.follow(self._stream)
        return True

    def _acquire(self, seconds: float) -> bool:
        """Waits for the end, and meanwhile begins what the others wait for before it.

        Returns:
          Whether the end has come in so many seconds; then the caller holds the lock.
        """
        if not (self._collective.by_name and helpers):
            return self._ended.acquire(timeout=seconds)
        process_set = self._collective.process_set
        until, again = time.monotonic() + seconds, _LOOKS_AGAIN
        while not self._ended.acquire(timeout=max(0, min(again, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
            helps = is_awaited(process_set) and any([one(process_set) for one in helpers])
            again = 0.001 if helps else _LOOKS_AGAIN  # what comes next may lack here too
        return True

    def await_end(self) -> None:
        """Waits for the end, well or not."""
        with self._ended:
            _streams.follow(self._stream)

    def await_end_or_others(self, patience: float) -> bool:
        """Waits for the end, or until the others wait for what no thread of this rank brings.

        Args:
          patience: seconds for which a thread that is not known yet may bring it.

        Returns:
          Whether it has ended, well or not.
        """
        waited = 0.0
        while not self._ended.acquire(timeout=_LOOKS_AGAIN):
            lacks = not has_threads() and is_awaited(self._collective.process_set)
            waited = waited + _LOOKS_AGAIN if lacks else 0
            if lacks and waited >= patience:
                return False
        self._ended.release()
        _streams.follow(self._stream)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._over

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """What made it fail."""
        return self._error

    def synchronize(self) -> None:
        """Same as wait()."""
        self.wait()

    def result(self) -> Any:
        """The tensors that it has written."""
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """A future of result(). C++ sees a failure only if a callback of the future has raised."""
        late = False
        with self._guard:
            if self._future is None:
                self._told = _streams.future(self._stream)
                self._future = self._told.then(lambda _: self.result())
                late = self._over
        if late:
            with _streams.working_in(self._stream):
                self._told.set_result(None)
        return self._future


class Ended(Work):
    """A collective that has ended well."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Returns at once."""
        return True

    def await_end_or_others(self, patience: float) -> bool:
        """True."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def result(self) -> Any:
        """The tensors that it has written."""
        return self._result

    def get_future(self) -> Any:
        """A future that has the result."""
        future = _streams.future(_streams.of(self._result))
        future.set_result(self._result)
        return future


@_Done
def _done(number: int, code: int, message: bytes) -> None:
    text = message.decode(errors="replace") if code != Code.OK else ""
    _pending.pop(number).done(code, text)


def start(collective: Collective, steps: Steps, asynchronous: bool, tensors: Any) -> Work:
    """Runs a collective's steps on tensors; unless asynchronous, to the end.

    Raises:
      BadInputError: no rank can take part; nothing was sent.
      ValueError: another one of its name is under way.
      DistBackendError: the collective failed; nothing was sent if ranks disagree.
    """
    collective.take_name()
    goes_on = False
    try:
        request = next(steps)
        if asynchronous:
            pending = Pending(collective, steps, request, _streams.of(tensors))
            goes_on = True
            return pending
    except StopIteration as end:
        return Ended(end.value)
    except BadInputError as problem:
        collective.refuse(problem)
        raise
    else:
        return _to_the_end(collective, steps, request)
    finally:
        if not goes_on:
            collective.give_name_back()


def _to_the_end(collective: Collective, steps: Steps, request: native.Request) -> Work:
    try:
        while True:
            collective.run(request)
            request = next(steps)
    except StopIteration as end:
        return Ended(end.value)
    except BadInputError as problem:  # of what the ranks have told each other: all find it
        raise collective.error(str(problem)) from None


def wait_for_all() -> None:
    """Waits until every collective of this process has ended, well or not."""
    for pending in tuple(_under_way):
        pending.await_end()


def abort(why: str) -> None:
    """Fails the job on all ranks. Does nothing if there is none."""
    native.core().smddp_abort(why.encode())


def numbered(what: str) -> Callable[..., Any]:
    """Makes a method of a process group, which yields requests, one that returns a Work.

    The method runs to its end before it returns if its options' asyncOp is False. C++
    calls it; torch.compile, which takes all Python that runs in a compiled step, leaves it alone.
    """

    def decorate(method: Callable[..., Steps]) -> Callable[..., Work]:
        @torch.compiler.disable
        @functools.wraps(method)
        def call(group: Any, *arguments: Any, **named: Any) -> Work:
            options = named.get("opts", arguments[-1] if arguments else None)
            asynchronous = getattr(options, "asyncOp", True) is not False
            collective = group.next_collective(what, getattr(options, "timeout", None))
            steps = method(group, *arguments, **named)
            return start(collective, steps, asynchronous, [*arguments, *named.values()])

        return call

    return decorate
