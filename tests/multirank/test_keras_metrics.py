"""Metrics, evaluate and predict over all ranks, through mpirun."""

from bodies import keras_metrics
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_metrics_are_those_of_all_data(keras_job, ranks):
    """AUC, Recall and others in fit() and evaluate() equal one process's; states stay local."""
    keras_job(keras_metrics.metrics_of_all_data, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_predict_in_the_order_of_the_data(keras_job, ranks):
    """All ranks get all predictions, of arrays, datasets and sequences, however many there are."""
    keras_job(keras_metrics.predict, ranks).check(ranks)
