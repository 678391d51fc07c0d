"""The TensorFlow ops: loading, program order, XLA. Lower packages do not import TensorFlow."""
