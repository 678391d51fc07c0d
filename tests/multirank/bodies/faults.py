"""What ranks do in test_faults.py."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import machine_time
import tensorflow as tf
from checks import raises
from harness import rank, report, report_in_time, size, without_init

import smddp_tf as hvd


def _refused(call, *words):
    with raises(tf.errors.FailedPreconditionError, *words):
        call()


def _collectives_that_differ(one):
    """`one`: whether this rank is the one that differs."""
    _refused(lambda: hvd.allreduce(tf.ones([2 + one]), name="s"), "'s'", "[2]", "[3]")
    dtype = tf.float64 if one else tf.float32
    _refused(lambda: hvd.allreduce(tf.ones([2], dtype)), "float64")
    op = hvd.Sum if one else hvd.Max
    _refused(lambda: hvd.allreduce(tf.ones([2]), op=op), "op=Sum", "op=Max")
    _refused(lambda: hvd.broadcast(tf.ones([2]), int(one)), "root_rank=1", "root_rank=0")
    name = "n" if one else "m"
    _refused(lambda: hvd.allreduce(tf.ones([2]), name=name), "'n'", "'m'")
    _refused(
        lambda: hvd.allreduce(tf.ones([1])) if one else hvd.broadcast(tf.ones([1]), 0),
        "allreduce",
        "broadcast",
    )
    _refused(lambda: hvd.grouped_allreduce([tf.ones([1])] * (2 + one)), "tensors")
    _refused(lambda: hvd.allgather(tf.ones([1, 2 + one])), "allgather")


def _gradients_that_differ(one, wrap):
    a, b = tf.Variable(1.0, name="alpha"), tf.Variable(tf.ones([4]), name="beta")

    def gradients(sources, unused=False):
        with tf.GradientTape() as tape:
            loss = a * 2.0 if unused else a * tf.reduce_sum(b)
        return hvd.DistributedGradientTape(tape).gradient(loss, sources)

    _refused(wrap(lambda: gradients([a, b], unused=one)), "beta", "None")
    _refused(wrap(lambda: gradients([a] if one else [a, b])), "beta")
    _refused(wrap(lambda: gradients([b, a] if one else [a, b])), "alpha", "beta")
    # One rank has no gradient at all.
    _refused(wrap(lambda: gradients([b], unused=one)), "beta", "None")
    # The job goes on.
    assert float(wrap(lambda: gradients([a, b]))()[0]) == 4.0
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size


def disagree():
    one = rank == size - 1
    _collectives_that_differ(one)
    for wrap in (lambda f: f, tf.function):
        _gradients_that_differ(one, wrap)
    for call, error in (
        (lambda: hvd.broadcast(1.0, size), ValueError),
        (lambda: hvd.broadcast(1.0, -1), ValueError),
        (lambda: hvd.allreduce(tf.constant("text")), TypeError),
        (lambda: hvd.allreduce(tf.constant(True)), TypeError),
        (lambda: hvd.allreduce(1, op=hvd.Adasum), TypeError),
        (lambda: hvd.allreduce(1.0, average=True, op=hvd.Sum), ValueError),
        (lambda: hvd.allreduce(1.0, process_set=7), ValueError),
    ):
        with raises(error):
            call()
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


def _begin_training():
    """Returns the step, after twenty of them, and the time."""
    v = tf.Variable(tf.ones([200000]), name="weights")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v)
        return hvd.DistributedGradientTape(tape).gradient(loss, v)[0]

    for _ in range(20):
        step()
    hvd.barrier()
    return step, machine_time.now()


def _train_until_it_fails(step, begin):
    try:
        for _ in range(10**9):
            step()
    except tf.errors.OpError as error:
        report_in_time(
            error=type(error).__name__, text=error.message, seconds=machine_time.now() - begin
        )
        raise


def _shut_down_and_exit():
    hvd.shutdown()
    time.sleep(5)
    sys.exit(0)


ENDS = {
    "os.kill(os.getpid(), 9)": lambda: os.kill(os.getpid(), 9),
    "os._exit(3)": lambda: os._exit(3),
    "sys.exit(0)": lambda: sys.exit(0),
    "hvd.shutdown(); time.sleep(5); sys.exit(0)": _shut_down_and_exit,
    "stops": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def one_goes(end):
    """Rank 1 ends in this way while all train; the others report what they are told."""
    step, begin = _begin_training()
    if rank == 1:
        ENDS[end]()
    _train_until_it_fails(step, begin)


def one_is_late():
    if rank == size - 1:
        time.sleep(2.5)
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


def one_is_refused():
    """Rank 1 alone is refused a collective, and ends with that exception while the others wait."""
    hvd.allreduce(1.0)
    if rank == 1:
        hvd.allreduce(tf.constant("text"), name="weights")
    begin = time.time()
    with raises(tf.errors.UnknownError, "rank 1", "TypeError: allreduce of string", "'weights'"):
        hvd.allreduce(1.0, name="weights")
    report(seconds=time.time() - begin)


def all_go():
    _begin_training()
    os.kill(os.getpid(), 9)


def end_at_different_times():
    half = hvd.add_process_set([0, 2])
    hvd.allreduce(1.0)
    if rank in (0, 2):
        time.sleep(2)
        assert float(hvd.allreduce(1.0, op=hvd.Sum, process_set=half)) == 2
    report(done=True)


def own_sigterm_handler():
    seen = []
    signal.signal(signal.SIGTERM, lambda *a: seen.append(1))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    report(seen=len(seen), sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


def end_by_sigterm():
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


def a_forked_child():
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


INIT_OF_A_CHILD = """
import smddp_tf as hvd
try:
    hvd.init()
except hvd.errors.InitError as error:
    print(error)
"""


def _in_a_fork() -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        exec(INIT_OF_A_CHILD)
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    return os.read(reader, 4096).decode()


def inits_of_children():
    """A rank's children call init(), as where multiprocessing imports the script again."""
    command = [sys.executable, "-c", INIT_OF_A_CHILD]
    texts = [_in_a_fork(), subprocess.run(command, capture_output=True, text=True).stdout]
    # Those of a launcher of their own are ranks.
    mpirun = [pathlib.Path(sys.executable).with_name("mpirun"), "--oversubscribe", "-np", "2"]
    script = "import smddp_tf as hvd; hvd.init(); print('ranks', hvd.size())"
    # That launcher must not take itself for a rank.
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PMIX_", "PRTE_"))}
    inner = [*mpirun, sys.executable, "-c", script]
    inside = subprocess.run(inner, env=env, capture_output=True, text=True) if rank == 0 else None
    report(
        texts=texts,
        inside=(inside.stdout + inside.stderr) if inside else "",
        sum=float(hvd.allreduce(1.0, op=hvd.Sum)),
        pid=os.getpid(),
    )


class _Failing:
    """A model whose backward pass fails while `bad` is set."""

    def __init__(self):
        self.bad = tf.Variable(False)
        self.weights = [tf.Variable(tf.ones([1000, 50]), name=f"w{i}") for i in range(4)]
        self.middle = tf.custom_gradient(self._middle)
        self.step = tf.function(self._step)

    def _middle(self, x):
        def grad(dy):
            busy = tf.zeros([200, 200]) * dy[0]  # so that other gradients are there long before
            for _ in range(50):
                busy = busy @ busy
            # A failure that TensorFlow does not order before the plan, as it does with stateful
            # ops.
            shift = tf.where(self.bad, 5000, 0) + tf.cast(busy[0, 0], tf.int32)
            return tf.gather(dy, tf.range(1000) + shift)

        return tf.identity(x), grad

    def _loss(self):
        x = tf.zeros([1000])
        for i, w in enumerate(self.weights):
            x = self.middle(x) if i == 2 else x
            x += tf.reduce_sum(w, 1)
        return tf.reduce_sum(x)

    def _step(self, order):
        with tf.GradientTape() as tape:
            y = self._loss()
        gradients = hvd.DistributedGradientTape(tape).gradient(y, self.weights[::order])
        return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    def attempt(self, order):
        """The class of the error, its message, the result and the seconds."""
        begin = machine_time.now()
        try:
            return "", "", float(self.step(order)), machine_time.now() - begin
        except tf.errors.OpError as error:
            return type(error).__name__, error.message, 0, machine_time.now() - begin


def backward_fails():
    model = _Failing()
    # The gradients that fail are in the last two buckets, or in the first two.
    for order in (1, -1):
        assert model.attempt(order)[2] == 200000
        for _ in range(5):
            model.bad.assign(rank == 1)
            kind, text, _, seconds = model.attempt(order)
            assert seconds < 20, seconds
            if rank == 1:
                assert (kind, "indices" in text) == ("InvalidArgumentError", True), (kind, text)
            else:
                assert kind == "FailedPreconditionError", (kind, text)
                assert "rank 1" in text and "step" in text, text
            model.bad.assign(False)
            again = model.attempt(order)
            assert again[:3] == ("", "", 200000), again
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


def one_raises():
    hvd.barrier()
    if rank == 1:
        raise RuntimeError("the data are broken")
    for _ in range(10**9):
        hvd.allreduce(tf.ones([10]))


@without_init
def mpi_has_begun():
    from mpi4py import MPI

    hvd.init()
    assert hvd.size() == MPI.COMM_WORLD.size == 2
    hvd.barrier()
    hvd.shutdown()
    assert not MPI.Is_finalized()
    print("sum", MPI.COMM_WORLD.allreduce(1))


@without_init
def one_inits_late():
    if rank == 1:
        time.sleep(4)
    hvd.init()
    report(sum=float(hvd.allreduce(1.0, op=hvd.Sum)))


@without_init
def before_init():
    for call in (
        hvd.rank,
        hvd.size,
        lambda: hvd.allreduce(1.0),
        lambda: hvd.DistributedGradientTape(tf.GradientTape()),
        tf.function(lambda: hvd.allreduce(1.0)),
    ):
        with raises(ValueError, "init()"):
            call()
    print("refused all")
