"""Exceptions raised by the library's Python code.

Failures inside a collective are raised as TensorFlow's own exceptions:
``FailedPreconditionError`` (the ranks disagree; the job can continue), ``UnknownError`` (a peer
died), ``DeadlineExceededError`` (a wait exceeded SMDDP_TIMEOUT_SECONDS), ``InvalidArgumentError``.
"""


class NotInitializedError(ValueError):
    """A function that needs an initialized job was called before ``init()``."""

    # Inside tf.function, AutoGraph raises a class of its own in place of an error whose constructor
    # it does not know.
    __init__ = Exception.__init__

    def __str__(self) -> str:
        text = "smddp_tf has not been initialized; call smddp_tf.init() first."
        return super().__str__() or text


class LibraryError(ImportError):
    """A native library is missing, fails to load, or has a different version."""

    __init__ = Exception.__init__  # as above


class JobError(RuntimeError):
    """A rank died or timed out while process sets were being changed; the message names it."""


class InitError(RuntimeError):
    """``init()`` could not connect the ranks; the message gives the cause and the remedy."""


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks are to join an elastic job or to leave it; ``elastic.run`` lets them. On all ranks."""


class RanksDifferError(RuntimeError):
    """The ranks hold different weights or options; the message names them. Raised on all ranks."""


class RankFailedError(RuntimeError):
    """A rank of ``run()`` failed; the message has its traceback, or how it ended.

    The rank's own exception is the cause (``__cause__``) if it could be pickled.

    Attributes:
      rank: the first one that failed; None if it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank
