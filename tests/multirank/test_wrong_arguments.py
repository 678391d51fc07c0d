"""Arguments of another kind are refused with a sentence; objects that cannot be pickled too."""

from bodies import wrong_arguments


def test_wrong_arguments(keras_job):
    """Tape, optimizer, their partial forms, CheckRanksEqual; the collectives of objects."""
    keras_job(wrong_arguments.all_are_refused, 2).check(2)
