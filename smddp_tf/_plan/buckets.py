"""The plan of a step's gradients: which are reduced together, and in which order.

Pure: it knows names, sizes and kinds, and imports no TensorFlow. Every rank makes its own plan
from its own gradients; equal inputs give equal plans, and the fingerprint tells the engine whether
they were equal.
"""

import dataclasses
import hashlib
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class GradientSpec:
    """One gradient as the plan sees it."""

    name: str
    dtype: str
    shape: tuple  # of int or None
    nbytes: int  # 0 when not known
    kind: str = "dense"  # or "sparse" or "none"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Buckets of gradient indices, in the order in which they are reduced."""

    buckets: tuple
    fingerprint: int
    description: str


def normal_name(name: str) -> str:
    """A variable's name without what differs between ranks that built other models before.

    Keras numbers layers per process: ``dense_3/kernel:0`` here is ``dense_1/kernel:0`` there.
    """
    parts = name.split(":")[0].split("/")
    return "/".join(re.sub(r"_\d+$", "", part) for part in parts)


def _line(spec: GradientSpec) -> str:
    if spec.kind == "none":
        return f"{normal_name(spec.name)} has no gradient (None)"
    shape = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    sparse = " sparse" if spec.kind == "sparse" else ""
    return f"{normal_name(spec.name)} {spec.dtype} [{shape}]{sparse}"


def _by_size(specs, indices, bucket_bytes: int, first_bucket_bytes: int) -> list:
    """Cuts indices, in order, into buckets of one dtype and about bucket_bytes."""
    buckets: list = []
    open_buckets: dict = {}  # dtype -> (bucket, bytes)
    for i in indices:
        spec = specs[i]
        bucket, held = open_buckets.get(spec.dtype, (None, 0))
        first = bucket is not None and bucket is buckets[0]
        limit = min(first_bucket_bytes, bucket_bytes) if first else bucket_bytes
        if bucket is None or held + spec.nbytes > limit:
            bucket, held = [], 0
            buckets.append(bucket)
        bucket.append(i)
        open_buckets[spec.dtype] = (bucket, held + spec.nbytes)
    return buckets


def _one_dtype_each(specs, groups) -> list:
    """Splits every group by dtype, keeping order."""
    buckets = []
    for group in groups:
        by_dtype: dict = {}
        for i in group:
            by_dtype.setdefault(specs[i].dtype, []).append(i)
        buckets.extend(by_dtype.values())
    return buckets


def _even_groups(indices: list, num_groups: int) -> list:
    per_group, extra = divmod(len(indices), num_groups)
    groups, at = [], 0
    for g in range(num_groups):
        n = per_group + (1 if g < extra else 0)
        if n:
            groups.append(indices[at : at + n])
        at += n
    return groups


def make_plan(
    specs: Sequence[GradientSpec],
    *,
    bucket_bytes: int,
    first_bucket_bytes: int,
    num_groups: int = 0,
    groups: Sequence[Sequence[int]] | None = None,
    options: str = "",
) -> Plan:
    """Makes the plan.

    Args:
      specs: the gradients in creation order (that of the sources).
      bucket_bytes: about the size of a bucket.
      first_bucket_bytes: that of the first one.
      num_groups: > 0: so many buckets, evenly by count, instead of by size.
      groups: indices that belong together; the rest is cut by size.
      options: whatever else must be equal on all ranks (op, scales, compression).

    Returns:
      The plan. Only "dense" gradients are in its buckets; the last created come first, because
      the backward pass makes them first.
    """
    dense = [i for i, spec in enumerate(specs) if spec.kind == "dense"]
    backward = dense[::-1]
    if num_groups > 0:
        buckets = _one_dtype_each(specs, _even_groups(backward, num_groups))
    elif groups is not None:
        wanted = set(dense)
        grouped = [[i for i in group if i in wanted] for group in groups]
        rest = [i for i in backward if not any(i in group for group in grouped)]
        buckets = _one_dtype_each(specs, [group for group in grouped if group])
        buckets += _by_size(specs, rest, bucket_bytes, first_bucket_bytes)
        buckets.sort(key=lambda bucket: -max(bucket))
    else:
        buckets = _by_size(specs, backward, bucket_bytes, first_bucket_bytes)
    lines = [_line(spec) for spec in specs]
    digest = hashlib.sha256(repr((lines, buckets, options)).encode()).digest()
    return Plan(
        buckets=tuple(tuple(bucket) for bucket in buckets),
        fingerprint=int.from_bytes(digest[:8], "little", signed=True),
        description="\n".join([*lines, f"options: {options}"]) + "\n",
    )
