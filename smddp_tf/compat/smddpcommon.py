"""smddpcommon, reduced to the one function that scripts use."""

from smddp_tf._src.job import config


def setBucketSize(size: int) -> None:  # noqa: N802 - its name
    """Sets the size of gradient buckets, in bytes, for functions traced afterwards."""
    config.set_bucket_bytes(size)
