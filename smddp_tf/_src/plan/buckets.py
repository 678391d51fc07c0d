"""Makes the plan of a step: assigns gradients to buckets and orders the buckets.

Pure: it sees names, sizes and kinds, and does not import TensorFlow. Every rank makes its plan from
its own gradients, without communication. Equal inputs give equal plans; the engine compares
fingerprints to detect unequal ones.
"""

import dataclasses
import functools
import hashlib
import itertools
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class GradientSpec:
    """A gradient, as input of the plan."""

    name: str
    dtype: str
    shape: tuple  # of int or None
    nbytes: int  # 0 if unknown
    kind: str = "dense"  # or "sparse", or "none" for a missing gradient
    parts_of: str = ""  # the dtype, if what is reduced is the parts of complex numbers


@dataclasses.dataclass(frozen=True)
class Plan:
    """Buckets of gradient indices, in reduction order."""

    buckets: tuple
    fingerprint: int
    description: str


def normal_name(name: str) -> str:
    """A variable's name without Keras's layer numbers; see normal_names()."""
    return "/".join(part for part, _ in _numbered(name))


def normal_names(names: Sequence[str]) -> list:
    """The names of a step's variables, as if Keras had numbered only their layers, from 0.

    Keras numbers layers per process, so a rank that built another model first has
    ``dense_3/kernel:0`` where its peers have ``dense_1/kernel:0``. The order of these numbers is
    the same on all ranks, so a rank with its variables in another order has other names here.
    """
    split = [_numbered(name) for name in names]
    used: dict = {}
    for part, number in itertools.chain(*split):
        used.setdefault(part, set()).add(number)
    places = {
        (part, number): f"_{place}" if place else ""
        for part, numbers in used.items()
        for place, number in enumerate(sorted(numbers))
    }
    return ["/".join(part + places[part, n] for part, n in parts) for parts in split]


@functools.lru_cache(maxsize=1 << 14)  # an eager step asks for the same names each time
def _numbered(name: str) -> tuple:
    """Pairs (part, number) of a name's parts: "a_2/b:0" -> (("a", 2), ("b", 0))."""
    pairs = []
    for part in name.split(":")[0].split("/"):
        found = re.search(r"_(\d+)$", part)
        pairs.append((part[: found.start()], int(found[1])) if found else (part, 0))
    return tuple(pairs)


def _line(spec: GradientSpec, name: str) -> str:
    if spec.kind == "none":
        return f"{name} has no gradient (None)"
    shape = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
    sparse = " sparse" if spec.kind == "sparse" else ""
    parts = f" parts of {spec.parts_of}" if spec.parts_of else ""
    return f"{name} {spec.dtype} [{shape}]{sparse}{parts}"


def _by_size(specs, indices, bucket_bytes: int, first_bucket_bytes: int) -> list:
    """Splits indices, in order, into buckets of one dtype and up to bucket_bytes each.

    A larger gradient gets a bucket of its own.
    """
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
    """Splits every group by dtype, preserving order."""
    buckets: list = []
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


def _ranges(buckets) -> str:
    """Buckets in few words: [[5, 4, 3], [1], [2, 0]] -> "5-3 | 1 | 2 0"."""
    return " | ".join(
        " ".join(
            f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0])
            for run in _descending_runs(bucket)
        )
        for bucket in buckets
    )


def _descending_runs(indices) -> list:
    runs: list = []
    for i in indices:
        if runs and runs[-1][-1] == i + 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


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
      specs: the gradients in the order of their sources.
      bucket_bytes: approximate size of a bucket, in bytes.
      first_bucket_bytes: approximate size of the first bucket, in bytes.
      num_groups: if > 0, make this many groups of nearly equal counts, instead of buckets by size.
      groups: lists of indices to reduce together; the remaining gradients are split by size.
      options: other settings that must be equal on all ranks (op, scales), as text.

    Returns:
      The plan. Its buckets contain "dense" gradients only, last sources first, because the backward
      pass computes their gradients first.
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

    names = normal_names([spec.name for spec in specs])
    lines = [_line(spec, name) for spec, name in zip(specs, names, strict=True)]
    digest = hashlib.sha256(repr((lines, buckets, options)).encode()).digest()
    return Plan(
        buckets=tuple(tuple(bucket) for bucket in buckets),
        fingerprint=int.from_bytes(digest[:8], "little", signed=True),
        description="\n".join([*lines, f"options: {options} buckets={_ranges(buckets)}"]) + "\n",
    )
