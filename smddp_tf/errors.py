"""Exceptions that the library raises from Python.

Failures inside a collective reach the script as TensorFlow's own classes:
``FailedPreconditionError`` (the ranks disagree; the job can go on), ``UnknownError`` (a peer died),
``DeadlineExceededError`` (a wait passed SMDDP_TIMEOUT_SECONDS), ``InvalidArgumentError``.
"""


class NotInitializedError(ValueError):
    """A function that needs the job was called before ``init()``."""

    def __init__(self) -> None:
        super().__init__("smddp_tf has not been initialized; call smddp_tf.init() first.")


class LibraryError(ImportError):
    """A native library is missing, does not load, or is of another version."""


class JobError(RuntimeError):
    """A rank died or did not come while process sets were changed; the message says who."""


class InitError(RuntimeError):
    """``init()`` could not connect the ranks; the message says why and what to do."""


class RanksDifferError(RuntimeError):
    """The ranks hold different weights or options; the message names them. On all ranks."""
