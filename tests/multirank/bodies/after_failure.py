"""What ranks do in test_after_failure.py."""

import os
import sys
import threading
import time

import machine_time
import numpy as np
import tensorflow as tf
from harness import await_reports, rank, size
from harness import report as report_alone

import smddp_tf as hvd
from smddp_tf._src.graph import plan_ops
from smddp_tf._src.job import process_sets
from smddp_tf._src.job.reduction import Reduction
from smddp_tf._src.plan import buckets

LIMIT = 20  # of what the ranks still have to do, in seconds


def report(among=size, **values):
    """Reports, and lets the others do so; so many do."""
    report_alone(**values)
    await_reports(among, LIMIT)


def _sentence(error) -> str:
    return error.message.partition("}} ")[2].partition(" [Op:")[0]


def _failure(call):
    """What the first call that fails says."""
    try:
        for _ in range(10**9):
            call()
    except tf.errors.OpError as error:
        return _sentence(error)


def fails_in_a_set():
    half = hvd.add_process_set([0, 2])
    hvd.barrier()
    begin = machine_time.now()
    if rank == 2:  # on another node, and ends in good order
        time.sleep(1)
        begin = machine_time.now()
        hvd.shutdown()
        report(text="", again="", seconds=machine_time.now() - begin)
    else:
        options = {"process_set": half} if rank == 0 else {}
        text = _failure(lambda: hvd.allreduce(1.0, **options))
        seconds = machine_time.now() - begin - 1
        if rank == 0:
            time.sleep(4)  # the script went on without a collective
        report(text=text, again=_failure(lambda: hvd.allreduce(1.0)), seconds=seconds)


def hears_the_cause():
    hvd.barrier()
    texts = []
    for name in ("late", "late", "other"):
        begin = machine_time.now()
        if rank == size - 1 and not texts:
            time.sleep(7)
        try:
            hvd.allreduce(1.0, name=name)
        except tf.errors.OpError as error:
            texts.append(_sentence(error))
    report(texts=texts, seconds=machine_time.now() - begin)


class _Held:
    """A step whose second bucket is there long before the first one, which is computed slowly."""

    def __init__(self):
        specs = [buckets.GradientSpec(f"g{i}", "float32", (4,), 16) for i in range(2)]
        self.plan = buckets.make_plan(specs, bucket_bytes=16, first_bucket_bytes=16)
        assert len(self.plan.buckets) == 2
        self.wait, self.fails = 0, False
        self._step = tf.function(self._trace)

    def _slow(self):
        time.sleep(self.wait)
        if self.fails:
            raise RuntimeError("the gradient of bucket 0 cannot be computed")
        return np.ones(4, np.float32)

    def _trace(self):
        group = process_sets.check_process_set(hvd.global_process_set)
        run = plan_ops.plan_begin(self.plan, "tape", group)
        first = tf.ensure_shape(tf.numpy_function(self._slow, [], tf.float32), [4])
        # Without `earlier`, the later bucket is there long before the first one.
        bucket, total = plan_ops.plan_bucket, Reduction(hvd.Sum, "tape", group)
        late, token1, _ = bucket(run, [tf.ones([4])], [], 1, total)
        early, token0, _ = bucket(run, [first], [], 0, total)
        plan_ops.plan_end(run, [token0, token1], group)
        return early[0] + late[0]

    def check(self):
        value = tf.reduce_sum(self._step())
        assert float(value) == 8 * size, value
        hvd.barrier()

    def failure(self, begin) -> dict:
        try:
            self._step()
            text = ""
        except tf.errors.OpError as error:
            text = error.message
        return {"text": text, "seconds": machine_time.now() - begin}


def held_buckets(end, fails):
    """Rank 1 ends by `end` while rank 0's first gradient is computed, or fails to be."""
    held = _Held()
    held.check()
    held.wait, held.fails = 2, fails
    begin = machine_time.now()
    if rank == 1:
        if end == "shutdown":
            hvd.shutdown()
            await_reports(1, LIMIT)
            sys.exit(0)
        os.kill(os.getpid(), 19)  # stopped, so that mpirun does not end the others
    report(among=1, **held.failure(begin))


def held_buckets_and_shutdown():
    held = _Held()
    held.check()
    held.wait, held.fails = 2, rank == 1
    threading.Timer(1, hvd.shutdown).start()
    report(**held.failure(machine_time.now()))


def _fail_and_shut_down() -> float:
    """The seconds that shutdown() took."""
    hvd.allreduce(1.0)
    try:
        if rank == 0:
            hvd.allreduce(1.0, name="late")
        else:
            time.sleep(7)
    except tf.errors.DeadlineExceededError:
        pass
    begin = machine_time.now()
    hvd.shutdown()
    return machine_time.now() - begin


def _report_init(left, init):
    begin = machine_time.now()
    try:
        init()
        text = str(float(hvd.allreduce(1.0, op=hvd.Sum)))
    except hvd.errors.InitError as error:
        text = str(error)
    report(left=left, text=text, seconds=machine_time.now() - begin)


def init_again():
    _report_init(_fail_and_shut_down(), hvd.init)


def init_again_alone():
    left = _fail_and_shut_down()
    if rank == 1:
        await_reports(1, LIMIT)
        report(left=left, text="slept", seconds=0)
        sys.exit(0)

    def twice():
        try:
            hvd.init()
        except hvd.errors.InitError as error:
            assert "not all of the 2 ranks called init() within 10 s" in str(error), error
            hvd.init()

    _report_init(left, twice)


def shuts_down_beside_a_failure():
    hvd.barrier()
    half = hvd.add_process_set([0, 1])
    hvd.barrier()
    if rank == 0:
        try:
            hvd.allreduce(1.0, process_set=half)  # rank 1 does not come
        except tf.errors.OpError:
            time.sleep(60)
    else:
        time.sleep(1)
    begin = machine_time.now()
    hvd.shutdown()
    report(among=size - 1, seconds=machine_time.now() - begin)


def shuts_down_beside_work():
    hvd.barrier()
    if rank == 0:
        time.sleep(7)
    begin = machine_time.now()
    hvd.shutdown()
    report(seconds=machine_time.now() - begin)


def catches_an_exception():
    v = tf.Variable(tf.ones([1000]), name="weights")

    def step(i):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v)
        if i == 3 and rank == 1:
            raise ValueError("the data are broken")
        return hvd.DistributedGradientTape(tape).gradient(loss, v)

    begin = machine_time.now()
    try:
        try:
            for i in range(6):
                step(i)
        except ValueError:
            pass
        hvd.allreduce(1.0, name="accuracy")
        text = ""
    except tf.errors.OpError as error:
        text = error.message
    report(text=text, seconds=machine_time.now() - begin)


def is_only_slow():
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
    report_alone(done=True)
