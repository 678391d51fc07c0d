"""The ops that compressors call."""

import importlib


def compressor_ops():
    """Their module, at the first call: users name compressors before TensorFlow is imported."""
    return importlib.import_module("smddp_tf._graph.ops.compression")
