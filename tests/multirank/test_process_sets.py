"""Process sets: parts of a job that run collectives apart from each other, at the same time."""

import textwrap

import launcher
import pytest

COMMON = """
WAYS = {
    "eager": lambda f: f,
    "function": lambda f: tf.function(f, autograph=False),
    "jit": lambda f: tf.function(f, autograph=False, jit_compile=True),
}
checks = 0
def equal(got, want, *what):
    global checks
    checks += 1
    got = tf.cast(got, tf.float64).numpy()
    want = np.broadcast_to(np.asarray(want, np.float64), got.shape)
    assert np.array_equal(got, want), (rank, what, got, want)
def refused(call, *words):
    try:
        call()
    except ValueError as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return
    raise SystemExit(f"accepted: {words}")
"""


def _body(text: str) -> str:
    return COMMON + textwrap.dedent(text)


# Every collective on one set; `s` is the set, and this rank is in it.
EVERYTHING = """
def everything(s, ways=WAYS):
    ranks, n = s.ranks, s.size()
    total, first, last = sum(r + 1 for r in ranks), ranks[0], ranks[-1]
    weight = rank + 1.0
    for way, wrap in ways.items():
        for count in (0, 1, 5, 70001):
            x = tf.ones([count]) * weight
            equal(wrap(lambda x=x: hvd.allreduce(x, op=hvd.Sum, process_set=s))(), total, way)
        x = tf.constant([4.0, 8.0]) * weight
        base = np.array([4.0, 8.0])
        for op, want in ((hvd.Average, total / n), (hvd.Max, last + 1), (hvd.Min, first + 1)):
            if op != hvd.Average or n in (1, 2, 4):
                got = wrap(lambda x=x, op=op: hvd.allreduce(x, op=op, process_set=s))()
                equal(got, base * want, way, op)
        equal(wrap(lambda x=x: hvd.allreduce(tf.cast(x, tf.int32), process_set=s))(),
              (base * total).astype(int) // n, way, "integer average")
        for got in wrap(lambda x=x: hvd.grouped_allreduce([x, x], op=hvd.Sum, process_set=s))():
            equal(got, base * total, way, "grouped")
        for root in (first, last):  # ranks of the job
            got = wrap(lambda x=x, root=root: hvd.broadcast(x, root, process_set=s))()
            equal(got, base * (root + 1), way, "broadcast")
        def gradient(call, x=x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(call(x) * weight)
            return tape.gradient(y, x)
        equal(wrap(lambda: gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=s)))(),
              total, way, "gradient of allreduce")
        equal(wrap(lambda: gradient(lambda x: hvd.broadcast(x, last, process_set=s)))(),
              total if rank == last else 0, way, "gradient of broadcast")
        if way != "jit":
            rows = wrap(lambda: hvd.allgather(tf.fill([rank + 1, 2], rank), process_set=s))()
            equal(rows[:, 0], np.repeat(ranks, [r + 1 for r in ranks]), way, "allgather")
            equal(wrap(lambda: gradient(lambda x: hvd.allgather(x, process_set=s)))(), total,
                  way, "gradient of allgather")
            slices = tf.IndexedSlices(tf.ones([1, 2]) * weight, tf.constant([rank]))
            got = wrap(lambda: hvd.allreduce(slices, op=hvd.Sum, process_set=s))()
            equal(got.indices, ranks, way, "slices")
            equal(got.values[:, 0], np.array(ranks) + 1, way, "slices")
    variables = [tf.Variable([rank, rank]), tf.Variable(float(rank))]
    hvd.broadcast_variables(variables, root_rank=last, process_set=s)
    for variable in variables:
        equal(variable, last, "variables")
    assert hvd.broadcast_object({"root": rank}, last, process_set=s) == {"root": last}
    assert hvd.allgather_object("x" * rank, process_set=s) == ["x" * r for r in ranks]
    hvd.barrier(process_set=s)
"""


def test_every_collective(job, python):
    """In eager, graph and jit mode; who is not in a set is refused before anything is sent."""
    body = """
    sets = [hvd.add_process_set([2, 0]), hvd.add_process_set(hvd.ProcessSet([1, 2]))]
    assert [s.ranks for s in sets] == [[0, 2], [1, 2]] and sets[0].process_set_id == 1
    for s in sets:
        assert s.size() == 2 and s.included() == (rank in s.ranks)
        if s.included():
            assert s.ranks[s.rank()] == rank
            everything(s)
            outsider = ({0, 1, 2} - set(s.ranks)).pop()
            refused(lambda: hvd.broadcast(1.0, outsider, process_set=s), "root_rank", "in the job")
        else:
            assert s.rank() is None
            for call in (
                lambda: hvd.allreduce(1.0, process_set=s),
                lambda: hvd.grouped_allreduce([1.0], process_set=s),
                lambda: hvd.allgather(1.0, process_set=s),
                lambda: hvd.broadcast(1.0, 2, process_set=s),
                lambda: hvd.barrier(process_set=s),
                lambda: hvd.broadcast_variables([], 2, process_set=s),
                lambda: hvd.broadcast_object(1, 2, process_set=s),
                lambda: hvd.allgather_object(1, process_set=s),
                lambda: hvd.DistributedGradientTape(tf.GradientTape(), process_set=s),
                tf.function(lambda: hvd.allreduce(1.0, process_set=s)),
            ):
                refused(call, f"rank {rank} is not in", str(s.ranks))
    refused(lambda: hvd.allreduce(1.0, process_set=1), "not a ProcessSet")
    refused(lambda: hvd.allreduce(1.0, process_set=hvd.ProcessSet([0, 1])), "not in the job")
    everything(hvd.global_process_set)
    report(checks=checks)
    """
    results = job(_body(EVERYTHING + textwrap.dedent(body)), 3, python=python).check(3)
    assert results[2]["checks"] > results[0]["checks"] > 60


def test_between_nodes(job):
    """Sets within a node, across nodes, and with more ranks on one node than on the other."""
    body = """
    assert hvd.cross_size() == 2
    ways = {"eager": WAYS["eager"], "function": WAYS["function"]}
    sets = [hvd.add_process_set(ranks) for ranks in ([0, 2], [0, 1, 3], [2, 3], [1])]
    for s in sets:
        if s.included():
            everything(s, ways)
            one = rank == s.ranks[-1] and s.size() > 1
            try:
                hvd.allreduce(tf.ones([1 + one]), name="odd", process_set=s)
                assert s.size() == 1
            except tf.errors.FailedPreconditionError as error:
                assert f"rank {s.ranks[-1]} has [float32 [2]]" in error.message, error.message
            equal(hvd.allreduce(1.0, op=hvd.Sum, process_set=s), s.size())
    for s in sets:
        assert hvd.remove_process_set(s)
    equal(hvd.allreduce(1.0, op=hvd.Sum), size)
    report(checks=checks)
    """
    job(_body(EVERYTHING + textwrap.dedent(body)), 4, env={"SMDDP_NODES": "2"}).check(4)


@pytest.mark.parametrize("nodes", [1, 2])
def test_overlapping_sets_at_once(job, python, nodes):
    """Threads use several sets, in another order on each rank, with one thread of TensorFlow's."""
    if nodes == 2 and "2.15" in python:
        pytest.skip("the path between nodes is the same for every TensorFlow")
    body = """
    import threading
    tf.config.threading.set_inter_op_parallelism_threads(1)
    a, b, c = (hvd.add_process_set(ranks) for ranks in ([0, 1, 2], [0, 1, 3], [2, 3]))
    errors = []
    def use(s, delay):
        try:
            time.sleep(delay)
            step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=s))
            for i in range(100):
                x = tf.ones([1 + i * 50]) * (rank + i)
                want = sum(r + i for r in s.ranks)
                equal(step(x) if i % 2 == 0 else hvd.allreduce(x, op=hvd.Sum, process_set=s), want)
        except BaseException as error:
            errors.append(repr(error))
    # Rank 0 comes to set a first and rank 1 to set b: each waits for the other in a different set.
    delays = {a: 0 if rank == 0 else 1, b: 0 if rank == 1 else 1, c: 0}
    threads = [threading.Thread(target=use, args=item) for item in delays.items()
               if item[0].included()]
    for thread in threads:
        thread.start()
    # Meanwhile all ranks train, and one set does besides.
    v = tf.Variable(tf.zeros([50000]))
    def gradient(s):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum, process_set=s).gradient(loss, v)
    steps = [(s, tf.function(lambda s=s: gradient(s))) for s in (hvd.global_process_set, c)
             if s.included()]
    for i in range(50):
        for s, step in steps:
            equal(step(), sum(r + 1 for r in s.ranks), "gradient")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a set waits for another"
    assert not errors, errors
    report(checks=checks)
    """
    env = {"SMDDP_NODES": str(nodes)}
    results = job(_body(body), 4, python=python, env=env).check(4)
    assert results[0]["checks"] == 250


def test_two_models_in_one_job(job, python):
    """Two halves of the job train models of their own, in every mode."""
    body = """
    halves = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])]
    for half in halves:
        hvd.add_process_set(half)
    mine = halves[rank // 2]
    shapes = [[300, 70], [70]] if rank < 2 else [[5], [3, 3], [40000]]
    for way, wrap in WAYS.items():
        for options in ({}, {"num_groups": 2}, {"gradient_predivide_factor": 2.0}):
            variables = [tf.Variable(tf.fill(shape, float(rank))) for shape in shapes]
            hvd.broadcast_variables(variables, root_rank=mine.ranks[1], process_set=mine)
            @wrap
            def step():
                with tf.GradientTape() as tape:
                    loss = sum(tf.reduce_sum(v) for v in variables) * (rank + 1.0)
                tape = hvd.DistributedGradientTape(tape, process_set=mine, **options)
                for v, grad in zip(variables, tape.gradient(loss, variables)):
                    v.assign_sub(grad)
            for _ in range(5):
                step()
            for v in variables:
                equal(v, mine.ranks[1] - 5 * (sum(mine.ranks) + 2) / 2, way, options)
    local = tf.Variable(1.0)
    tape = hvd.DistributedGradientTape(tf.GradientTape(), process_set=mine)
    tape.register_local_source(local)
    with tape:
        loss = local * 8.0
    equal(tape.gradient(loss, local), 4.0, "local source")
    hvd.barrier()
    report(checks=checks)
    """
    job(_body(body), 4, python=python).check(4)


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
    job(_body(body), 3, env={"SMDDP_NODES": str(nodes)}).check(3)


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
    results = job(_body(body), 3).check(3)
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
    job(_body(body), 3).check(3)


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
    result = job(_body(body), 3, timeout=60)
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
    command = [*launcher.mpirun(ranks), launcher.BIN / "python", script]
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
    hvd.init(comm=half)
    assert (hvd.rank(), hvd.size()) == (half.rank, half.size)
    assert float(hvd.allreduce(float(world), op=hvd.Sum)) == half.allreduce(world)
    print("right")
    """
    assert _run_script(tmp_path, text, 3).count("right") == 3
