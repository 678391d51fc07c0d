"""What ranks do in test_silent_non_reduction.py without Keras."""

import numpy as np
import tensorflow as tf
from checks import raises
from harness import rank, report

import smddp_tf as hvd
from smddp_tf.errors import RanksDifferError


def _told(variables, **options):
    try:
        hvd.check_ranks_equal(variables, **options)
    except RanksDifferError as error:
        return str(error)
    return ""


def by_hand():
    one = tf.Variable(tf.ones([2, 2]), name="one")
    assert _told([one, tf.Variable(3)]) == "" and _told({"w": one, "rate": 0.1}) == ""
    odd = tf.Variable(tf.fill([3], 0.5 + (rank == 1)), name="odd_7")
    text = _told([one, odd])
    assert "variable odd differs on rank 1 (unlike ranks 0, 2)" in text, text
    many = _told([tf.Variable(1.0 * rank)])
    assert "differs on rank 1 and differs on rank 2 (unlike rank 0)" in many, many
    assert "rate: 0 on ranks 0, 2; 1 on rank 1" in _told({"rate": rank % 2})
    fewer = _told([one] * (1 + (rank == 0)))
    assert "variable one does not exist on ranks 1, 2 (unlike rank 0)" in fewer, fewer
    # An ulp, a dtype, a shape; and the ranks of a process set only.
    assert _told([tf.Variable(np.nextafter(np.float32(1), np.float32(2 * rank)))])
    assert _told([tf.Variable(np.array([0.0 if rank else -0.0]))])
    assert _told([tf.Variable(tf.zeros([1 + rank]))])
    pair = hvd.add_process_set([0, 2])
    assert rank == 1 or _told([odd], process_set=pair) == ""

    @tf.function
    def traced():
        hvd.check_ranks_equal([one])

    with raises(RuntimeError, "outside of tf.function"):
        traced()
    report(done=True)
