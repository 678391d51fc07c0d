"""Collectives inside tf.function(jit_compile=True).

XLA runs no TensorFlow kernels, so each op is replaced by a custom call to tf/xla/xla_call.cc. XLA
keeps no program order between calls, not even those with side effects. So each call takes a token
from its predecessor: the value of order.py's variable, which TensorFlow threads through nested
functions, loops and conds.

There are two kinds of custom call. Typed calls (TensorFlow 2.18 and later) are emitted as a small
StableHLO module, and failures raise the same exceptions as in other modes. Legacy calls, which XLA
is about to remove, serve TensorFlow 2.15 to 2.17: arguments are passed as text, and all failures
raise tf.errors.InternalError, since a legacy call has no other error class.
"""

import struct
from urllib.parse import quote

from smddp_tf._src.graph import library, order
from smddp_tf._src.graph.calls import call_number
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.jit import inside_jit, jit_scope  # noqa: F401 - part of this module's interface
from smddp_tf._src.job.enums import Kind
from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf._src.job.reduce_op import Sum
from smddp_tf.errors import LibraryError

tf = tensorflow()

from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # noqa: E402
from tensorflow.python.framework.func_graph import FuncGraph  # noqa: E402
from tensorflow.python.ops import control_flow_util  # noqa: E402
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileCondFuncGraph  # noqa: E402

# StableHLO's names of the dtypes.
_ELEMENTS = {
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.float32: "f32",
    tf.float64: "f64",
    tf.uint8: "ui8",
    tf.int8: "i8",
    tf.uint16: "ui16",
    tf.int16: "i16",
    tf.int32: "i32",
    tf.int64: "i64",
    tf.bool: "i1",
}
# Calling convention version of XlaCallModule; the one that JAX has emitted since 2023.
_MODULE_VERSION = 9
_TARGET = "smddp_collective"
# See _alone().
_CONFUSES_RESULTS = tuple(map(int, tf.__version__.split(".")[:2])) >= (2, 23)
_TOKENS = "_smddp_tf_tokens"


def refuse(what: str) -> None:
    """Raises the error for a collective that is not supported inside XLA."""
    raise tf.errors.UnimplementedError(
        None,
        None,
        f"{what} is not available inside tf.function(jit_compile=True), because its result's shape "
        "is not known when the program is compiled; compile that function with jit_compile=False",
    )


def _static_shape(tensor) -> list:
    if not tensor.shape.is_fully_defined():
        refuse(f"a collective of a tensor of shape {tensor.shape}")
    return tensor.shape.as_list()


def _passes_token() -> bool:
    """Whether calls of the graph pass the token to each other, without the variable.

    A compiled loop's condition may read the variable, as its body left it, and not write it.

    Raises:
      tf.errors.UnimplementedError: in a function or branch of such a condition, which nothing would
        order with the condition's other calls.
    """
    graph = tf.compat.v1.get_default_graph()
    if order.in_session() or isinstance(graph, WhileCondFuncGraph):
        return True
    while isinstance(graph, FuncGraph):
        graph = graph.outer_graph
        compiled = control_flow_util.GraphOrParentsInXlaContext(graph)
        if isinstance(graph, WhileCondFuncGraph) and compiled:
            raise tf.errors.UnimplementedError(
                None,
                None,
                "inside tf.function(jit_compile=True) a function or branch in a loop's condition "
                "cannot have a collective; call it in the loop's body, and give the condition its "
                "result as a loop variable",
            )
    return False


def _read_token():
    token = _tokens().get(_control_flow())
    if token is not None:
        return token
    if not order.in_session():
        token = tf.raw_ops.ReadVariableOp(resource=order.variable_handle(), dtype=tf.int64)
        token.set_shape([])
        return token
    # In a TF1 session the variable is not initialized. Collectives are matched by name there, so
    # only order within this function is needed: pass the token from call to call. Its value is the
    # number of the function's call, which becomes part of the name.
    return call_number()


def _write_token(token) -> None:
    if _passes_token():
        _tokens()[_control_flow()] = token
    else:
        tf.raw_ops.AssignVariableOp(resource=order.variable_handle(), value=token)


def _tokens() -> dict:
    """The last token of each loop or branch of TF1's in the graph: others cannot use it."""
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _TOKENS):
        setattr(graph, _TOKENS, {})
    return getattr(graph, _TOKENS)


def _control_flow():
    return tf.compat.v1.get_default_graph()._get_control_flow_context()


def _attribute(value) -> str:
    """Formats a Python value as an MLIR attribute."""
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float):
        return f"0x{struct.pack('>d', value).hex()} : f64"
    plain = (
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:02X}"
        for byte in value.encode()
    )
    return '"' + "".join(plain) + '"'


def _layouts(shapes) -> str:
    """Row-major for all tensors.

    Without it XLA may choose, and the call is not told: on a GPU a convolution's kernel gradient
    lies otherwise, so the reduced one would be permuted.
    """
    return ", ".join(
        f"dense<{list(reversed(range(len(shape)))) or ''}> : tensor<{len(shape)}xindex>"
        for shape in shapes
    )


def _type(dtype, shape) -> str:
    return f"tensor<{''.join(f'{dim}x' for dim in shape)}{_ELEMENTS[dtype]}>"


def _module(module: str, operands, dtypes, shapes) -> list:
    """Emits a StableHLO module, which TensorFlow inlines into the program."""
    return gen_xla_ops.xla_call_module(
        operands,
        version=_MODULE_VERSION,
        module=module,
        Sout=shapes,
        Tout=dtypes,
        # The call exists for CUDA too (ops/tf/xla/). A list of both would need another argument.
        platforms=["CPU"],
        disabled_checks=["platform"],
    )


def _alone(result):
    """The result as that of a module which has no other.

    Keras with a loss scale branches on whether gradients are finite. Where a branch depends on one
    of several results, builds of TensorFlow 2.23 end the process while they compile: XLA asks
    whether it knows the value, and takes one result for all of them.
    """
    type_ = _type(result.dtype, result.shape.as_list())
    module = f"""module @smddp {{
  func.func public @main(%a: {type_}) -> {type_} {{
    %b = stablehlo.optimization_barrier %a : {type_}
    return %b : {type_}
  }}
}}"""
    return _module(module, [result], [result.dtype], [result.shape.as_list()])[0]


def _typed_call(operands, fields, dtypes, shapes) -> list:
    """Emits the call as a StableHLO module."""
    given = [one.shape.as_list() for one in operands]
    takes = [_type(one.dtype, shape) for one, shape in zip(operands, given, strict=True)]
    gives = [_type(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    names = [f"%a{i}" for i in range(len(operands))]
    results = [f"%r#{i}" for i in range(len(gives))]

    attributes = ", ".join(f"{key} = {_attribute(value)}" for key, value in fields.items())
    module = f"""module @smddp {{
  func.func public @main({", ".join(map("{}: {}".format, names, takes))}) -> ({", ".join(gives)}) {{
    %r:{len(gives)} = stablehlo.custom_call @{_TARGET}({", ".join(names)}) {{
      api_version = 4 : i32, has_side_effect = true, backend_config = {{{attributes}}},
      operand_layouts = [{_layouts(given)}], result_layouts = [{_layouts(shapes)}]
    }} : ({", ".join(takes)}) -> ({", ".join(gives)})
    return {", ".join(results)} : {", ".join(gives)}
  }}
}}"""
    results = _module(module, operands, dtypes, shapes)
    return [*map(_alone, results[:-1]), results[-1]] if _CONFUSES_RESULTS else results


def _legacy_call(operands, fields, dtypes, shapes) -> list:
    inputs = ["x".join(map(str, one.shape.as_list())) for one in operands[:-1]]
    quoted = {key: quote(fields[key], safe="") for key in ("name", "description")}
    texts = {**fields, **quoted, "shapes": ",".join(inputs)}
    return gen_xla_ops.xla_custom_call_v2(
        operands=operands,
        call_target_name=_TARGET,
        backend_config=";".join(f"{key}={value}" for key, value in texts.items()),
        has_side_effect=True,
        result_dtypes=dtypes,
        result_shapes=shapes,
    )


def call(
    kind: str,
    tensors: list,
    *,
    group: ProcessGroup,
    op=Sum,
    root=0,
    prescale=1.0,
    postscale=1.0,
    name="",
    description="",
    result_shapes=None,
) -> list:
    """Emits one custom call for tensors of one dtype; result_shapes default to the inputs'."""
    try:
        emit = {"typed": _typed_call, "legacy": _legacy_call}[library.xla_call_kind()]
    except LibraryError as error:
        raise tf.errors.UnimplementedError(
            None,
            None,
            f"collectives inside jit_compile=True are not available in TensorFlow "
            f"{tf.__version__} ({error}); compile with jit_compile=False",
        ) from error

    # Their results' shapes depend on it.
    needs_place = kind in ("allgather", "alltoall", "reducescatter")
    fields = {
        "kind": int(Kind[kind.upper()]),
        "dtype": int(tensors[0].dtype.as_datatype_enum),
        "op": int(op),
        "root": int(root),
        "prescale": float(prescale),
        "postscale": float(postscale),
        "process_set": group.id,
        "matching": int(order.matching()),
        "rank": group.rank if needs_place else 0,
        "size": group.size if needs_place else 0,
        "name": name,
        "description": description,
    }

    shapes = [_static_shape(tensor) for tensor in tensors]

    order.capture_order_token()
    token = _read_token()
    *results, token = emit(
        [*tensors, token],
        fields,
        [*[tensor.dtype for tensor in tensors], tf.int64],
        [*(result_shapes or shapes), []],
    )
    _write_token(token)
    return results
