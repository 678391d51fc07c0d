"""The plan is pure: sizes in, buckets out."""

import subprocess
import sys

from smddp_tf._src.plan.buckets import GradientSpec, make_plan, normal_name, normal_names


def specs(sizes, dtype="float32", kind="dense"):
    """One spec for each size."""
    return [GradientSpec(f"v{i}", dtype, (n,), 4 * n, kind) for i, n in enumerate(sizes)]


def plan(specs_, **options):
    """A plan with small buckets."""
    return make_plan(specs_, **{"bucket_bytes": 400, "first_bucket_bytes": 100, **options})


def test_every_dense_gradient_is_in_one_bucket_last_created_first():
    """Order and completeness."""
    got = plan(specs([10] * 20))
    flat = [i for bucket in got.buckets for i in bucket]
    assert flat == list(range(20))[::-1]


def test_buckets_keep_their_size():
    """The first is small, the others reach the limit, a large gradient is alone."""
    got = plan(specs([10] * 30 + [1000] + [10] * 5))
    size = [sum(1000 if i == 30 else 10 for i in bucket) * 4 for bucket in got.buckets]
    assert size[0] <= 100
    assert all(
        total <= 400 for total, bucket in zip(size, got.buckets, strict=True) if len(bucket) > 1
    )
    assert (30,) in got.buckets


def test_one_dtype_a_bucket():
    """Mixed dtypes are split."""
    mixed = specs([5] * 4) + [GradientSpec("h", "bfloat16", (5,), 10)] + specs([5] * 3)
    got = plan(mixed)
    for bucket in got.buckets:
        assert len({mixed[i].dtype for i in bucket}) == 1


def test_groups():
    """num_groups and explicit groups."""
    assert [len(bucket) for bucket in plan(specs([1] * 10), num_groups=3).buckets] == [4, 3, 3]
    got = plan(specs([1] * 4), groups=[[0, 2]])
    assert sorted(map(sorted, got.buckets)) == [[0, 2], [1, 3]]
    assert plan(specs([1] * 2), num_groups=5).buckets == ((1,), (0,))


def test_none_and_sparse_are_not_in_buckets_but_in_the_fingerprint():
    """A rank with a None gradient has another plan."""
    dense = specs([5, 5])
    with_none = [dense[0], GradientSpec("v1", "", (), 0, "none")]
    assert plan(with_none).buckets == ((0,),)
    assert plan(with_none).fingerprint != plan(dense).fingerprint
    assert "v1 has no gradient (None)" in plan(with_none).description
    assert plan([]).buckets == ()


def test_fingerprint_sees_what_matters_and_not_keras_numbers():
    """Shape, dtype, name and options count; the number that Keras appends does not."""
    base = plan(specs([5, 6])).fingerprint
    assert plan(specs([6, 5])).fingerprint != base
    assert plan(specs([5, 6], dtype="float64")).fingerprint != base
    assert plan(specs([5, 6]), options="op=Sum").fingerprint != base
    assert plan(specs([5, 6])).fingerprint == base
    assert normal_name("dense_3/kernel:0") == normal_name("dense_1/kernel:0") == "dense/kernel"


def test_layers_keep_their_order():
    """Whatever they are numbered from; sources in another order are another plan."""
    names = ["a/dense/kernel:0", "a/dense_1/kernel:0", "b/dense_2/kernel:0", "w"]
    later = ["a_1/dense_3/kernel:0", "a_1/dense_10/kernel:0", "b_5/dense_12/kernel:0", "w_7"]
    assert normal_names(names) == normal_names(later) == [n.split(":")[0] for n in names]
    assert normal_names(later[1::-1]) == ["a/dense_1/kernel", "a/dense/kernel"]

    def fingerprint(names):
        return plan([GradientSpec(name, "float32", (5,), 20) for name in names]).fingerprint

    assert fingerprint(names) == fingerprint(later) != fingerprint([later[1], later[0], *later[2:]])


def test_needs_no_tensorflow():
    """The module imports without it."""
    code = (
        "import sys; sys.modules['tensorflow'] = None; import smddp_tf._src.plan.buckets, smddp_tf"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
