"""The ops of compressors give the bits of the TensorFlow ops in whose place they run."""

import numpy as np
import pytest
import tensorflow as tf

import smddp_tf as hvd

hvd.init()

from smddp_tf._src.graph.ops import int8, topk  # noqa: E402

RANKS = 3


def _bits(tensor):
    """What to compare: all NaNs are one."""
    array = tf.cast(tensor, tf.float64).numpy() if tensor.dtype.is_floating else tensor.numpy()
    return np.where(np.isnan(array), 12345.678, array)


def _same(got, want, *what):
    assert got.dtype == want.dtype, what
    assert np.array_equal(_bits(got), _bits(want)), (what, got, want)


def _gradients(dtype, count):
    """What RANKS ranks have: chunks of several scales, equal magnitudes, zeros, nan and inf."""
    x = np.random.RandomState(count).randn(RANKS, count)
    x *= np.repeat(10.0 ** np.arange(-3, 3), -(-count // 6))[:count]
    x[:, ::3] = np.round(x[:, ::3])
    if count > 900:
        x[0, 300], x[1, 600], x[2, 601], x[0, 602] = np.nan, np.inf, -np.inf, np.nan
        x[:, 768:900] = 0
    return tf.unstack(tf.cast(x, dtype))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1001])
def test_int8(dtype, count):
    """Every dtype and the lengths around a chunk's."""
    grads = _gradients(dtype, count)
    made = [int8.int8_quantize(grad) for grad in grads]
    for grad, (codes, scales) in zip(grads, made, strict=True):
        want_codes, want_scales = int8._quantize(grad)
        _same(scales, want_scales, "scales")
        _same(codes, want_codes, "codes")
    codes, scales = (tf.stack(one) for one in zip(*made, strict=True))
    for divisor in (1, RANKS):
        want = int8._sum(codes, scales, dtype=dtype, count=count, divisor=divisor)
        _same(int8.int8_sum(codes, scales, grads[0], divisor), want, "sum", divisor)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize("count", [1, 100, 1001, 10001])
def test_topk(dtype, count):
    """One, some, half and all of them."""
    grads = _gradients(dtype, count)
    kept = tf.constant(np.random.RandomState(1).randint(-2, 3, [count]), tf.float32)
    for k in sorted({1, -(-count // 100), -(-count // 2), count}):
        made = []
        for grad in grads:
            indices, values, rest = topk.topk_select(grad, kept, k)
            want_indices, want_values, want_rest = topk._select(grad, kept, k=k)
            _same(indices, want_indices, "indices", k)
            _same(values, want_values, "values", k)
            _same(rest, want_rest, "rest", k)
            made.append((indices, values))
        indices, values = (tf.stack(one) for one in zip(*made, strict=True))
        for divisor in (1, RANKS):
            want = topk._sum(indices, values, dtype=dtype, count=count, divisor=divisor)
            _same(topk.topk_sum(indices, values, grads[0], divisor), want, "sum", k, divisor)


def _quantized(x):
    codes, scales = int8.int8_quantize(x)
    return int8.int8_sum(codes[tf.newaxis], scales[tf.newaxis], x, 2)


def _selected(x):
    indices, values, _ = topk.topk_select(x, tf.zeros_like(x), 30)
    return topk.topk_sum(indices[tf.newaxis], values[tf.newaxis], x, 2)


@pytest.mark.parametrize("compressed", [_quantized, _selected])
def test_ways_to_run(compressed, monkeypatch):
    """The op in eager mode and in graphs, TensorFlow's ops in jit; one gradient of both."""
    x = tf.constant(np.random.RandomState(2).randn(300), tf.float32)
    weights = tf.range(300.0)
    kinds = {}
    results = {}

    def run():
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = compressed(x)
            loss = tf.reduce_sum(result * weights)
        return result, tape.gradient(loss, x)

    for way, options in {"graph": {}, "jit": {"jit_compile": True}}.items():
        function = tf.function(run, **options)
        nodes = function.get_concrete_function().graph.as_graph_def().node
        kinds[way] = {node.op for node in nodes if node.op.startswith("Smddp")}
        results[way] = function()
    results["eager"] = run()
    for module in (int8, topk):
        for name in ("_quantize", "_select", "_sum"):
            if hasattr(module, name):
                monkeypatch.setattr(module, f"_emit{name}", getattr(module, name))
    results["TensorFlow's"] = run()
    assert len(kinds["graph"]) == 2 and not kinds["jit"], kinds
    _same(results["eager"][0], results["TensorFlow's"][0])
    for way, (result, grad) in results.items():
        # XLA and TensorFlow's graphs multiply by the reciprocals of constants: two more roundings.
        np.testing.assert_allclose(result, results["eager"][0], rtol=2**-22, err_msg=way)
        np.testing.assert_allclose(grad, results["eager"][1], rtol=2**-20, err_msg=way)


def test_what_does_not_fit_is_refused():
    """Inputs of other shapes, and an index beyond the end."""
    x = tf.zeros([300])
    codes, scales = int8.int8_quantize(x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many chunks"):
        int8.int8_sum(codes[tf.newaxis], scales[tf.newaxis], tf.zeros([600]), 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another name"):
        topk.topk_select(x, tf.zeros([5]), 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot take 301 of 300"):
        topk.topk_select(x, x, 301)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1 .* index 300 .* 300 elements"):
        topk.topk_sum(tf.constant([[1], [300]]), tf.ones([2, 1]), x, 1)
