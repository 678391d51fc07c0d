"""The commonest mistakes of a script are named when fit() begins, and in the error that follows."""

from bodies import fit_mistakes
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2)
def test_mistakes_are_named_when_training_begins(keras_job, ranks):
    """Callbacks that decide alone, lists and validation that differ; no word where all is well."""
    keras_job(fit_mistakes.warnings_when_training_begins, ranks).check(ranks)


@on_ranks("keras_job", KERASES, 2)
def test_models_without_trainable_weights(keras_job, ranks):
    """They reduce no gradients, which is no mistake."""
    keras_job(fit_mistakes.models_without_trainable_weights, ranks).check(ranks)


def _errors(keras_job, body) -> list:
    """What each rank was told. The job ends by an error, as MPI's does when a rank leaves alone."""
    job = keras_job(body, 2)
    assert not job.timed_out and sorted(job.results) == [0, 1], job.output[-4000:]
    return [job.results[rank]["error"] for rank in range(2)]


@on_ranks("keras_job", KERASES, 2)
def test_the_error_names_the_callback(keras_job, ranks):
    """One rank stops alone, by Keras's own EarlyStopping."""
    first, last = _errors(keras_job, fit_mistakes.stops_alone)
    assert last == "", last
    assert "EarlyStopping monitors this rank's own 'loss'" in first, first


def test_the_error_names_what_is_likely(keras3_job):
    """Without a broadcast nobody has compared anything, so the error names what is common."""
    first, _ = _errors(keras3_job, fit_mistakes.stops_alone_without_broadcast)
    assert "stopped training alone (Keras's own EarlyStopping" in first, first


def test_the_error_names_validation_on_one_rank(keras3_job):
    """It prints two collectives, and why they differ."""
    for error in _errors(keras3_job, fit_mistakes.validates_alone):
        assert "validation_data: given on rank 0; not given on rank 1" in error, error


def test_the_error_names_the_numbers_of_batches(keras3_job):
    """As they were when the epoch began."""
    first, _ = _errors(keras3_job, fit_mistakes.fewer_batches)
    assert "batches an epoch: 3 on rank 0; 2 on rank 1" in first, first
