"""Whether the ranks have the same data in the same order before they divide it, through mpirun."""

from bodies import keras_order


def test_datasets_and_arrays(keras_job):
    """Shuffles get one seed or are refused; arrays that differ are refused."""
    keras_job(keras_order.datasets_and_arrays, 2).check(2)


def test_sequences(keras_job):
    """Generators that shuffle their indices in on_epoch_end() do it alike on all ranks."""
    keras_job(keras_order.sequences, 2).check(2)


def test_evaluated(keras3_job):
    """evaluate() and predict() refuse other data on each rank."""
    keras3_job(keras_order.evaluated, 2).check(2)


def test_functions_of_datasets(keras_job):
    """A shuffle inside interleave(), a random filter: right, or refused."""
    keras_job(keras_order.functions_of_datasets, 2).check(2)
