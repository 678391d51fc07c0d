"""After a failure: every rank hears the cause in seconds, nothing is OK any more, nothing hangs."""

import concurrent.futures
import textwrap

import launcher
import pytest

# Reports after shutdown() too, and lets the others report: mpirun ends them when a rank ends that
# could not end MPI.
REPORT = """
def report(**values):
    (OUT / f"rank{rank}.json").write_text(json.dumps(values))
    until = time.time() + 8
    while time.time() < until and len(list(OUT.glob("rank*.json"))) < size:
        time.sleep(0.05)
"""


@pytest.fixture
def run(job):
    """job(), for bodies that report after shutdown()."""
    return lambda body, ranks, **options: job(REPORT + textwrap.dedent(body), ranks, **options)


@pytest.fixture
def run_both(tmp_path):
    """run() on one node and, at the same time, on two: most of it is waiting. Returns both jobs."""

    def run(body, ranks, env):
        def on(nodes):
            folder = tmp_path / nodes
            folder.mkdir()
            script = REPORT + textwrap.dedent(body)
            given = {**env, "SMDDP_NODES": nodes}
            return launcher.run_ranks(script, ranks, folder, env=given, timeout=200)

        launcher.warm_python()  # before two threads ask for it
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return list(pool.map(on, ["0", "2"]))

    return run


SETS = """
half = hvd.add_process_set([0, 2])
hvd.barrier()
begin = time.time()
def failure(call):
    try:
        for i in range(10**9):
            call()
    except tf.errors.OpError as error:
        return error.message.partition("}} ")[2].partition(" [Op:")[0]
"""


def test_a_failure_in_a_process_set(run):
    """A rank that is not in the set, and waits for one that is, hears of it in a second."""
    body = SETS + textwrap.dedent("""
    if rank == 2:  # on another node, and ends in good order
        time.sleep(1)
        begin = time.time()
        hvd.shutdown()
        report(text="", again="", seconds=time.time() - begin)
    else:
        text = failure(lambda: hvd.allreduce(1.0, **({"process_set": half} if rank == 0 else {})))
        seconds = time.time() - begin - 1
        if rank == 0:
            time.sleep(4)  # the script went on without a collective
        report(text=text, again=failure(lambda: hvd.allreduce(1.0)), seconds=seconds)
    """)
    env = {"SMDDP_NODES": "2", "SMDDP_TIMEOUT_SECONDS": "20"}
    result = run(body, 3, env=env, timeout=200)
    assert not result.timed_out, result.output[-4000:]
    assert sorted(result.results) == [0, 1, 2], result.output[-4000:]
    for rank in (0, 1):
        survivor = result.results[rank]
        assert "rank 2, on another node, takes part no more" in survivor["text"], survivor
        assert survivor["again"] == survivor["text"]
        assert survivor["seconds"] < 4, survivor


def test_every_rank_hears_the_cause(run_both):
    """Between nodes too, and one that is in no collective; no later operation succeeds."""
    body = """
    hvd.barrier()
    texts = []
    for name in ("late", "late", "other"):
        begin = time.time()
        if rank == size - 1 and not texts:
            time.sleep(4)
        try:
            hvd.allreduce(1.0, name=name)
        except tf.errors.OpError as error:
            texts.append(error.message.partition("}} ")[2].partition(" [Op:")[0])
    report(texts=texts, seconds=time.time() - begin)
    """
    env = {"SMDDP_TIMEOUT_SECONDS": "2"}
    for result in run_both(body, 4, env):
        assert not result.timed_out, result.output[-4000:]
        assert sorted(result.results) == [0, 1, 2, 3], result.output[-4000:]
        for one in result.results.values():
            assert len(one["texts"]) == 3
            assert len(set(one["texts"])) == 1, one
            # Two ranks may notice at the same time; those of the other node leave it to them.
            assert "waited 2.0 s for rank 3 " in one["texts"][0], one
            assert one["seconds"] < 1, one


HELD = """
from smddp_tf._graph import plan_ops
from smddp_tf._job import process_sets
from smddp_tf._plan import buckets
specs = [buckets.GradientSpec(f"g{i}", "float32", (4,), 16) for i in range(2)]
group = process_sets.check_process_set(hvd.global_process_set)
plan = buckets.make_plan(specs, bucket_bytes=16, first_bucket_bytes=16)
assert len(plan.buckets) == 2
def slow():
    time.sleep(wait)
    if fails:
        raise RuntimeError("the gradient of bucket 0 cannot be computed")
    return np.ones(4, np.float32)
@tf.function
def step():
    run = plan_ops.plan_begin(plan, "tape", group)
    first = tf.ensure_shape(tf.numpy_function(slow, [], tf.float32), [4])
    # Without `earlier`, the later bucket is there long before the first one.
    late, token1, _ = plan_ops.plan_bucket(run, [tf.ones([4])], [], 1, 1, 1.0, 1.0, "tape", group)
    early, token0, _ = plan_ops.plan_bucket(run, [first], [], 0, 1, 1.0, 1.0, "tape", group)
    plan_ops.plan_end(run, [token0, token1], group)
    return early[0] + late[0]
wait, fails = 0, False
value = tf.reduce_sum(step())
assert float(value) == 8 * size, value
hvd.barrier()
wait, fails = 2, FAILS
begin = time.time()
if rank == 1:
    END
try:
    step()
    text = ""
except tf.errors.OpError as error:
    text = error.message
report(text=text, seconds=time.time() - begin)
"""

ENDS = {
    "shutdown": "hvd.shutdown(); time.sleep(6); sys.exit(0)",
    "died": "os.kill(os.getpid(), 19)",  # stopped, so that mpirun does not end the others
}


@pytest.mark.parametrize(("end", "fails"), [("shutdown", True), ("died", False)])
def test_held_buckets(run, end, fails):
    """The step ends when its own operations do, though a bucket of it could not be handed on."""
    body = HELD.replace("END", ENDS[end]).replace("FAILS", str(fails))
    result = run(body, 2, env={"SMDDP_TIMEOUT_SECONDS": "3"}, timeout=200)
    assert 0 in result.results, result.output[-4000:]
    assert result.results[0]["text"], result.results
    assert result.results[0]["seconds"] < 8, result.results
    assert result.returncode != 0


def test_held_buckets_and_shutdown(run):
    """shutdown() while a step is under way ends the step."""
    body = HELD.replace("    END", "    pass").replace("FAILS", "rank == 1")
    timer = "import threading\nthreading.Timer(1, hvd.shutdown).start()\n"
    body = body.replace("begin =", timer + "begin =")
    results = run(body, 2, timeout=200).check(2)
    assert all(one["text"] and one["seconds"] < 8 for one in results.values()), results


RETRY = """
hvd.allreduce(1.0)
try:
    if rank == 0:
        hvd.allreduce(1.0, name="late")
    else:
        time.sleep(4)
except tf.errors.DeadlineExceededError:
    pass
begin = time.time()
hvd.shutdown()
left = time.time() - begin
begin = time.time()
try:
AGAIN
    text = str(float(hvd.allreduce(1.0, op=hvd.Sum)))
except hvd.errors.InitError as error:
    text = str(error)
report(left=left, text=text, seconds=time.time() - begin)
time.sleep(1)  # let the others report before mpirun ends the job
"""


def test_init_after_a_failure(run_both):
    """It works if every rank comes again."""
    env = {"SMDDP_TIMEOUT_SECONDS": "2"}
    for result in run_both(RETRY.replace("AGAIN", "    hvd.init()"), 2, env):
        assert not result.timed_out, result.output[-4000:]
        assert [result.results[r]["text"] for r in (0, 1)] == ["2.0", "2.0"], result.output[-4000:]
        assert all(one["left"] < 1 for one in result.results.values()), result.results


def test_init_after_a_failure_alone(run_both):
    """It says in time that the job must be restarted, now and when it is called again."""
    again = """
    if rank == 1:
        time.sleep(13)
        report(left=left, text="slept", seconds=0)
        sys.exit(0)
    try:
        hvd.init()
    except hvd.errors.InitError as error:
        assert "not all of the 2 ranks called init() within 10 s" in str(error), error
        hvd.init()
    """
    env = {"SMDDP_TIMEOUT_SECONDS": "2"}
    for result in run_both(RETRY.replace("AGAIN", again), 2, env):
        assert not result.timed_out, result.output[-4000:]
        assert "restart" in result.results[0]["text"], result.output[-4000:]
        assert 9 < result.results[0]["seconds"] < 15
        assert all(one["left"] < 1 for one in result.results.values()), result.results


def test_shutdown_does_not_wait_for_a_rank_that_failed(run_both):
    """A rank in good order leaves while another, which failed, goes on by itself."""
    body = """
    hvd.barrier()
    half = hvd.add_process_set([0, 1])
    hvd.barrier()
    begin = time.time()
    if rank == 0:
        try:
            hvd.allreduce(1.0, process_set=half)  # rank 1 does not come
        except tf.errors.OpError:
            time.sleep(60)
    else:
        time.sleep(1)
    begin = time.time()
    hvd.shutdown()
    report(seconds=time.time() - begin)
    time.sleep(2)  # let the others report before mpirun ends the job
    """
    env = {"SMDDP_TIMEOUT_SECONDS": "3"}
    for result in run_both(body, 4, env):
        assert not result.timed_out, result.output[-4000:]
        assert sorted(result.results) == [1, 2, 3], result.output[-4000:]
        assert all(4 < one["seconds"] < 15 for one in result.results.values()), result.results
        assert "will not wait for the other ranks to end" in result.output, result.output[-4000:]


def test_shutdown_waits_for_a_rank_that_works(run):
    """However long: SMDDP_TIMEOUT_SECONDS limits collectives, not an evaluation on one rank."""
    body = """
    hvd.barrier()
    if rank == 0:
        time.sleep(4)
    begin = time.time()
    hvd.shutdown()
    report(seconds=time.time() - begin)
    """
    env = {"SMDDP_NODES": "2", "SMDDP_TIMEOUT_SECONDS": "2"}
    result = run(body, 3, env=env, timeout=200)
    results = result.check(3)
    assert results[0]["seconds"] < 2
    assert all(3 < results[r]["seconds"] < 8 for r in (1, 2)), results
    assert "waits for the other ranks to end, since 2 s" in result.output, result.output[-4000:]


def told(result, *words):
    """Both ranks failed within seconds, and what they said names both operations."""
    assert not result.timed_out, result.output[-4000:]
    assert sorted(result.results) == [0, 1], result.output[-4000:]
    for one in result.results.values():
        assert one["seconds"] < 5, one  # 1.2 s on an idle machine
        assert "neither will come" in one["text"], one
        for word in words:
            assert word in one["text"], one


CAUGHT = """
v = tf.Variable(tf.ones([1000]), name="weights")
def step(i):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v)
    if i == 3 and rank == 1:
        raise ValueError("the data are broken")
    return hvd.DistributedGradientTape(tape).gradient(loss, v)
try:
    begin = time.time()
    try:
        for i in range(6):
            (tf.function(step) if graph else step)(i)
    except ValueError:
        pass
    hvd.allreduce(1.0, name="accuracy")
    text = ""
except tf.errors.OpError as error:
    text = error.message
report(text=text, seconds=time.time() - begin)
"""


def test_an_exception_that_one_rank_caught(run):
    """It goes on with other collectives than the others: an error on all that names both."""
    body = CAUGHT.replace("graph", "False")
    told(run(body, 2, timeout=200), "gradient bucket 0 of", "(step 4)", "'accuracy'")


FIT = """
model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global begin
        begin = time.time()
x, y = np.ones([NUMBER, 4], np.float32), np.ones([NUMBER, 1], np.float32)
if BROKEN:
    x[8:] = np.nan
callbacks = [Clock(), keras.callbacks.TerminateOnNaN(), hvd.callbacks.MetricAverageCallback()]
try:
    model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    text = ""
except tf.errors.OpError as error:
    text = error.message
report(text=text, seconds=time.time() - begin)
"""


@pytest.mark.parametrize("case", ["uneven", "nan"])
def test_fit_that_ends_on_one_rank(keras3_job, case):
    """One rank averages its metrics, the other its gradients: both are told what the other does."""
    number, broken = ("16 + 8 * rank", "False") if case == "uneven" else ("32", "rank == 1")
    body = FIT.replace("NUMBER", number).replace("BROKEN", broken)
    told(keras3_job(body, 2, timeout=200), "gradient bucket 0 of", "allreduce 'metric")


SLOW = """
v = tf.Variable(tf.ones([1000]), name="weights")
@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v)
    gradient = hvd.DistributedGradientTape(tape).gradient(loss, v)
    return tf.reduce_sum(gradient) + hvd.allreduce(loss, name="loss")
for i in range(3):
    if i == rank:
        time.sleep(2.5)
    step()
    if i == 1 - rank:
        time.sleep(2.5)
    hvd.allreduce(1.0)
report(done=True)
"""


def test_a_rank_that_is_only_slow(job):
    """It comes after a while: no error."""
    job(SLOW, 2, timeout=200).check(2)
