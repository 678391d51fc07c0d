"""Ops that do at once what several of TensorFlow's do."""

import contextlib
import inspect

from smddp_tf._graph import gpu_compressors, library, xla
from smddp_tf._graph.framework import tensorflow

tf = tensorflow()


def fused(kind: str, chain):
    """Returns a function that emits an op, or the TensorFlow ops whose results it computes.

    Inside jit, and where TensorFlow has a GPU that cannot run the op (gpu_compressors.py), it is
    `chain` that is called. The op's gradient is that of `chain` in any case.

    Args:
      kind: the op, "int8_sum" for SmddpInt8Sum.
      chain: takes tensors and, by keyword only, the op's attributes.
    """
    parameters = inspect.signature(chain).parameters.values()
    names = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]

    def call(*inputs, **attributes):
        gpus = tf.config.get_visible_devices("GPU")
        if xla.inside_jit() or (gpus and gpu_compressors.problem()):
            return chain(*inputs, **attributes)
        # With kernels for both, TensorFlow places it, as it does its own.
        with contextlib.nullcontext() if gpus else tf.device("/cpu:0"):
            return getattr(library.ops(), f"smddp_{kind}")(*inputs, **attributes)

    @tf.RegisterGradient("Smddp" + "".join(word.capitalize() for word in kind.split("_")))
    def _(node, *upstream):
        sources = [one for one in node.inputs if one.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            outputs = chain(*node.inputs, **{name: node.get_attr(name) for name in names})
        pairs = zip(tf.nest.flatten(outputs), upstream, strict=True)
        pairs = [(o, u) for o, u in pairs if o.dtype.is_floating and u is not None]
        grads = iter(tape.gradient([o for o, _ in pairs], sources, [u for _, u in pairs]))
        return [next(grads) if one.dtype.is_floating else None for one in node.inputs]

    return call
