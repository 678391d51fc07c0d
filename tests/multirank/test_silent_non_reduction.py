"""What would train the ranks apart without a word is noticed; CheckRanksEqual; copies."""

from bodies import check_ranks_equal, silent_non_reduction
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2)
def test_ranks_that_drift_apart_are_noticed(keras_job, ranks):
    """Late wraps, second optimizers, own train steps, copies; CheckRanksEqual."""
    keras_job(silent_non_reduction.drift_is_noticed, ranks).check(ranks)


def test_check_ranks_equal_in_a_loop_by_hand(job):
    """Says which variable, and which ranks differ from most."""
    job(check_ranks_equal.by_hand, 3).check(3)
