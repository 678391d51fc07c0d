"""What ranks do in test_elastic.py."""

import os
import pathlib
import warnings

import numpy as np
import tensorflow as tf
from checks import equal, raises
from harness import rank, report, size

import smddp_tf as hvd

keras = tf.keras


def _model(units=1):
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.layers.Dense(units)])
    model.build([None, 3])
    return model


def _refusals(model):
    elastic = hvd.elastic
    with raises(ValueError, "not built", "model.build"):
        elastic.KerasState(keras.Sequential([keras.layers.Dense(1)]))
    with raises(TypeError, "commit="):
        elastic.KerasState(model, keras.optimizers.SGD(0.1), commit=1)
    with raises(ValueError, "no epoch", "epoch=0"):
        elastic.UpdateEpochStateCallback(elastic.ObjectState(batch=0))
    with raises(ValueError, "batches_per_commit=0"):
        elastic.CommitStateCallback(elastic.ObjectState(), 0)
    with raises(TypeError, "takes a state first", "int"):
        elastic.run(lambda state: None)(3)
    with raises(ValueError, "variables="):
        elastic.TensorFlowState()
    with raises(NotImplementedError, "session="):
        elastic.TensorFlowState([tf.Variable(1.0)], session=3)


def _variables_and_objects():
    v = tf.Variable([1.0 * rank, 2.0])
    state = hvd.elastic.TensorFlowState([v], batch=rank, seen=[rank])
    v.assign([7.0, 7.0])
    state.batch, state.seen[0] = 9, 9
    state.restore()  # what each rank began with
    equal(v, [rank, 2], "restored")
    assert (state.batch, state.seen) == (rank, [rank])
    state.sync()  # what rank 0 has
    equal(v, [0, 2], "synchronized")
    assert (state.batch, state.seen) == (0, [0])
    state.seen.append(4)
    v.assign_add([1.0, 1.0])
    state.commit()
    state.seen.append(5)
    v.assign_add([1.0, 1.0])
    state.restore()
    equal(v, [1, 3], "committed")
    assert state.seen == [0, 4]


def _variables_that_keras_does_not_count():
    """tf.Variables of a layer are part of the state, in both Kerases."""
    model = _model()
    model.layers[0].scale = tf.Variable([1.0 * rank, 2.0])
    state = hvd.elastic.KerasState(model, keras.optimizers.SGD(0.1))
    state.sync()
    equal(model.layers[0].scale, [0, 2], "synchronized")
    model.layers[0].scale.assign([7.0, 7.0])
    state.restore()
    equal(model.layers[0].scale, [0, 2], "restored")


def _counts():
    """The order of the callbacks does not matter, nor do several batches at a time."""
    model = _model()
    model.compile(keras.optimizers.SGD(0.0), "mse", steps_per_execution=2)
    state = hvd.elastic.KerasState(model, epoch=5, batch=0)
    committed = []
    state.commit = lambda: committed.append((state.epoch, state.batch))
    callbacks = [
        hvd.elastic.CommitStateCallback(state, batches_per_commit=3),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.UpdateEpochStateCallback(state),
    ]
    x = np.ones([6, 3], "float32")
    model.fit(x, x[:, :1], batch_size=1, epochs=2, callbacks=callbacks, verbose=0)
    assert committed == [(5, 4), (6, 0), (6, 4), (7, 0)], committed
    state.epoch = 1
    committed.clear()
    fit = {"initial_epoch": 1, "epochs": 3, "callbacks": callbacks, "verbose": 0}
    model.fit(x, x[:, :1], batch_size=3, **fit)
    assert committed == [(2, 0), (3, 0)], committed


def _kept(commits):
    """Rank 0 has a file of the last commit until the training ends; the others have none."""
    os.environ["SMDDP_COMMITS"] = str(pathlib.Path(commits) / str(rank))
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state):
        state.step = 3
        state.commit()
        hvd.barrier()
        there = pathlib.Path(commits).glob("*/state*.pickle")
        assert [path.parent.name for path in there] == ["0"]
        hvd.barrier()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            state.step = lambda: None  # which cannot be pickled, unless cloudpickle is here
            state.commit()
        said = [str(one.message) for one in caught]
        assert not said or (rank == 0 and "goes on from the one before" in said[0]), said
        return state.step

    assert callable(train(state))
    hvd.barrier()
    assert not pathlib.Path(commits, "0").exists()
    del os.environ["SMDDP_COMMITS"]


def states(commits):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _refusals(_model())
    _variables_and_objects()
    _variables_that_keras_does_not_count()
    _counts()
    _kept(commits)
    state = hvd.elastic.ObjectState(step=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.elastic.run(lambda state: state.commit())(state)
    said = [str(one.message) for one in caught if "--max-restarts" in str(one.message)]
    assert len(said) == (rank == 0), said
    report(size=size)


def _message_of(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    raise SystemExit("accepted")


def other_model(commits):
    """What a job finds whose script has been changed since the last commit."""
    os.environ["SMDDP_COMMITS"] = commits
    state = hvd.elastic.KerasState(_model(units=4), keras.optimizers.SGD(0.1))
    state.commit()
    hvd.barrier()
    (path,) = pathlib.Path(commits).glob("*.pickle")
    other = hvd.elastic.KerasState(_model(units=2), keras.optimizers.SGD(0.1))
    hvd.barrier()
    if rank == 0:
        path.rename(path.with_name(f"state{int(path.stem[5:]) + 1}.pickle"))
    shape = _message_of(lambda: hvd.elastic.run(print)(other))
    if rank == 0:
        (path,) = pathlib.Path(commits).glob("*.pickle")
        path.write_bytes(b"no pickle")
    report(shape=shape, unreadable=_message_of(lambda: hvd.elastic.run(print)(other)))
