"""Ranks that come late or never, and ranks that abort."""

import datetime
import functools
import pathlib
import threading
import time

import torch
import torch.distributed as dist
from caught import error_of
from harness import rank, report, size, without_init
from ranks_failures import _goes_on

import smddp_tf.torch  # noqa: F401 - registers the backend

LAST = size - 1
PATIENCE = 60.0


def _seconds(value) -> datetime.timedelta:
    return datetime.timedelta(seconds=value)


def _start(seconds=PATIENCE, folder=None, attempt=0):
    """By a file of its own for each attempt, since a port may be in use for a while."""
    meeting = {}
    if folder is not None:
        path = pathlib.Path(folder) / f"store{attempt}"
        meeting = {"init_method": f"file://{path}", "rank": rank, "world_size": size}
    dist.init_process_group("smddp", timeout=_seconds(seconds), **meeting)


def _measured(function) -> dict:
    start = time.monotonic()
    kind, text = error_of(function)
    return {"kind": kind, "text": text, "seconds": time.monotonic() - start}


@without_init
def limited(how):
    """The last rank comes late to a collective of 1 s, in a group of 1 s, or in all of 1 s."""
    _start(1 if how == "default" else PATIENCE)
    _goes_on()
    group = dist.new_group(timeout=_seconds(1)) if how == "new_group" else dist.group.WORLD
    if how == "set_timeout":
        group.set_timeout(_seconds(1))
    ones = torch.ones(300_000 if how == "options" else 3)
    functions = {
        "default": lambda: dist.all_reduce(ones, group=group),
        "new_group": lambda: dist.all_reduce(ones, group=group, async_op=True).wait(),
        "set_timeout": lambda: dist.barrier(group=group),
    }
    function = functions.get(how)
    if how == "options":
        options = dist.AllreduceOptions()
        options.timeout = _seconds(1)
        function = lambda: group.allreduce([ones], options).wait()  # noqa: E731
    if rank == LAST:
        time.sleep(2.5)
        function = lambda: dist.all_reduce(ones)  # noqa: E731 - fails, whatever it is
    report(**_measured(function))
    time.sleep(0.5)  # other nodes hear the reason before they see this process end


@without_init
def wait_limited():
    """wait(timeout) ends early and names who is late; the collective goes on."""
    _start()
    _goes_on()
    ones = torch.ones(3)
    work = None if rank == LAST else dist.all_reduce(ones, async_op=True)
    early = {}
    if work is None:
        time.sleep(2)
        dist.all_reduce(ones)
    else:
        early = _measured(lambda: work.wait(_seconds(0.3)))
        assert not work.is_completed()
        work.wait()
    _goes_on()
    report(sums=ones.tolist(), **early)


@without_init
def aborted(folder, how):
    """The last rank aborts while the others wait; `how`: on a thread, it waits for rank 0."""
    _start(folder=folder)
    _goes_on()
    after = time.time() + 1
    if rank == LAST and how == "thread":
        threading.Timer(1, dist.group.WORLD.abort).start()
    elif rank == LAST:
        time.sleep(1)
        dist.distributed_c10d._abort_process_group()
    waited = {}
    if how == "thread" and rank == 0:
        time.sleep(2)
    elif rank != LAST or how == "thread":
        waited = _measured(lambda: dist.all_reduce(torch.ones(3)))
        waited["seconds"] = time.time() - after
    if dist.is_initialized():
        dist.destroy_process_group()
    _start(folder=folder, attempt=1)
    _goes_on()
    report(again=True, **waited)


@without_init
def monitored():
    """The method names who is missing; nothing else is harmed."""
    _start()
    group = dist.group.WORLD
    group.monitored_barrier(_seconds(PATIENCE))
    only_gloo = [int(number) for number in torch.__version__.split(".")[:2]] < [2, 15]
    named = error_of(dist.monitored_barrier)[1]
    assert ("only implemented for GLOO" in named) == only_gloo, named
    results = []
    for late, wait_all_ranks in ((rank == LAST, False), (rank != 0, True), (rank == 0, False)):
        _goes_on()
        time.sleep(2 if late else 0)
        barrier = functools.partial(group.monitored_barrier, _seconds(1), wait_all_ranks)
        results.append(_measured(barrier))
    group.monitored_barrier()
    report(results=results)


@without_init
def barrier_names():
    """dist.barrier() names all that are missing, too."""
    _start(1)
    _goes_on()
    time.sleep(2.5 if rank else 0)
    report(**_measured(dist.barrier))


@without_init
def again_before_others_know(folder):
    """One rank's wait fails; it and those that have not noticed begin another world at once."""
    times = 4
    for attempt in range(times):
        _start(folder=folder, attempt=attempt)
        _goes_on()
        dist.group.WORLD.set_timeout(_seconds(0.3))
        knows = pathlib.Path(folder) / f"knows{attempt}"
        if rank == 0:
            kind, text = error_of(dist.barrier)
            assert kind == "DistBackendError" and " timeout " in text, (kind, text)
            knows.touch()
        deadline = time.monotonic() + PATIENCE
        while not knows.exists():
            assert time.monotonic() < deadline
            time.sleep(0.0002)
        dist.destroy_process_group()
    _start(folder=folder, attempt=times)
    _goes_on()
    dist.destroy_process_group()
    report()
