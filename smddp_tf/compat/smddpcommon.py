"""The one function of smddpcommon that scripts use."""

from smddp_tf import _config


def setBucketSize(size: int) -> None:  # noqa: N802 - its name
    """Sets the size of gradient buckets, in bytes, for functions that are traced from now on."""
    _config.set_bucket_bytes(size)
