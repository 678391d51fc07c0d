"""Layers of the script's own that keep arrays, tensors, tables and objects, through mpirun."""

from bodies import own_layers


def test_kept_in_fit(keras_job):
    """What adapt() of a layer of one's own computed on shards is rank 0's on all ranks."""
    results = keras_job(own_layers.kept_in_fit, 2).check(2)
    assert all(one["same"] for one in results.values()), results


def test_given_by_adapt(keras_job):
    """Variables, numbers, arrays, tensors, containers and tables of the root."""
    keras_job(own_layers.given_by_adapt, 2).check(2)


def test_objects(keras_job):
    """Objects that adapt() made are sent, or named if they cannot be."""
    keras_job(own_layers.objects, 2).check(2)


def test_compared(keras_job):
    """What a layer was given, and what a Lambda's function takes from the script around it."""
    assert keras_job(own_layers.compared, 2).check(2)[0]["cases"] == 9


def test_refused(keras_job):
    """A table that only the root has, of a kind that cannot be made anew."""
    keras_job(own_layers.refused, 2).check(2)


def test_objects_with_any_name(keras_job):
    """Settings with a __getattr__ of their own, as programs have them, are left alone."""
    keras_job(own_layers.objects_with_any_name, 2).check(2)
