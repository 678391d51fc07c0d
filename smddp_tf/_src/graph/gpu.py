"""Chooses the GPU that a rank uses."""

from __future__ import annotations

from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import config
from smddp_tf._src.job.basics import local_rank, local_size

tf = tensorflow()


def pin_gpu() -> str | None:
    """Makes one GPU the only one that this rank uses: the one with its local rank.

    Call it after init() and before TensorFlow has used any device. TensorFlow then takes the GPU's
    memory as it needs it, instead of all at once. A launcher may also have chosen: if
    CUDA_VISIBLE_DEVICES names a single GPU, the rank takes that.

    Returns:
      TensorFlow's name of the GPU, as "/physical_device:GPU:1"; None if the machine has none.

    Raises:
      NotInitializedError: init() was not called.
      ValueError: the node has more ranks than GPUs.
      RuntimeError: TensorFlow has used its devices already.

    Examples:
      >>> name = hvd.pin_gpu()  # right after init(); None on a machine without GPUs
    """
    index, ranks = local_rank(), local_size()
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    if len(gpus) == 1 and config.visible_gpus():
        index = 0
    if index >= len(gpus):
        raise ValueError(
            f"pin_gpu(): {ranks} ranks run on this node, and TensorFlow sees {len(gpus)} GPU(s): "
            f"none for local rank {index}; start one rank for each GPU (mpirun --map-by "
            f"ppr:{len(gpus)}:node), or look at CUDA_VISIBLE_DEVICES"
        )
    try:
        tf.config.set_visible_devices(gpus[index], "GPU")
        tf.config.experimental.set_memory_growth(gpus[index], True)
    except RuntimeError as error:
        raise RuntimeError(
            "pin_gpu(): TensorFlow has used its devices already, and can no longer choose among "
            f"them; call it right after init(), before any tensor is made ({error})"
        ) from error
    return gpus[index].name
