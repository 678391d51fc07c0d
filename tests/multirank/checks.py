"""What bodies check with: numbers that must be equal, and calls that must be refused."""

import contextlib

import numpy as np
import tensorflow as tf
from harness import rank, size

total = size * (size + 1) // 2
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int32, tf.int64]
WAYS = {
    "eager": lambda f: f,
    "function": lambda f: tf.function(f),
    "jit": lambda f: tf.function(f, jit_compile=True),
}
_count = 0


def equal(got, want, *what) -> None:
    """Fails unless all numbers of `got` are those of `want`, which may be one for all."""
    global _count
    _count += 1
    got = tf.cast(got, tf.float64).numpy()
    want = np.broadcast_to(np.asarray(want, np.float64), got.shape)
    assert np.array_equal(got, want), (rank, what, got, want)


def checked() -> int:
    """How many times equal() was called."""
    return _count


@contextlib.contextmanager
def raises(kind, *words):
    """Fails unless the block raises this kind of error, with all the words in its message."""
    try:
        yield
    except kind as error:
        text = getattr(error, "message", None) or str(error)
        for word in words:
            assert word in text, (word, text)
        return
    raise SystemExit(f"accepted: {words}")


def refused(call, *words) -> None:
    """Fails unless the call raises ValueError with all the words."""
    with raises(ValueError, *words):
        call()
