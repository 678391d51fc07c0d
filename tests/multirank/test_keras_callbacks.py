"""The callbacks of smddp_tf.keras, through mpirun."""

import re

from bodies import keras_callbacks
from conftest import KERASES, on_ranks


@on_ranks("keras_job", KERASES, 2, 3)
def test_callbacks(keras_job, ranks):
    """Equal metrics, warm-up, schedules, momentum, checkpoints and stopping together."""
    job = keras_job(keras_callbacks.all_callbacks, ranks)
    job.check(ranks)
    line = r"epoch=2; ranks=\d; samples_per_second=[\d.e+]+; step_ms=[\d.e+]+; wait_share=[\d.e-]+;"
    assert re.search(line, job.output), job.output[-3000:]
