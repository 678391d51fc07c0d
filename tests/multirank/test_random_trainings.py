"""Trainings with random options end with the weights of one process that has all rows.

SMDDP_TEST_TRAININGS=200 makes as many in each test; a failure tells the options and their seed.
"""

import os

import pytest
from bodies import random_trainings

COUNT = int(os.environ.get("SMDDP_TEST_TRAININGS", "4"))


@pytest.mark.parametrize(
    ("ranks", "nodes"),
    [(2, 1), *(pytest.param(*some, marks=pytest.mark.thorough) for some in ((3, 1), (4, 2)))],
)
def test_random_trainings(keras_job, ranks, nodes, tmp_path):
    """Models, optimizers and their options, ways to train, and what DistributedOptimizer takes."""
    body = random_trainings.trainings(
        first=1000 * ranks, count=COUNT, folder=str(tmp_path), fixed={}
    )
    env = {"SMDDP_NODES": str(nodes)}
    keras_job(body, ranks, timeout=60 + 40 * COUNT, env=env).check(ranks)


def test_sums_of_gradients_go_on(keras3_job, tmp_path):
    """A second fit() with a new callback goes on from what each rank has summed."""
    fixed = {"how": "fit", "passes": 2, "phase": None, "optimizer": "SGD", "model": "dense"}
    body = random_trainings.trainings(first=0, count=1, folder=str(tmp_path), fixed=fixed)
    keras3_job(body, 2, timeout=100).check(2)
