"""Bodies of test_sessions.py: what sessions of TF1 graphs need besides an order."""

import numpy as np
import tensorflow as tf
from harness import rank, report, size

import smddp_tf as hvd

v1 = tf.compat.v1


def _variables(use_resource) -> list:
    """Three, of two dtypes, that hold the rank."""
    kinds = [("a", [2, 3], tf.float32), ("b", [4], tf.int64), ("c", [], tf.float32)]
    return [
        v1.get_variable(
            name,
            shape,
            dtype,
            initializer=v1.constant_initializer(rank),
            use_resource=use_resource,
        )
        for name, shape, dtype in kinds
    ]


def variables(use_resource):
    """What broadcast_variables() and broadcast_() return assigns when a session runs it."""
    v1.disable_eager_execution()
    held = _variables(use_resource)
    from_last = hvd.broadcast_variables(held, size - 1)
    from_first = hvd.broadcast_(held, 0)
    with tf.control_dependencies([from_last]):
        after = tf.identity(held[0])
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        assert all((one == rank).all() for one in session.run(held))
        assert session.run(from_last) is None
        assert all((one == size - 1).all() for one in session.run(held))
        session.run(v1.global_variables_initializer())
        assert all((one == 0).all() for one in session.run(from_first))
        assert all((one == 0).all() for one in session.run(held))
        session.run(v1.global_variables_initializer())
        assert (session.run(after) == size - 1).all()
        assert session.run(hvd.broadcast_variables([held[0]], 0)) is None
    report(done=True)


def gradient_of_broadcast():
    """The only thing that the session is asked for."""
    with tf.Graph().as_default(), v1.Session() as session:
        for root in range(size):
            x = tf.ones([5]) * rank
            slope = v1.gradients(hvd.broadcast(x, root), x, tf.ones([5]) * (rank + 1.0))[0]
            average = (size + 1) / 2
            wanted = average if rank == root else 0.0
            assert session.run(slope).tolist() == [wanted] * 5, (rank, root)
    report(done=True)


def _exchange():
    own = {"rank": rank, "text": "x" * rank}
    assert hvd.broadcast_object(own, size - 1) == {"rank": size - 1, "text": "x" * (size - 1)}
    assert hvd.broadcast_object_fn(0)(own) == {"rank": 0, "text": ""}
    assert hvd.allgather_object(own) == [{"rank": r, "text": "x" * r} for r in range(size)]


def objects():
    """Before a session, in one whose graph is finalized, and between its steps."""
    v1.disable_eager_execution()
    _exchange()
    step = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum)
    with v1.train.MonitoredTrainingSession() as session:
        for _ in range(3):
            _exchange()
            assert session.run(step) == [size * (size + 1) / 2]
        assert hvd.broadcast_object(np.arange(3) * rank, 1, session=session).tolist() == [0, 1, 2]
    with tf.Graph().as_default(), v1.Session():
        _exchange()
        assert not v1.get_default_graph().get_operations()
    report(done=True)
