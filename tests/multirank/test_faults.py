"""Ranks that disagree, die, stop or raise: everybody hears of it, in time, and nothing hangs."""

import time

import launcher
import pytest
from conftest import PYTHONS, on_ranks

DISAGREE = """
def refused(call, *words):
    try:
        call()
    except tf.errors.FailedPreconditionError as error:
        for word in words:
            assert word in error.message, (word, error.message)
        return
    raise SystemExit(f"no mismatch was seen: {words}")

one = rank == size - 1
refused(lambda: hvd.allreduce(tf.ones([2 + one]), name="s"), "'s'", "[2]", "[3]")
refused(lambda: hvd.allreduce(tf.ones([2], tf.float64 if one else tf.float32)), "float64")
refused(lambda: hvd.allreduce(tf.ones([2]), op=hvd.Sum if one else hvd.Max), "op=Sum", "op=Max")
refused(lambda: hvd.broadcast(tf.ones([2]), int(one)), "root_rank=1", "root_rank=0")
refused(lambda: hvd.allreduce(tf.ones([2]), name="n" if one else "m"), "'n'", "'m'")
refused(lambda: hvd.allreduce(tf.ones([1])) if one else hvd.broadcast(tf.ones([1]), 0),
        "allreduce", "broadcast")
refused(lambda: hvd.grouped_allreduce([tf.ones([1])] * (2 + one)), "tensors")
refused(lambda: hvd.allgather(tf.ones([1, 2 + one])), "allgather")
a, b = tf.Variable(1.0, name="alpha"), tf.Variable(tf.ones([4]), name="beta")
def gradients(sources, unused=False):
    with tf.GradientTape() as tape:
        loss = a * 2.0 if unused else a * tf.reduce_sum(b)
    return hvd.DistributedGradientTape(tape).gradient(loss, sources)
for wrap in (lambda f: f, tf.function):
    refused(wrap(lambda: gradients([a, b], unused=one)), "beta", "None")
    refused(wrap(lambda: gradients([a] if one else [a, b])), "beta")
    refused(wrap(lambda: gradients([b, a] if one else [a, b])), "alpha", "beta")
    # One rank has no gradient at all.
    refused(wrap(lambda: gradients([b], unused=one)), "beta", "None")
    # The job goes on.
    assert float(wrap(lambda: gradients([a, b]))()[0]) == 4.0
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size
for call, error in (
    (lambda: hvd.broadcast(1.0, size), ValueError),
    (lambda: hvd.broadcast(1.0, -1), ValueError),
    (lambda: hvd.allreduce(tf.constant("text")), TypeError),
    (lambda: hvd.allreduce(tf.constant(True)), TypeError),
    (lambda: hvd.allreduce(1, op=hvd.Adasum), TypeError),
    (lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), ValueError),
    (lambda: hvd.allreduce(1.0, process_set=7), ValueError),
):
    try:
        call()
        raise SystemExit("accepted")
    except error:
        pass
report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))
"""


@on_ranks("python", PYTHONS, 2, 3)
def test_ranks_that_disagree(job, python, ranks):
    """FailedPreconditionError on all ranks, naming both sides; the job goes on."""
    results = job(DISAGREE, ranks, python=python).check(ranks)
    assert all(result["sum"] == ranks for result in results.values())


TRAIN_UNTIL = """
v = tf.Variable(tf.ones([200000]), name="weights")
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v)
    return hvd.DistributedGradientTape(tape).gradient(loss, v)[0]
for i in range(20):
    step()
hvd.barrier()
begin = time.time()
"""

SURVIVE = """
try:
    for i in range(10**9):
        step()
except tf.errors.OpError as error:
    report(error=type(error).__name__, text=error.message, seconds=time.time() - begin)
    time.sleep(1)  # let the others report before mpirun ends the job
    raise
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(3)", "sys.exit(0)"])
def test_a_rank_that_goes(job, end):
    """Survivors raise within 2 seconds, naming the rank, the collective and the step."""
    body = TRAIN_UNTIL + f"if rank == 1:\n    {end}\n" + SURVIVE
    start = time.monotonic()
    result = job(body, 3, timeout=60, cold=True)
    assert not result.timed_out, result.output[-4000:]
    assert time.monotonic() - start < 45
    assert result.returncode != 0
    # mpirun may end a survivor before its script reports, but the sentence is always there.
    assert "rank 1 (process" in result.output, result.output[-4000:]
    assert "(step " in result.output
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "rank 1" in survivor["text"]
        assert "step" in survivor["text"]
        assert "DistributedGradientTape" in survivor["text"]


@pytest.mark.parametrize(
    ("ranks", "end"),
    [(2, "sys.exit(0)"), (3, "sys.exit(0)"), (4, "hvd.shutdown(); time.sleep(5); sys.exit(0)")],
)
def test_a_rank_of_another_node_ends(job, end, ranks):
    """It tells the other nodes, and failures of a node are passed on: nobody waits for long."""
    body = TRAIN_UNTIL + f"if rank == 1:\n    {end}\n" + SURVIVE
    result = job(body, ranks, env={"SMDDP_NODES": "2"}, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert result.returncode != 0
    # Whoever notices first tells all: a rank of its own node knows its process.
    said = "takes part no more" in result.output or "rank 1 (process" in result.output
    assert said, result.output[-4000:]
    assert result.results, result.output[-4000:]
    for survivor in result.results.values():
        assert survivor["error"] == "UnknownError"
        assert survivor["seconds"] < 2
        assert "DistributedGradientTape" in survivor["text"]


def test_a_rank_of_another_node_dies(job):
    """The launcher ends the others; what they waited for is in the output all the same."""
    body = TRAIN_UNTIL + "if rank == 1:\n    os.kill(os.getpid(), 9)\n" + SURVIVE
    start = time.monotonic()
    result = job(body, 2, env={"SMDDP_NODES": "2"}, timeout=60)
    assert not result.timed_out, result.output[-4000:]
    assert time.monotonic() - start < 45
    assert "ended by SIGTERM while waiting for" in result.output, result.output[-4000:]
    assert "(step " in result.output


def test_ranks_of_several_nodes_end_at_different_times(job):
    """The first waits for the last; no error, and no core is burnt."""
    body = """
    half = hvd.add_process_set([0, 2])
    hvd.allreduce(1.0)
    if rank in (0, 2):
        time.sleep(2)
        assert float(hvd.allreduce(1.0, op=hvd.Sum, process_set=half)) == 2
    report(done=True)
    """
    job(body, 4, env={"SMDDP_NODES": "2"}).check(4)


def test_a_rank_that_goes_leaves_no_shared_memory(job):
    """The segment has no name, so nothing is in /dev/shm even after SIGKILL."""
    import os

    before = set(os.listdir("/dev/shm"))
    job(TRAIN_UNTIL + "os.kill(os.getpid(), 9)", 2, timeout=60)
    left = {name for name in set(os.listdir("/dev/shm")) - before if "smddp" in name}
    assert not left


def test_own_sigterm_handler_is_kept(job):
    """A script's handler still runs, whether it was set before or after init."""
    body = """
    import signal
    seen = []
    signal.signal(signal.SIGTERM, lambda *a: seen.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    report(seen=len(seen), sum=float(hvd.allreduce(1.0, op=hvd.Sum)))
    """
    results = job(body, 2).check(2)
    assert all(result == {"seen": 1, "sum": 2.0} for result in results.values())


def test_sigterm_still_ends_a_process_and_its_children(job):
    """Without a handler of the script's, SIGTERM kills as ever, forked children too."""
    body = """
    import signal
    if rank == 0:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        time.sleep(0.3)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        report(signal=os.WTERMSIG(status))
    hvd.barrier()
    if rank == 1:
        report(signal=signal.SIGTERM)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    """
    result = job(body, 2, timeout=40)
    assert not result.timed_out
    assert result.returncode != 0
    assert [result.results[r]["signal"] for r in (0, 1)] == [15, 15]


def test_a_forked_child_is_no_rank(job):
    """It is refused, and its end does not disturb the job."""
    body = """
    child = os.fork()
    if child == 0:
        try:
            hvd.size()
        except ValueError:
            hvd.shutdown()
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    report(code=os.WEXITSTATUS(status), sum=float(hvd.allreduce(1.0, op=hvd.Sum)))
    """
    results = job(body, 2).check(2)
    assert all(result == {"code": 7, "sum": 2.0} for result in results.values())


def test_a_rank_that_stops(job):
    """A warning names it and the tensors; then an error does."""
    body = (
        TRAIN_UNTIL
        + """
import signal
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
        + SURVIVE
    )
    env = {"SMDDP_STALL_WARNING_SECONDS": "1", "SMDDP_TIMEOUT_SECONDS": "3"}
    result = job(body, 2, env=env, timeout=60)
    assert result.results[0]["error"] == "DeadlineExceededError", result.output[-4000:]
    assert "rank 1" in result.results[0]["text"]
    assert 2.5 < result.results[0]["seconds"] < 8
    assert "stalled: waited 1." in result.output
    assert "weights float32 [200000]" in result.output
    assert result.returncode != 0


BACKWARD_FAILS = """
bad = tf.Variable(False)
weights = [tf.Variable(tf.ones([1000, 50]), name=f"w{i}") for i in range(4)]
@tf.custom_gradient
def middle(x):
    def grad(dy):
        busy = tf.zeros([200, 200]) * dy[0]  # so that other gradients are there long before
        for _ in range(50):
            busy = busy @ busy
        # A failure that TensorFlow does not order before the plan, as it does with stateful ops.
        shift = tf.where(bad, 5000, 0) + tf.cast(busy[0, 0], tf.int32)
        return tf.gather(dy, tf.range(1000) + shift)
    return tf.identity(x), grad
def loss():
    x = tf.zeros([1000])
    for i, w in enumerate(weights):
        x = middle(x) if i == 2 else x
        x += tf.reduce_sum(w, 1)
    return tf.reduce_sum(x)
@tf.function
def step(order):
    with tf.GradientTape() as tape:
        y = loss()
    gradients = hvd.DistributedGradientTape(tape).gradient(y, weights[::order])
    return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
def attempt(order):
    begin = time.time()
    try:
        return "", "", float(step(order)), time.time() - begin
    except tf.errors.OpError as error:
        return type(error).__name__, error.message, 0, time.time() - begin
# The gradients that fail are in the last two buckets, or in the first two.
for order in (1, -1):
    assert attempt(order)[2] == 200000
    for i in range(5):
        bad.assign(rank == 1)
        kind, text, _, seconds = attempt(order)
        assert seconds < 20, seconds
        if rank == 1:
            assert (kind, "indices" in text) == ("InvalidArgumentError", True), (kind, text)
        else:
            assert kind == "FailedPreconditionError", (kind, text)
            assert "rank 1" in text and "step" in text, text
        bad.assign(False)
        assert attempt(order)[:3] == ("", "", 200000), attempt(order)
report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))
"""


def test_a_backward_pass_that_fails(job, python):
    """The rank has its own error at once, though later buckets could run; the others are told."""
    env = {"SMDDP_BUCKET_BYTES": "200000", "SMDDP_FIRST_BUCKET_BYTES": "200000"}
    env["SMDDP_TIMEOUT_SECONDS"] = "25"  # what a hang would show as
    results = job(BACKWARD_FAILS, 2, python=python, env=env).check(2)
    assert all(result["sum"] == 2 for result in results.values())


@pytest.mark.parametrize("launched", ["script", "mpi4py"])
def test_a_rank_that_raises(tmp_path, launched):
    """Its traceback is the first thing seen; the others end too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tensorflow as tf, smddp_tf as hvd\nhvd.init()\nhvd.barrier()\n"
        "if hvd.rank() == 1:\n    raise RuntimeError('the data are broken')\n"
        "for i in range(10**9):\n    hvd.allreduce(tf.ones([10]))\n"
    )
    module = ["-m", "mpi4py"] if launched == "mpi4py" else []
    command = [*launcher.mpirun(2), launcher.BIN / "python", *module, script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out, output[-4000:]
    assert code != 0
    first = output.find("the data are broken")
    other = output.find("smddp_tf[rank 0] error")
    assert first >= 0, output[-4000:]
    assert other < 0 or output.find("Traceback") < other, output[-4000:]


def test_mpi4py_has_begun_mpi(tmp_path):
    """Under `python -m mpi4py` MPI is running: it is used, and left running."""
    script = tmp_path / "script.py"
    script.write_text(
        "from mpi4py import MPI\nimport smddp_tf as hvd\nhvd.init()\n"
        "assert hvd.size() == MPI.COMM_WORLD.size == 2\nhvd.barrier()\nhvd.shutdown()\n"
        "assert not MPI.Is_finalized()\nprint('sum', MPI.COMM_WORLD.allreduce(1))\n"
    )
    command = [*launcher.mpirun(2), launcher.BIN / "python", "-m", "mpi4py", script]
    code, output, timed_out = launcher.run_command(command, timeout=60)
    assert not timed_out
    assert (code, output.count("sum 2")) == (0, 2), output[-4000:]


def test_before_init(tmp_path):
    """Everything that needs the job says to call init()."""
    script = (
        "import tensorflow as tf, smddp_tf as hvd\n"
        "for call in (hvd.rank, hvd.size, lambda: hvd.allreduce(1.0),\n"
        "             lambda: hvd.DistributedGradientTape(tf.GradientTape()),\n"
        "             tf.function(lambda: hvd.allreduce(1.0))):\n"
        "    try:\n        call()\n        raise SystemExit('accepted')\n"
        "    except ValueError as error:\n        assert 'init()' in str(error), error\n"
        "print('refused all')\n"
    )
    code, output, _ = launcher.run_command(
        [launcher.BIN / "python", "-c", script], timeout=60, cwd=tmp_path
    )
    assert (code, "refused all" in output) == (0, True), output


@pytest.mark.parametrize(
    ("name", "value"), [("SMDDP_TIMEOUT_SECONDS", "soon"), ("SMDDP_ALLREDUCE", "magic")]
)
def test_bad_environment(name, value, tmp_path):
    """A value that is not understood is refused, with what is accepted."""
    code, output, _ = launcher.run_command(
        [launcher.BIN / "python", "-c", "import smddp_tf; smddp_tf.init()"],
        timeout=60,
        env={name: value},
    )
    assert code != 0
    assert f"{name}='{value}'" in output
    assert "it takes" in output
