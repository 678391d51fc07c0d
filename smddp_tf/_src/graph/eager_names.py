"""Keeps TensorFlow from caching a kernel for each name of an eager collective.

TensorFlow keeps the kernel of every eager op that differs in an attribute, about 36 KB each, until
the process ends. So only the first names are attributes; a script with a name for each step has the
others handed to the kernel apart, which runs on the thread that calls the op.
"""

import warnings

from tensorflow.python.eager import context, record

from smddp_tf._src.job import native

_ATTRIBUTES = 256  # names that may be attributes: more than a script has that does not count them
_MANY = 1000
_names: set = set()  # those that were attributes


def attribute_for(name: str) -> str:
    """The name's attribute for an eager op that is called next on this thread.

    Returns:
      The name; or "", if it has been handed over. A gradient tape keeps the attributes, from which
      the gradient gets its name, and asynchronous execution runs ops on another thread: there it
      is always the name, with a warning when they are many.
    """
    if name in _names:
        return name
    if len(_names) >= _ATTRIBUTES and not _needs_attribute():
        native.core().smddp_name_next(name.encode())
        return ""
    _names.add(name)
    if len(_names) == _MANY:
        warnings.warn(
            f"eager collectives under a gradient tape had {_MANY} distinct names, the last of them "
            f"{name!r}; TensorFlow keeps about 36 KB of each until the process ends, so give name= "
            "no number that changes with the step",
            RuntimeWarning,
            stacklevel=2,
        )
    return name


def _needs_attribute() -> bool:
    return record.could_possibly_record() or context.context().executor.is_async()
