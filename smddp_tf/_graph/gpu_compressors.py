"""Whether the ops of compressors run on this process's GPUs, by smddp_tf's own kernels."""

import functools
import threading

from smddp_tf._graph import library
from smddp_tf._graph.framework import tensorflow
from smddp_tf._job import config, native

tf = tensorflow()

# Limit of the probe, which loads the kernels: a driver may have to compile them first.
_PROBE_SECONDS = 120


def _probe() -> str:
    """Runs an op on each GPU that finds TensorFlow's stream and loads the kernels.

    Returns:
      "", or why some GPU cannot run them.
    """
    if not tf.executing_eagerly():
        return "TensorFlow 1's sessions keep TensorFlow's own"
    try:
        for device in tf.config.list_logical_devices("GPU"):
            with tf.device(device.name):
                library.ops().smddp_gpu_probe(x=1.0)
    except (tf.errors.OpError, RuntimeError) as error:
        return str(getattr(error, "message", error))
    return ""


@functools.cache
def problem() -> str:
    """Why GPUs keep TensorFlow's ops; "" if each of them runs smddp_tf's, from now on.

    Asked once, by the first gradient that is compressed where TensorFlow has a GPU, since running
    an op initializes TensorFlow's devices; on a thread of its own, which is in eager mode even
    while the caller traces a tf.function.
    """
    if not config.gpu_kernels():
        return "SMDDP_GPU_KERNELS is not 1"
    found = [f"loading them did not end within {_PROBE_SECONDS} seconds"]

    def run() -> None:
        found[:] = [_probe()]

    thread = threading.Thread(target=run, name="smddp-gpu-probe", daemon=True)
    thread.start()
    thread.join(_PROBE_SECONDS)
    if found[0]:
        text = f"compressors on the GPU are made of TensorFlow's ops: {found[0]}"
        native.core().smddp_info(text.encode())
    else:
        library.register_gpu_compressors()
    return found[0]
