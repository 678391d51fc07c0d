"""What ranks must decide, hold or restore alike in fit(), through mpirun."""

from bodies import keras_agreement, keras_unbuilt
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_ranks_stop_and_change_the_rate_together(keras_job, ranks):
    """User stops, NaN, plateaus, callbacks in the wrong order, warm-up with executions."""
    keras_job(keras_agreement.stop_and_change_the_rate, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_state_that_is_not_trained(keras_job, ranks):
    """Moving statistics are equal, dropout masks differ, and all of it within a process set."""
    keras_job(keras_agreement.state_that_is_not_trained, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2, 3)
def test_models_that_the_first_batch_builds(keras_job, ranks):
    """Stateful RNNs, heads for training, own steps and ragged inputs equal one process."""
    keras_job(keras_unbuilt.models_that_the_first_batch_builds, ranks).check(ranks)


def test_backup_and_restore(keras_job):
    """A run that was interrupted goes on in its epoch, on all ranks, from rank 0's disk."""
    keras_job(keras_agreement.backup_and_restore, 2).check(2)


def test_rates_are_restored(keras_job):
    """Rates and other variables that Keras 2 does not count, by BackupAndRestore."""
    keras_job(keras_agreement.restored_optimizers, 2).check(2)


def test_one_rate(keras_job):
    """A rate that was set on some ranks only is that of the root."""
    keras_job(keras_agreement.one_rate, 2).check(2)
