"""What ranks do in test_process_set_changes.py."""

import functools
import gc
import os
import pathlib
import resource
import threading
import time

import machine_time
import tensorflow as tf
from checks import checked, equal, raises, refused
from harness import rank, report, report_in_time, size, without_init

import smddp_tf as hvd
from smddp_tf._src.job import native
from smddp_tf.errors import JobError

FailedPrecondition = tf.errors.FailedPreconditionError


def _kept():
    """What sets may leave: memory, descriptors, mappings, threads; and how many sets there are."""
    gc.collect()
    machine_time.now()  # its threads, one a core, are none of theirs
    maps = pathlib.Path("/proc/self/maps").read_text()
    descriptors, threads = (len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task"))
    stats = hvd.stats()
    mappings = maps.count("memfd:smddp")
    return stats["staging_bytes"], descriptors, mappings, threads, stats["process_sets"]


def _settles_at(before):
    """A thread that looks at all sets, such as the monitor, may be the last to let go of one."""
    watch = machine_time.Stopwatch()
    while _kept() != before and watch.seconds() < 5:
        time.sleep(0.01)
    assert _kept() == before, (_kept(), before)


def _add_use_and_remove(ranks, v, staging_before):
    """Returns the number that the set had."""
    s = hvd.add_process_set(ranks)
    if s.included():
        assert hvd.stats()["staging_bytes"] > staging_before and _kept()[-1] == 2
        equal(hvd.allreduce(tf.ones([100000]), op=hvd.Sum, process_set=s), 2)
        with tf.GradientTape() as tape:
            loss = v * 2.0
        tape = hvd.DistributedGradientTape(tape, process_set=s)
        equal(tape.gradient(loss, v), 2)
    number = s.process_set_id
    assert hvd.remove_process_set(s)
    assert s.process_set_id is None and s.ranks is None and s.size() is None
    assert not hvd.remove_process_set(s)  # it is not in the job
    refused(lambda: hvd.allreduce(1.0, process_set=s), "removed")
    return number


def _a_function_whose_set_is_gone():
    """It says so."""
    s = hvd.add_process_set([0, 1])
    step = tf.function(lambda: hvd.allreduce(1.0, process_set=s))
    if s.included():
        step()
    hvd.remove_process_set(s)
    if rank < 2:
        with raises((ValueError, tf.errors.InvalidArgumentError), "removed"):
            step.get_concrete_function()  # traced anew, or run as it was
            step()


def added_and_removed():
    v = tf.Variable(1.0)
    hvd.barrier()
    native.core().smddp_warn(b"the log has a thread now, which a slow machine may need later")
    before = _kept()
    for ranks in ([0, 2], [1, 2]):  # libraries open files and begin threads at their first use
        _add_use_and_remove(ranks, v, before[0])
    before = _kept()
    numbers = [_add_use_and_remove([0, 2] if i % 2 else [1, 2], v, before[0]) for i in range(20)]
    assert numbers == list(range(3, 23))
    _settles_at(before)
    _a_function_whose_set_is_gone()
    assert not hvd.remove_process_set(hvd.global_process_set)
    equal(hvd.allreduce(1.0, op=hvd.Sum), size)
    report(checks=checked())


def disagree():
    refused(lambda: hvd.add_process_set([0, 1] if rank else [1, 2]), "rank 0", "[1, 2]", "[0, 1]")
    s = hvd.add_process_set([1, 2])
    refused(
        lambda: hvd.remove_process_set(s) if rank else hvd.add_process_set([0, 1]),
        "remove_process_set(1)",
        "add_process_set([0, 1])",
    )
    for bad, word in (
        ([], "at least one"),
        ([0, 0], "twice"),
        ([0, 3], "0 to 2"),
        ([-1], "out of range"),
        ([2, 1], "as number 1"),
        ([2, 1, 0], "all ranks"),
        (s, "already"),
        (["a"], "list of ranks"),
        (7, "list of ranks"),
    ):
        with raises(ValueError, word):
            hvd.add_process_set(bad)
    if rank == 0:
        hvd.barrier()
        report(name="none", text="")
        raise SystemExit
    try:
        hvd.allreduce(tf.ones([rank]), name="odd", process_set=s)
        text = ""  # no mismatch was seen
    except FailedPrecondition as error:
        text = error.message
    equal(hvd.allreduce(1.0, op=hvd.Sum, process_set=s), 2, "after the mismatch")
    with raises(FailedPrecondition, "rank 1 has", "rank 2 one of"):
        hvd.allgather(tf.ones([1, rank]), process_set=s)
    hvd.barrier()
    report(text=text)


def removed_in_use():
    s = hvd.add_process_set([0, 1])
    got = []
    reduce = functools.partial(hvd.allreduce, 1.0, op=hvd.Sum, process_set=s)
    work = threading.Thread(target=lambda: got.append(reduce()))
    if rank == 0:
        work.start()
        time.sleep(0.5)
    refused(lambda: hvd.remove_process_set(s), "rank 0 has a collective under way")
    if rank == 1:
        work.start()
    if rank < 2:
        work.join(30)
        equal(got[0], 2.0)
    assert hvd.remove_process_set(s)
    report(checks=checked())


def a_member_dies():
    s = hvd.add_process_set([1, 2])
    t = hvd.add_process_set([0, 1])
    hvd.barrier()
    begin = machine_time.now()
    if rank == 2:
        os.kill(os.getpid(), 9)
    try:
        if rank == 1:
            hvd.allreduce(1.0, name="in_the_set", process_set=s)
        hvd.allreduce(1.0, name="elsewhere", process_set=t)
    except tf.errors.OpError as error:
        report_in_time(
            error=type(error).__name__, text=error.message, seconds=machine_time.now() - begin
        )
        raise


# ---- those that call init() with arguments; `rank` is the launcher's ----------------------------


@without_init
def gives_other_sets():
    evens, odds = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
    with raises(ValueError, "rank 1 has [init(process_sets=[[0, 2]])]"):
        hvd.init(process_sets=[evens] if rank == 1 else [evens, odds])
    hvd.init()  # the job is there; its sets are not
    assert evens.process_set_id is None and evens.size() is None
    assert hvd.add_process_set(evens) is evens and evens.size() == 2
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


@without_init
def gives_sets():
    evens, odds = hvd.ProcessSet(range(0, 3, 2)), hvd.ProcessSet([1])
    hvd.init(process_sets=[evens, odds])
    mine = odds if hvd.rank() == 1 else evens
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum, process_set=mine)))


@without_init
def a_part_is_the_job():
    for bad in ([0, 1, 9], [0, 0], "ab", 3):
        with raises(ValueError):
            hvd.init(comm=bad)
        assert not hvd.is_initialized()
    for bad in ("static", [[0]], [hvd.global_process_set]):
        with raises(ValueError, "new ProcessSets"):
            hvd.init(process_sets=bad)
    with raises(ValueError, "comm"):
        hvd.init(comm=[0, 1] if rank else [0, 2])
    hvd.init(comm=[2, 0])
    place = {2: 0, 0: 1}.get(rank, 0)
    assert (hvd.rank(), hvd.size()) == (place, 1 if rank == 1 else 2)
    got = hvd.allreduce(tf.constant(float(rank)), op=hvd.Sum)
    assert float(got) == (1.0 if rank == 1 else 2.0), got
    assert float(hvd.broadcast(float(rank), 0)) == (1.0 if rank == 1 else 2.0)
    report(done=True)


@without_init
def two_parts_are_jobs():
    hvd.init(comm=[0, 3] if rank in (0, 3) else [1, 2])
    s = hvd.add_process_set([1])
    got = float(hvd.allreduce(float(rank), op=hvd.Sum))
    assert hvd.size() == 2 and s.included() == (hvd.rank() == 1)
    assert got == 3.0
    report(done=True)


@without_init
def a_communicator_is_the_job():
    from mpi4py import MPI

    half = MPI.COMM_WORLD.Split(rank % 2, -rank)
    hvd.init(comm=half, process_sets="dynamic")
    assert (hvd.rank(), hvd.size()) == (half.rank, half.size)
    assert float(hvd.allreduce(float(rank), op=hvd.Sum)) == half.allreduce(rank)
    report(done=True)


@without_init
def communicators_are_the_sets():
    """Each rank gives its own part, as Split() makes them; a refused list may be mended."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    half = world.Split(color=rank % 2, key=rank)
    if size > 2:
        mine, first = hvd.ProcessSet(half), hvd.ProcessSet([0])
        for bad, why in ((world.Dup(), "has all ranks"), (half.Dup(), "exists already")):
            with raises(ValueError, why):
                hvd.init(comm=world, process_sets=[mine, first, hvd.ProcessSet(bad)])
            assert hvd.is_initialized() and mine.process_set_id is first.process_set_id is None
        with raises(ValueError, "a communicator"):
            hvd.init(process_sets=[mine] if rank else [first])
        hvd.init(process_sets=[mine, first])
        assert first.size() == 1 and first.included() == (rank == 0)
    else:
        mine = hvd.ProcessSet(half)
        hvd.init(comm=world, process_sets=[mine])
    assert mine.mpi_comm is half and mine.ranks == list(range(rank % 2, size, 2))
    numbers = world.allgather(mine.process_set_id)
    assert numbers[:2] == sorted(set(numbers)), numbers
    assert float(hvd.allreduce(float(rank), op=hvd.Sum, process_set=mine)) == half.allreduce(rank)
    if size > 2:
        hvd.remove_process_set(first)
    # Not every rank is in one, and a part of the last job has numbers of its own.
    tail = world.Split(color=0 if rank else MPI.UNDEFINED, key=-rank)
    if size > 2:
        last = hvd.add_process_set(hvd.ProcessSet(tail))
        assert bool(last.included()) == (rank > 0)
        if rank:
            assert float(hvd.allreduce(1.0, op=hvd.Sum, process_set=last)) == size - 1
    hvd.shutdown()
    hvd.init(comm=tail if rank else [0])  # the last rank is the first
    if rank:
        alone = hvd.ProcessSet(tail.Split(color=rank))
        if size > 2:
            hvd.add_process_set(alone)
            assert alone.ranks == [size - 1 - rank], alone.ranks
            with raises(ValueError, "not in the job"):
                hvd.add_process_set(hvd.ProcessSet(MPI.COMM_WORLD))
    report(done=True)


def added_until_it_fails():
    """The others hear of what happened to one of them while it was added."""
    begin, busy = time.monotonic(), time.process_time()
    try:
        hvd.add_process_set([0, 2])
        while True:
            hvd.allreduce(1.0)
    except (JobError, tf.errors.OpError) as error:
        seconds, busy = time.monotonic() - begin, time.process_time() - busy
        report_in_time(text=str(error), seconds=seconds, busy=busy)
        raise


def threads_run_out():
    """On rank 1: there is no room for another stack."""
    if rank == 1:
        status = pathlib.Path("/proc/self/status").read_text()
        used = int(next(line for line in status.splitlines() if "VmSize" in line).split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 20), resource.RLIM_INFINITY))
    try:
        hvd.add_process_set([0, 1])
        while True:
            hvd.allreduce(1.0)
    except (JobError, tf.errors.OpError) as error:
        report_in_time(text=str(error))
        raise
