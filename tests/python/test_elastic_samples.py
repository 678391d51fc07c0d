"""hvd.elastic.Samples and its callback, in a job of one rank."""

import pytest

import smddp_tf.keras as hvd


@pytest.fixture
def samples():
    hvd.init()
    return hvd.elastic.Samples(20, batch_size=4, shuffle=False)


def test_parts_are_never_empty(samples):
    """The last step ends the epoch at once: fit() takes no data set without a batch."""
    state = hvd.elastic.ObjectState(samples=samples)
    samples, callback = state.samples, hvd.elastic.UpdateSamplesStateCallback(state)
    callback.on_train_begin()
    for batch in range(4):
        callback.note_batch(batch)
        assert (samples.epoch, samples.position) == (0, 4 * batch + 4)
        assert len(samples.parts()) == 4 - batch
    callback.note_batch(4)
    callback.note_batch(4)  # a commit and the callback itself both do this
    assert (samples.epoch, samples.position) == (1, 0)
    callback.note_epoch(0)
    callback.note_epoch(0)
    assert (samples.epoch, samples.position) == (1, 0)
    assert len(samples.parts()) == 5


def test_fit_may_leave_out_steps(samples):
    """The epoch ends with fit()'s."""
    state = hvd.elastic.ObjectState(samples=samples)
    callback = hvd.elastic.UpdateSamplesStateCallback(state)
    callback.on_train_begin()
    callback.note_batch(1)
    callback.note_epoch(0)
    assert (state.samples.epoch, state.samples.position) == (1, 0)


def test_a_loop_goes_on_after_the_last_step(samples):
    """A commit after it has this position."""
    taken = [part.tolist() for part in samples.batches()]
    assert taken == [list(range(begin, begin + 4)) for begin in range(0, 20, 4)]
    samples.epoch, samples.position = 0, 20
    assert list(samples.batches()) == []
    assert (samples.epoch, samples.position) == (1, 0)


def test_names_of_attributes():
    """Horovod's own tests call one commits; what is no method of a state can be an attribute."""
    hvd.init()
    names = {"commits": 1, "counters": 2, "source": 3, "resume": 4, "finish": 5, "is_kept": 6}
    state = hvd.elastic.ObjectState(**names)
    state.commits += 1
    state.commit()
    state.commits += 1
    state.restore()
    assert (state.commits, state.source) == (2, 3)
    with pytest.raises(TypeError, match="commit= cannot be an attribute"):
        hvd.elastic.ObjectState(commit=1)
