"""Emits an op, or inside jit its custom call, in program order."""

from smddp_tf._src.graph import library, order, xla
from smddp_tf._src.graph.calls import call_number
from smddp_tf._src.graph.eager_names import attribute_for
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.graph.names import unique_name
from smddp_tf._src.job.enums import Matching
from smddp_tf._src.job.process_sets import ProcessGroup
from smddp_tf._src.job.reduction import Reduction

tf = tensorflow()
_ops = library.ops()

# The gradients of custom calls, by kind: gradient(upstream, **arguments) returns the inputs'. An
# op's gradient is made of other ops, and those have gradients too, so gradients.py fills this.
jit_gradients: dict = {}


def _run(op, arguments):
    """Runs an op eagerly; Ctrl-C while it waits is a KeyboardInterrupt."""
    try:
        return op(**arguments)
    except RuntimeError as error:
        # It came while TensorFlow made its own error, of the wait that had ended because of it.
        if "REPLACED BY KeyboardInterrupt" not in str(error):
            raise
        raise KeyboardInterrupt from error


def emit(kind: str, **arguments):
    """Emits an op that keeps program order. Returns its outputs."""
    library.check_async_ops()
    op = getattr(_ops, f"smddp_{kind}")
    if tf.executing_eagerly() and library.only_cpus():
        return _run(op, arguments)
    order.capture_order_token()
    with library.where_tensors_are():
        return op(**arguments)


def emit_matched(kind: str, group: ProcessGroup, **arguments):
    """Emits a collective, in the form that suits the order here. Returns its outputs.

    In program order, the op blocks a thread of TensorFlow's until it is done, as do eager ones; in
    threads and TF1 sessions, it does not (ops/tf/runtime/op_call.h).
    """
    matching, eager = order.matching(), tf.executing_eagerly()
    if matching == Matching.BY_NAME:
        arguments["tensor_name"] = unique_name(arguments["tensor_name"], group)
    if matching != Matching.IN_ORDER and not eager:
        in_session = matching == Matching.BY_NAME
        arguments["call"] = call_number() if in_session else tf.constant(0, tf.int64)
        kind = f"unordered_{kind}"
    if eager:
        arguments["tensor_name"] = attribute_for(arguments["tensor_name"])
    return emit(kind, process_set=group.id, matching=int(matching), **arguments)


def call_in_jit(
    kind: str,
    tensors: list,
    *,
    call_arguments=None,
    description="",
    result_shapes=None,
    **arguments,
) -> list:
    """Emits a custom call that has a gradient. Returns its results.

    Args:
      kind: the kind of collective.
      tensors: of one dtype.
      call_arguments: xla.call()'s; by default `arguments`.
      description: what else must be equal on all ranks.
      result_shapes: default to the inputs'.
      arguments: those of the kind's function in jit_gradients.
    """
    fixed = {"result_shapes": result_shapes, "description": description}

    @tf.custom_gradient
    def call(*inputs):
        def gradient(*upstream):
            with xla.jit_scope():
                return jit_gradients[kind](list(upstream), **arguments)

        return xla.call(kind, list(inputs), **fixed, **(call_arguments or arguments)), gradient

    return list(call(*tensors))


def factor_attribute(factor: float) -> str:
    """A pre- or postscale factor as the ops have it: a text that tells all bits."""
    return repr(float(factor))


def emit_reduction(kind: str, tensors: list, reduction: Reduction, result_shapes=None) -> list:
    """Emits a reduction of tensors of one dtype: the op, or its custom call inside jit."""
    if xla.inside_jit():
        return call_in_jit(
            kind,
            tensors,
            call_arguments={
                "op": reduction.op,
                "name": reduction.name,
                "group": reduction.group,
                "prescale": reduction.prescale,
                "postscale": reduction.postscale,
            },
            description=reduction.compared,
            result_shapes=result_shapes,
            reduction=reduction,
        )
    return emit_matched(
        kind,
        reduction.group,
        tensors=tensors,
        reduce_op=int(reduction.op),
        tensor_name=reduction.name,
        prescale=factor_attribute(reduction.prescale),
        postscale=factor_attribute(reduction.postscale),
        description=reduction.compared,
    )
