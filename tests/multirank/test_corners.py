"""Numbers in corners: factors of float64, odd dtypes of variables, penalties of summed losses."""

import pytest
from bodies import corners
from conftest import PYTHONS, on_ranks


@on_ranks("python", PYTHONS, 2)
def test_factors(job, python, ranks):
    """Those of float64 are exact, in all ways; infinite ones of integers are refused."""
    job(corners.factors, ranks, python=python).check(ranks)


@on_ranks("python", PYTHONS, 2)
def test_dtypes_of_variables(job, python, ranks):
    """All that TensorFlow's variables can have, but for handles of other things."""
    job(corners.dtypes_of_variables, ranks, python=python).check(ranks)


@pytest.mark.tf_keras
def test_models_with_odd_variables(keras_job):
    """Strings, complex128, int4 and a list of tensors."""
    keras_job(corners.models_with_odd_variables, 2).check(2)


@pytest.mark.tf_keras
def test_regularizers_of_summed_losses(keras_job):
    """What docs/keras.md says of op=Sum is one process's training."""
    keras_job(corners.regularizers_of_summed_losses, 2).check(2)
