"""A loaded model goes on as if it had not been interrupted, accumulation included."""

from bodies import resuming


def test_resuming_goes_on_as_before(keras_job):
    """Sums and means of passes survive every format, copies and configurations."""
    keras_job(resuming.goes_on, 2).check(2)
