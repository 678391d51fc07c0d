"""Parts of scripts that run on every rank."""

import textwrap

COMMON = """
total = size * (size + 1) // 2
DTYPES = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.uint8, tf.int8, tf.int32, tf.int64]
WAYS = {
    "eager": lambda f: f,
    "function": lambda f: tf.function(f),
    "jit": lambda f: tf.function(f, jit_compile=True),
}
checks = 0
def equal(got, want, *what):
    global checks
    checks += 1
    got = tf.cast(got, tf.float64).numpy()
    want = np.broadcast_to(np.asarray(want, np.float64), got.shape)
    assert np.array_equal(got, want), (rank, what, got, want)
def refused(call, *words):
    try:
        call()
    except ValueError as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return
    raise SystemExit(f"accepted: {words}")
"""


def with_checks(body: str) -> str:
    """The script with total, DTYPES, WAYS, equal() and refused() in front."""
    return COMMON + textwrap.dedent(body)
