"""Callbacks that write files, on one rank only."""

from __future__ import annotations

import os
import warnings
from typing import Any

from smddp_tf._src.collectives.objects import broadcast_object
from smddp_tf._src.collectives.variables import broadcast_
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.state import share
from smddp_tf._src.state.variables import variables_only
from smddp_tf._src.types import LoadedClass
from smddp_tf.keras.callbacks import _fit
from smddp_tf.keras.callbacks._base import (
    Callback,
    build,
    divides_state,
    optimizers_of,
    variables_of,
)

tf = tensorflow()


def RankZero(  # noqa: N802 - used like a callback class
    callback: Any, process_set: ProcessSet = global_process_set
) -> Any:
    """Runs a callback on rank 0 only; other ranks get one that does nothing.

    Use it for callbacks that write or print: ProgbarLogger, TensorBoard, ModelCheckpoint,
    CSVLogger. Callbacks that affect training (early stopping, learning rate) must run on all ranks:
    for those it warns.

    Args:
      callback: any Keras callback.
      process_set: the set whose first rank runs the callback; must include this rank.

    Returns:
      The callback itself on rank 0, a callback without effect elsewhere.

    Raises:
      TypeError: not a callback object; raised on all ranks.
    """
    if isinstance(callback, type) or not hasattr(callback, "set_model"):
        raise TypeError(f"RankZero takes a callback object, not {callback!r}")
    check_process_set(process_set)
    if name := _fit.title(callback):
        warnings.warn(
            f"RankZero({name}) changes training on rank 0 alone, so the ranks come apart or wait "
            "for each other: give all ranks the callback",
            RuntimeWarning,
            stacklevel=2,
        )
    return callback if process_set.rank() == 0 else Callback()


def BestModelCheckpoint(  # noqa: N802 - Horovod's name
    monitor: str = "val_loss",
    verbose: int = 0,
    save_weights_only: bool = False,
    mode: str = "auto",
    save_freq: str | int = "epoch",
    filepath: str | os.PathLike[str] = "best.keras",
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Saves the model with the best metric, on rank 0.

    Put it after MetricAverageCallback, so that it sees the metric of all ranks.

    Args:
      monitor: the metric to monitor.
      verbose: 1: print a line when saving.
      save_weights_only: save the weights instead of the model.
      mode: "min", "max" or "auto".
      save_freq: "epoch", or a number of batches.
      filepath: the file; may contain {epoch} and metrics, as for Keras's ModelCheckpoint.
      process_set: the set whose first rank saves; must include this rank.

    Returns:
      Keras's ModelCheckpoint on rank 0, a callback without effect elsewhere.
    """
    check_process_set(process_set)
    if process_set.rank() != 0:
        return Callback()
    return tf.keras.callbacks.ModelCheckpoint(
        os.fspath(filepath),
        monitor=monitor,
        verbose=verbose,
        save_best_only=True,
        save_weights_only=save_weights_only,
        mode=mode,
        save_freq=save_freq,
    )


_Backup: LoadedClass = tf.keras.callbacks.BackupAndRestore


class BackupAndRestore(_Backup):
    """Keras's BackupAndRestore: rank 0 reads and writes, and broadcasts the restored state.

    The folder need not be on a shared file system. As with Keras's own callback, the model must be
    built before fit().

    Args:
      backup_dir: the folder, used on the first rank of the process set.
      *args: same as for tf.keras.callbacks.BackupAndRestore.
      process_set: the ranks that take part; must include this rank.
      **options: same as for tf.keras.callbacks.BackupAndRestore.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        *args: Any,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        check_process_set(process_set)
        self.process_set = process_set
        self._writes = process_set.rank() == 0
        if not self._writes:
            # Only the first rank may read a backup; give this one a folder that does not exist.
            backup_dir = os.path.join(os.fspath(backup_dir), f"not-of-rank-{basics.rank()}")
        super().__init__(os.fspath(backup_dir), *args, **options)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the backup, if one exists, and broadcasts it to all ranks.

        Raises:
          ValueError: the optimizer's state is divided among the ranks.
        """
        if any(map(divides_state, optimizers_of(self.model))):
            raise ValueError(
                "BackupAndRestore does not keep the state of an optimizer with shard_state=True; "
                "hvd.callbacks.ShardedCheckpoint does, and goes on from it"
            )
        if self.model.built and getattr(self.model, "optimizer", None) is not None:
            build(self.model.optimizer, self.model.trainable_variables)
        super().on_train_begin(logs)
        if self.process_set.size() == 1:
            return

        root = self.process_set.ranks[0]
        self.model._initial_epoch = broadcast_object(
            getattr(self.model, "_initial_epoch", None),
            root,
            name="epoch of the backup",
            process_set=self.process_set,
        )

        layers = share.layers_of(self.model)
        share.send(layers, root, self.process_set)
        variables = variables_only(self.model.weights)
        for optimizer in optimizers_of(self.model):
            variables += variables_of(optimizer)
        state = getattr(self, "_training_state", None)  # tf_keras's
        if state is not None:
            variables += [state._ckpt_saved_epoch, state._ckpt_saved_batch]
            variables.append(self.model._train_counter)
        broadcast_(variables, root, "backup", self.process_set)
        share.refresh(layers)

    def _save_model(self, *args: Any, **options: Any) -> None:
        if self._writes:
            super()._save_model(*args, **options)

    def _backup(self, *args: Any, **options: Any) -> None:
        if self._writes:
            super()._backup(*args, **options)
