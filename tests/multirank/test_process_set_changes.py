"""Process sets come and go, ranks disagree about them or die, and nothing hangs or is left."""

import textwrap

import launcher
import pytest
from scripts import with_checks


@pytest.mark.parametrize("nodes", [1, 2])
def test_added_and_removed(job, nodes):
    """20 times, and nothing is left: memory, mappings, descriptors, threads."""
    body = """
    import gc
    def kept():
        gc.collect()
        maps = pathlib.Path("/proc/self/maps").read_text()
        return (hvd.stats()["staging_bytes"], len(os.listdir("/proc/self/fd")),
                maps.count("memfd:smddp"), hvd.stats()["process_sets"])
    def once(ranks):
        s = hvd.add_process_set(ranks)
        if s.included():
            assert hvd.stats()["staging_bytes"] > before[0] and kept()[3] == 2
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
    v = tf.Variable(1.0)
    hvd.barrier()
    before = kept()
    once([0, 2])  # some libraries open files at their first use
    before, threads = kept(), len(os.listdir("/proc/self/task"))
    numbers = [once([0, 2] if i % 2 else [1, 2]) for i in range(20)]
    assert numbers == list(range(2, 22))
    assert kept() == before, (kept(), before)
    assert len(os.listdir("/proc/self/task")) <= threads + 2, "threads are left"
    # A traced function whose set is gone says so.
    s = hvd.add_process_set([0, 1])
    step = tf.function(lambda: hvd.allreduce(1.0, process_set=s))
    if s.included():
        step()
    number = s.process_set_id
    hvd.remove_process_set(s)
    if rank < 2:
        try:
            step.get_concrete_function()  # traced anew, or run as it was
            step()
            raise SystemExit("accepted")
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            assert "removed" in str(error), error
    assert not hvd.remove_process_set(hvd.global_process_set)
    equal(hvd.allreduce(1.0, op=hvd.Sum), size)
    report(checks=checks)
    """
    job(with_checks(body), 3, env={"SMDDP_NODES": str(nodes)}).check(3)


def test_ranks_that_disagree(job):
    """About which sets there are, or inside one: an error on all ranks, and the job goes on."""
    body = """
    import threading
    refused(lambda: hvd.add_process_set([0, 1] if rank else [1, 2]), "rank 0", "[1, 2]", "[0, 1]")
    s = hvd.add_process_set([1, 2])
    refused(lambda: hvd.remove_process_set(s) if rank else hvd.add_process_set([0, 1]),
            "remove_process_set(1)", "add_process_set([0, 1])")
    for bad, word in (([], "at least one"), ([0, 0], "twice"), ([0, 3], "0 to 2"),
                      ([-1], "out of range"), ([2, 1], "as number 1"), ([2, 1, 0], "all ranks"),
                      (s, "already"), (["a"], "list of ranks"), (7, "list of ranks")):
        refused(lambda: hvd.add_process_set(bad), word)
    if rank == 0:
        hvd.barrier()
        report(name="none", text="")
        raise SystemExit
    try:
        hvd.allreduce(tf.ones([rank]), name="odd", process_set=s)
        raise SystemExit("no mismatch was seen")
    except tf.errors.FailedPreconditionError as error:
        text = error.message
    equal(hvd.allreduce(1.0, op=hvd.Sum, process_set=s), 2, "after the mismatch")
    try:
        hvd.allgather(tf.ones([1, rank]), process_set=s)
        raise SystemExit("no mismatch was seen")
    except tf.errors.FailedPreconditionError as error:
        assert "rank 1 has" in error.message and "rank 2 has" in error.message, error.message
    hvd.barrier()
    report(text=text)
    """
    results = job(with_checks(body), 3).check(3)
    for r in (1, 2):
        assert "allreduce 'odd' of process set 1" in results[r]["text"]
        assert "rank 1 has [float32 [1]], rank 2 has [float32 [2]]" in results[r]["text"]


def test_a_set_in_use_is_not_removed(job):
    """All ranks hear of it, and the collective under way ends well."""
    body = """
    import threading
    s = hvd.add_process_set([0, 1])
    got = []
    work = threading.Thread(target=lambda: got.append(hvd.allreduce(1.0, hvd.Sum, process_set=s)))
    if rank == 0:
        work.start()
        time.sleep(0.5)
    refused(lambda: hvd.remove_process_set(s), "rank 0 has a collective under way")
    if rank == 1:
        work.start()
    if rank < 2:
        work.join(30)
        equal(got[0], 1.0)
    assert hvd.remove_process_set(s)
    report(checks=checks)
    """
    job(with_checks(body), 3).check(3)


def test_a_member_that_dies(job):
    """Its set hears of it, and so does who waits elsewhere for somebody that waits in the set."""
    body = """
    s = hvd.add_process_set([1, 2])
    t = hvd.add_process_set([0, 1])
    hvd.barrier()
    begin = time.time()
    if rank == 2:
        os.kill(os.getpid(), 9)
    try:
        if rank == 1:
            hvd.allreduce(1.0, name="in_the_set", process_set=s)
        hvd.allreduce(1.0, name="elsewhere", process_set=t)
    except tf.errors.OpError as error:
        report(error=type(error).__name__, text=error.message, seconds=time.time() - begin)
        time.sleep(1)  # let the others report before mpirun ends the job
        raise
    """
    result = job(with_checks(body), 3, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 2 (process" in result.output, result.output[-4000:]
    assert "'in_the_set' of process set 1" in result.output, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "rank 2" in survivor["text"]


def _run_script(tmp_path, text: str, ranks: int) -> str:
    """Runs a script that calls init() itself; returns its output."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport tensorflow as tf, smddp_tf as hvd\n"
        "world = int(os.environ['OMPI_COMM_WORLD_RANK'])\n" + textwrap.dedent(text)
    )
    command = [*launcher.mpirun(ranks), *launcher.warm_python(), script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out, output[-4000:]
    assert code == 0, output[-4000:]
    return output


def test_sets_given_to_init(tmp_path):
    """They are there at once; ranks that give others are refused, all of them."""
    text = """
    evens, odds = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1])
    try:
        hvd.init(process_sets=[evens] if world == 1 else [evens, odds])
        raise SystemExit("accepted")
    except ValueError as error:
        assert "rank 1 has [init(process_sets=[[0, 2]])]" in str(error), error
    hvd.init()  # the job is there; its sets are not
    assert evens.process_set_id is None and evens.size() is None
    assert hvd.add_process_set(evens) is evens and evens.size() == 2
    print(float(hvd.allreduce(1.0, op=hvd.Sum)), "in all")
    """
    assert _run_script(tmp_path, text, 3).count("3.0 in all") == 3
    text = """
    evens, odds = hvd.ProcessSet(range(0, 3, 2)), hvd.ProcessSet([1])
    hvd.init(process_sets=[evens, odds])
    mine = odds if hvd.rank() == 1 else evens
    print(float(hvd.allreduce(1.0, op=hvd.Sum, process_set=mine)), "in mine")
    """
    output = _run_script(tmp_path, text, 3)
    assert (output.count("2.0 in mine"), output.count("1.0 in mine")) == (2, 1), output


def test_a_part_of_the_ranks_is_the_job(tmp_path):
    """init(comm=...): ranks are renumbered; the rest is alone, or another job."""
    text = """
    for bad in ([0, 1, 9], [0, 0], "ab", 3):
        try:
            hvd.init(comm=bad)
            raise SystemExit("accepted")
        except ValueError as error:
            assert not hvd.is_initialized(), error
    for bad in ("static", [[0]], [hvd.global_process_set]):
        try:
            hvd.init(process_sets=bad)
            raise SystemExit("accepted")
        except ValueError as error:
            assert "new ProcessSets" in str(error), error
    try:
        hvd.init(comm=[0, 1] if world else [0, 2])
        raise SystemExit("accepted")
    except ValueError as error:
        assert "comm" in str(error), error
    hvd.init(comm=[2, 0])
    place = {2: 0, 0: 1}.get(world, 0)
    assert (hvd.rank(), hvd.size()) == (place, 1 if world == 1 else 2)
    got = hvd.allreduce(tf.constant(float(world)), op=hvd.Sum)
    assert float(got) == (1.0 if world == 1 else 2.0), got
    assert float(hvd.broadcast(float(world), 0)) == (1.0 if world == 1 else 2.0)
    print("right")
    """
    assert _run_script(tmp_path, text, 3).count("right") == 3
    text = """
    hvd.init(comm=[0, 3] if world in (0, 3) else [1, 2])
    s = hvd.add_process_set([1])
    got = float(hvd.allreduce(float(world), op=hvd.Sum))
    assert hvd.size() == 2 and s.included() == (hvd.rank() == 1)
    assert got == 3.0
    print("right")
    """
    assert _run_script(tmp_path, text, 4).count("right") == 4
    text = """
    from mpi4py import MPI
    half = MPI.COMM_WORLD.Split(world % 2, -world)
    hvd.init(comm=half, process_sets="dynamic")
    assert (hvd.rank(), hvd.size()) == (half.rank, half.size)
    assert float(hvd.allreduce(float(world), op=hvd.Sum)) == half.allreduce(world)
    print("right")
    """
    assert _run_script(tmp_path, text, 3).count("right") == 3
