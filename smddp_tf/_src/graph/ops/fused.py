"""Ops that do at once what several of TensorFlow's do."""

import inspect

from smddp_tf._src.graph import library, xla
from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()


def fused(kind: str, chain):
    """Returns a function that emits an op, or the TensorFlow ops whose results it computes.

    Inside jit, and where TensorFlow has a GPU, which has no kernel for the op, `chain` is called.
    The op's gradient is that of `chain` in any case.

    Args:
      kind: the op, "int8_sum" for SmddpInt8Sum.
      chain: takes tensors and, by keyword only, the op's attributes.
    """
    parameters = inspect.signature(chain).parameters.values()
    names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]

    def call(*inputs, **attributes):
        if xla.inside_jit() or tf.config.get_visible_devices("GPU"):
            return chain(*inputs, **attributes)
        with tf.device("/cpu:0"):
            return getattr(library.ops(), f"smddp_{kind}")(*inputs, **attributes)

    @tf.RegisterGradient("Smddp" + "".join(word.capitalize() for word in kind.split("_")))
    def _(node, *upstream):
        sources = [one for one in node.inputs if one.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = chain(*node.inputs, **{name: node.get_attr(name) for name in names})
        ends = zip(tf.nest.flatten(outputs), upstream, strict=True)
        pairs = [(o, u) for o, u in ends if o.dtype.is_floating and u is not None]
        grads = iter(tape.gradient([o for o, _ in pairs], sources, [u for _, u in pairs]))
        return [next(grads) if one.dtype.is_floating else None for one in node.inputs]

    return call
