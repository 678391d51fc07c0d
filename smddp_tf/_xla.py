"""Collectives inside tf.function(jit_compile=True).

XLA runs no TensorFlow kernels, so the op is replaced by a custom call to ops/tf/xla_call.cc. Its
arguments travel as text. XLA keeps no program order between calls, even those with side effects, so
each call takes a token from the one before it: the value of the variable of _order.py, which
TensorFlow hands through nested functions, loops and conds.

A failure arrives as tf.errors.InternalError, whatever its kind, because XLA has no other class for
custom calls; the message is that of the other modes.
"""

from urllib.parse import quote

from smddp_tf import _native, _order

tf = _native.tensorflow()

from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # noqa: E402
from tensorflow.python.ops import control_flow_util  # noqa: E402

# Of ops/capi/smddp.h.
_KINDS = {"allreduce": 0, "broadcast": 1, "allgather": 2, "alltoall": 4, "reducescatter": 5}
_LAST_TOKEN = "smddp_tf_last_token"


def inside_jit() -> bool:
    """Whether the trace under way is for XLA."""
    if tf.executing_eagerly():
        return False
    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def refuse(what: str) -> None:
    """Raises the error of a collective that XLA programs cannot have."""
    raise tf.errors.UnimplementedError(
        None,
        None,
        f"{what} is not available inside tf.function(jit_compile=True), because its result's shape "
        "is not known when the program is compiled; compile that function with jit_compile=False",
    )


def _shape_text(tensor) -> str:
    if not tensor.shape.is_fully_defined():
        refuse(f"a collective of a tensor of shape {tensor.shape}")
    return "x".join(str(dim) for dim in tensor.shape.as_list())


def _read_token():
    if not _order.in_session():
        token = tf.raw_ops.ReadVariableOp(resource=_order.variable_handle(), dtype=tf.int32)
        token.set_shape([])
        return token
    # There the variable is not initialized; there are names (_order.py), and this function's order.
    last = tf.compat.v1.get_default_graph().get_collection_ref(_LAST_TOKEN)
    return last[0] if last else tf.constant(0, tf.int32)


def _write_token(token) -> None:
    if not _order.in_session():
        tf.raw_ops.AssignVariableOp(resource=_order.variable_handle(), value=token)
    else:
        tf.compat.v1.get_default_graph().get_collection_ref(_LAST_TOKEN)[:] = [token]


def call(
    kind: str,
    tensors: list,
    *,
    op=1,
    root=0,
    prescale=1.0,
    postscale=1.0,
    name="",
    process_set=0,
    result_shapes=None,
) -> list:
    """Emits one custom call for tensors of one dtype; results have the inputs' shapes, or these."""
    problem = _native.register_xla()
    if problem:
        raise tf.errors.UnimplementedError(
            None, None, f"collectives inside jit_compile=True are not available: {problem}"
        )
    fields = {
        "kind": _KINDS[kind],
        "dtype": tensors[0].dtype.as_datatype_enum,
        "op": int(op),
        "root": int(root),
        "prescale": repr(float(prescale)),
        "postscale": repr(float(postscale)),
        "process_set": int(process_set),
        "matching": _order.matching(),
        "name": quote(name, safe=""),
        "shapes": ",".join(_shape_text(tensor) for tensor in tensors),
    }
    _order.keep()
    token = _read_token()
    *results, token = gen_xla_ops.xla_custom_call_v2(
        operands=[*tensors, token],
        call_target_name="smddp_collective",
        backend_config=";".join(f"{key}={value}" for key, value in fields.items()),
        has_side_effect=True,
        result_dtypes=[*[tensor.dtype for tensor in tensors], tf.int32],
        result_shapes=[*(result_shapes or [tensor.shape for tensor in tensors]), []],
    )
    _write_token(token)
    return results
