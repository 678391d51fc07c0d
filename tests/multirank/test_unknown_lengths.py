"""Layers on sequences of any length, whose gradients' static shapes TensorFlow does not know."""

from bodies import unknown_lengths


def test_buckets(keras_job):
    """Gradients are split into buckets by size, as those of a declared length are."""
    keras_job(unknown_lengths.buckets, 2, env={"SMDDP_BUCKET_BYTES": "1024"}).check(2)


def test_equality(keras_job):
    """Lengths that change, with jit_compile and without, train as in one process."""
    for result in keras_job(unknown_lengths.equality, 2).check(2).values():
        # 4 steps of rate 0.1 with gradients below 1, whose sums are rounded in another order.
        assert max(result["worst"].values()) < 2e-6, result


def test_lengths_that_differ_by_rank(keras_job):
    """Ranks whose lengths change at other steps have plans of equal shapes."""
    keras_job(unknown_lengths.lengths_that_differ_by_rank, 2).check(2)
