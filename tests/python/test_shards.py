"""Which rows of each variable a rank updates: sizes in, cuts out."""

import pytest

from smddp_tf._src.plan.shards import Matrix, by_ranges, by_variables, evenly, rounds, row_of_flat

# ResNet-50's kinds of sizes: convolutions as flat vectors, a matrix, and biases.
VARIABLES = [Matrix(9408, 1, 4), *[Matrix(64, 1, 4)] * 5, Matrix(2359296, 1, 4)]
VARIABLES += [Matrix(2048, 1000, 4), Matrix(1000, 1, 4), Matrix(512, 1, 2)]


def _held(variables, cuts, ranks):
    return [
        sum(
            (c[r][1] - c[r][0]) * v.elements * v.itemsize
            for v, c in zip(variables, cuts, strict=True)
        )
        for r in range(ranks)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("divide", [by_ranges, by_variables])
def test_every_row_has_one_owner(divide, ranks):
    """The ranks' rows follow each other, from the first to the last."""
    for variable, cuts in zip(VARIABLES, divide(VARIABLES, ranks), strict=True):
        rows = [row for start, stop in cuts for row in range(start, stop)]
        assert rows == list(range(variable.rows))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranges_are_equal(ranks):
    """No rank has more than 1.05 / ranks of all."""
    held = _held(VARIABLES, by_ranges(VARIABLES, ranks), ranks)
    assert max(held) <= 1.05 / ranks * sum(held)


def test_cuts_are_aligned():
    """Elements keep their places in the vectors that kernels compute with."""
    for variable, cuts in zip(VARIABLES, by_ranges(VARIABLES, 7), strict=True):
        inside = [start for start, _ in cuts if 0 < start < variable.rows]
        assert all(start * variable.elements % 16 == 0 for start in inside)


def test_even_cuts_are_those_of_a_reducescatter():
    """Equal numbers of rows, the first ranks' one more; none where a cut would move elements."""
    assert evenly(Matrix(30522, 768, 4), 4) == [
        (0, 7631),
        (7631, 15262),
        (15262, 22892),
        (22892, 30522),
    ]
    assert evenly(Matrix(2048, 1000, 4), 2) == [(0, 1024), (1024, 2048)]
    assert evenly(Matrix(2048, 1000, 4), 3) is None  # 683 rows are no multiple of 16 elements
    assert evenly(Matrix(1, 64, 4), 3) == [(0, 1), (1, 1), (1, 1)]
    assert evenly(Matrix(20, 33, 4), 4) is None
    assert [row_of_flat(n) for n in (9408, 36864, 50)] == [16, 16, 1]


def test_whole_variables_are_balanced():
    """The largest first, each to the rank with the least."""
    sizes = [Matrix(n, 1, 4) for n in (8, 7, 6, 5, 4)]
    assert sorted(_held(sizes, by_variables(sizes, 2), 2)) == [4 * 13, 4 * 17]
    assert by_variables(sizes, 8)[0][0] == (0, 8)
    assert by_ranges([], 2) == by_variables([], 2) == []


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("limit", [1, 100_000, 10**9])
def test_rounds_send_all_once(ranks, limit):
    """Each rank sends all its pieces, and no more in a round than the limit or one piece."""
    cuts = by_ranges(VARIABLES, ranks)
    sent = [dict() for _ in range(ranks)]
    for one in rounds(VARIABLES, cuts, limit):
        for rank, (indices, counts) in enumerate(zip(one.sent, one.counts, strict=True)):
            assert len(indices) <= 1 or 4 * sum(counts) <= limit
            assert not sent[rank].keys() & set(indices)
            sent[rank].update(zip(indices, counts, strict=True))
    for rank, pieces in enumerate(sent):
        for i, (variable, of_ranks) in enumerate(zip(VARIABLES, cuts, strict=True)):
            start, stop = of_ranks[rank]
            assert pieces.get(i, 0) == (stop - start) * variable.elements
