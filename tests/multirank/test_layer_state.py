"""Means, vocabularies, boundaries and configurations of layers, through mpirun."""

from bodies import layer_state


def test_normalization_in_fit(keras_job):
    """What adapt() computed on shards is rank 0's on all ranks, also in traced functions."""
    results = keras_job(layer_state.normalization_in_fit, 2).check(2)
    assert [one["rows"] for one in results.values()] == [0, 0], results
    assert results[0]["same"], results


def test_normalization_in_a_layer(keras_job):
    """No false alarm."""
    results = keras_job(layer_state.normalization_in_a_layer, 2).check(2)
    assert all(one == {"said": [], "same": True} for one in results.values()), results


def test_loaded_on_rank_0(keras_job):
    """broadcast_variables(model.variables) refreshes what follows from them."""
    results = keras_job(layer_state.loaded_on_rank_0, 2).check(2)
    assert results[0] == results[1], results


def test_vocabularies_in_fit(keras_job):
    """Two orders of one vocabulary: all ranks look up as rank 0 does."""
    results = keras_job(layer_state.vocabularies_in_fit, 2).check(2)
    assert results[0] == results[1], results


def test_adapted_layers(keras_job):
    """Each layer with adapt(): hvd.adapt(), and broadcasts, in models, functions and datasets."""
    results = keras_job(layer_state.adapted_layers, 2).check(2)
    assert results[1]["cases"] == 10


def test_feature_space(keras_job):
    """A FeatureSpace has the widths of rank 0's features on all ranks."""
    keras_job(layer_state.feature_space, 2).check(2)


def test_differences(keras_job):
    """Other arguments are told; CheckRanksEqual and elastic states know vocabularies and means."""
    keras_job(layer_state.differences, 2).check(2)
