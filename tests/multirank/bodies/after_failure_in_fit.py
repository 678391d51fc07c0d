"""What ranks do in test_after_failure.py inside fit()."""

import machine_time
import numpy as np
import tensorflow as tf
from harness import rank, report

import smddp_tf.keras as hvd

keras = tf.keras


class Clock(keras.callbacks.Callback):
    """When the last batch ended."""

    def on_train_batch_end(self, batch, logs=None):
        self.end = machine_time.now()


def ends_on_one_rank(case):
    """uneven: rank 1 has more samples. nan: its model becomes NaN."""
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    number = 16 + 8 * rank if case == "uneven" else 32
    x, y = np.ones([number, 4], np.float32), np.ones([number, 1], np.float32)
    if case == "nan" and rank == 1:
        x[8:] = np.nan
    clock = Clock()
    average = hvd.callbacks.MetricAverageCallback()
    callbacks = [clock, keras.callbacks.TerminateOnNaN(), average]
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    try:
        model.fit(x, y, callbacks=callbacks, **options)
        text = ""
    except tf.errors.OpError as error:
        text = error.message
    report(text=text, seconds=machine_time.now() - clock.end)
