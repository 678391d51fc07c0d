"""Gives a lookup table other contents, also for functions and datasets that were traced with it."""

from __future__ import annotations

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()


def _has_resource_of_its_own(table) -> bool:
    """Whether no other table shares its resource, as those of a file or without contents do."""
    initializer = getattr(table, "_initializer", None)
    own = type(initializer) is tf.lookup.KeyValueTensorInitializer
    return own and not getattr(table, "_is_anonymous", True)


def replaced(old, new):
    """The table to use from now on: `old` with the contents of `new` if that can be, else `new`.

    A StaticHashTable cannot be changed. But functions find its resource by a name, so another
    resource of that name takes its place in all of them.
    """
    if not _has_resource_of_its_own(old) or (old.key_dtype, old.value_dtype) != (
        new.key_dtype,
        new.value_dtype,
    ):
        return new
    keys, values = new.export()
    tf.raw_ops.DestroyResourceOp(resource=old.resource_handle, ignore_lookup_error=False)
    old._initializer = tf.lookup.KeyValueTensorInitializer(
        keys, values, old.key_dtype, old.value_dtype
    )
    old._create_resource()
    old._initialize()
    return old
