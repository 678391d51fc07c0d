"""What ranks do in test_interrupts.py."""

import os
import signal
import threading
import time

import machine_time
import tensorflow as tf
from checks import raises
from harness import rank, report, size

import smddp_tf as hvd


@tf.function
def _in_a_function(x):
    return hvd.allreduce(x, name="awaited")


def _in_a_step():
    v = tf.Variable(tf.ones([8]), name="weights")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v)
    hvd.DistributedGradientTape(tape).gradient(loss, v)


WAITS = {
    "an eager collective": lambda: hvd.allreduce(1.0, name="awaited"),
    "a function": lambda: _in_a_function(tf.ones([3])),
    "a step": _in_a_step,
    "join()": hvd.join,
    "an object": lambda: hvd.broadcast_object([1], root_rank=0, name="awaited"),
}


def _interrupt_soon(seconds=1.0):
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def _is_interrupted(wait) -> float:
    """Seconds from SIGINT to KeyboardInterrupt."""
    begin = machine_time.now()
    _interrupt_soon(0.7)
    try:
        wait()
    except KeyboardInterrupt:
        return machine_time.now() - begin - 0.7
    except RuntimeError as error:
        # TensorFlow's own, where a function was called: it names what it was replaced by.
        assert "REPLACED BY KeyboardInterrupt" in str(error), error
        return machine_time.now() - begin - 0.7
    raise AssertionError("no KeyboardInterrupt")


def end_their_waits():
    """Rank 1 is interrupted in each wait, the others are told, and all connect anew."""
    seconds = {}
    for what, wait in WAITS.items():
        # As a notebook does for each cell, after init().
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank == 1:
            seconds[what] = _is_interrupted(wait)
        else:
            time.sleep(1.5)
            with raises(tf.errors.UnknownError, "rank 1 was interrupted (SIGINT) while it waited"):
                hvd.allreduce(1.0, name="too late")
        hvd.shutdown()
        hvd.init()
        assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size
    report(seconds=seconds)


def leave_own_handlers_alone():
    """A script's handler runs, and the wait goes on; so does one without a wait."""
    seen = []
    signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    if rank == 1:
        _interrupt_soon(0.3)
    else:
        time.sleep(2)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupted = False
    try:
        if rank == 1:
            _interrupt_soon(0.3)
            time.sleep(3)
    except KeyboardInterrupt:
        interrupted = True
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == size
    report(seen=len(seen), interrupted=interrupted)
