"""How tf.vectorized_map() and GradientTape.jacobian() convert the ops.

TensorFlow would call an op that it cannot convert in a loop, which keeps no order (order.py) with
the other collectives: a rank's iteration could meet another one of its peers.
"""

from smddp_tf._src.graph import order
from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

from tensorflow.python.ops.parallel_for import pfor  # noqa: E402


def _emit(loop, inputs) -> list:
    order.capture_order_token()
    dtypes = [output.dtype for output in loop.outputs]
    return list(pfor._create_op(loop.op_type, inputs, dtypes, attrs=loop.op.node_def.attr).outputs)


def _at_once(loop):
    """Converts an op that treats all elements alike: it takes the iterations' tensors, stacked."""
    loop.stack_inputs(range(len(loop.outputs)))  # all inputs but the number of the call
    return [pfor.wrap(output, True) for output in _emit(loop, [one.t for one in loop.inputs])]


def _in_turn(loop):
    """Converts an op to a loop that keeps program order.

    In a tf.cond all rows may take the other branch. What one without rows gives has a shape all the
    same, which only the op knows, so it runs once, for zeros.
    """
    count = loop.pfor.loop_len_vector[0]
    runs = tf.maximum(count, 1)
    rows = [_padded(one.t, runs - count) if one.is_stacked else one.t for one in loop.inputs]

    def body(i, *results):
        inputs = [t[i] if one.is_stacked else t for one, t in zip(loop.inputs, rows, strict=True)]
        outputs = _emit(loop, inputs)
        return i + 1, *[r.write(i, output) for r, output in zip(results, outputs, strict=True)]

    results = [tf.TensorArray(output.dtype, runs) for output in loop.outputs]
    _, *results = tf.while_loop(lambda i, *_: i < runs, body, (0, *results), parallel_iterations=1)
    return [pfor.wrap(result.stack()[:count], True) for result in results]


def _padded(rows, more):
    zeros = tf.zeros(tf.concat([[more], tf.shape(rows)[1:]], 0), rows.dtype)
    return tf.concat([rows, zeros], 0)


def _refuse(loop):
    raise ValueError(
        "DistributedGradientTape's gradient() reduces whole gradients, so it cannot be called "
        "inside tf.vectorized_map(); reduce what that returns"
    )


for _form in ("Smddp", "SmddpUnordered"):
    for _kind in ("Allreduce", "Broadcast"):
        pfor.RegisterPFor(_form + _kind)(_at_once)
    for _kind in ("Allgather", "Alltoall", "Reducescatter", "Barrier"):
        pfor.RegisterPFor(_form + _kind)(_in_turn)
for _kind in ("Begin", "Bucket", "End"):
    pfor.RegisterPFor("SmddpPlan" + _kind)(_refuse)
