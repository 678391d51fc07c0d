"""Gradients that stay local, where the optimizer decides by all gradients, through mpirun."""

import pytest
from bodies import keras_local
from conftest import KERASES, on_ranks


@pytest.mark.tf_keras
@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"jit": True}], ids=str)
def test_an_overflow_of_a_local_gradient(keras_job, options):
    """All ranks skip the step and shrink the scale if one rank's own gradient overflows."""
    keras_job(keras_local.an_overflow_of_a_local_gradient(**options), 2).check(2)


@pytest.mark.tf_keras
@on_ranks("keras_job", KERASES, 2, 3)
def test_a_global_norm(keras_job, ranks):
    """global_clipnorm clips by one norm on all ranks."""
    keras_job(keras_local.a_global_norm, ranks).check(ranks)


@pytest.mark.tf_keras
def test_variables_that_are_not_broadcast(keras_job):
    """local_variables= takes one variable too, and register_local_var() is Horovod's."""
    keras_job(keras_local.variables_that_are_not_broadcast, 2).check(2)


@pytest.mark.tf_keras
def test_local_variables_of_other_shapes(keras_job):
    """They are not broadcast, nor are their slots."""
    keras_job(keras_local.local_variables_of_other_shapes, 2).check(2)


def test_tables_that_a_library_divides(legacy_keras_job):
    """Libraries on Horovod mark each rank's own tables, and replace Horovod's own methods."""
    legacy_keras_job(keras_local.tables_that_a_library_divides, 2).check(2)


def test_rows_that_a_library_holds(legacy_keras_job):
    """Variables of a library's classes keep their gradients; its changes of an optimizer stay."""
    legacy_keras_job(keras_local.rows_that_a_library_holds, 2).check(2)
