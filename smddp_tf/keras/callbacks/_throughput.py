"""Reports the job's training throughput and the share of time spent waiting for reductions."""

from __future__ import annotations

import os
import time
from typing import Any

from smddp_tf._src.collectives.allreduce import allreduce
from smddp_tf._src.gradients.options import whole_number
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics
from smddp_tf._src.job.process_sets import ProcessSet, check_process_set, global_process_set
from smddp_tf._src.job.reduce_op import Max, ReduceOp, Sum
from smddp_tf.keras.callbacks._base import Callback, epoch_or_batches

tf = tensorflow()


def _write_scalar(name: str, value: float) -> None:
    """Like tf.summary.scalar(), but without requiring an installed TensorBoard."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(name, tf.constant(value, tf.float32), metadata=metadata)


class _Meter:
    """Measures batches, elapsed time and time waited since it was created."""

    def __init__(self) -> None:
        self.batches = 0
        self._start = time.perf_counter()
        self._awaited = basics.stats()["awaited_seconds"]

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def wait_share(self) -> float:
        awaited = basics.stats()["awaited_seconds"] - self._awaited
        return min(1.0, awaited / self.seconds())


class Throughput(Callback):
    """Prints a line of `name=value;` pairs on rank 0, in a form that log scrapers can parse.

    samples_per_second is the total of all ranks. step_ms is the mean time of a step, including
    Keras's own work between steps. wait_share is the fraction of time, from 0 to 1, that training
    was blocked on reductions (after the backward pass, or in explicit collectives): the maximum
    over the ranks. The same numbers are added to the logs.

    Args:
      batch_size: samples in a batch of this rank.
      log_dir: folder for TensorBoard scalars, written on rank 0; None: write none.
      every: "epoch", or a number of batches after which to print an additional line.
      process_set: the ranks to measure; its first rank prints.

    Raises:
      TypeError, ValueError: batch_size is not positive, or every neither "epoch" nor positive.
    """

    def __init__(
        self,
        batch_size: int,
        log_dir: str | os.PathLike[str] | None = None,
        every: str | int = "epoch",
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        check_process_set(process_set)
        self.process_set = process_set
        self.batch_size = whole_number("batch_size", batch_size, 1)
        self.every: Any = epoch_or_batches("every", every)
        self._log_dir = log_dir
        self._writer: Any = None
        self._epoch = self._all_batches = self._last_batch = 0
        self._of_epoch, self._of_line = _Meter(), _Meter()  # each epoch has its own

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Opens the TensorBoard file."""
        del logs
        if self._log_dir and self.process_set.rank() == 0:
            self._writer = tf.summary.create_file_writer(str(self._log_dir))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the meters of the epoch and of the next line."""
        del logs
        self._epoch, self._last_batch = epoch, 0
        self._of_epoch, self._of_line = _Meter(), _Meter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts batches, and prints when `every` batches have passed."""
        del logs
        # With steps_per_execution, one call covers several batches.
        done, self._last_batch = batch + 1 - self._last_batch, batch + 1
        self._all_batches += done
        self._of_epoch.batches += done
        self._of_line.batches += done
        if self.every != "epoch" and self._of_line.batches >= int(self.every):
            self._report(self._of_line)
            self._of_line = _Meter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Prints the epoch's numbers and adds them to the logs."""
        del epoch
        if self._of_epoch.batches:
            values = self._report(self._of_epoch)
            if logs is not None:
                logs.update(values)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Closes the TensorBoard file."""
        del logs
        if self._writer is not None:
            self._writer.close()

    def _report(self, meter: _Meter) -> dict[str, Any]:
        group = check_process_set(self.process_set)
        rate, share = meter.batches * self.batch_size / meter.seconds(), meter.wait_share()
        if group.size > 1:
            rate = self._reduced(rate, Sum, "throughput")
            share = self._reduced(share, Max, "wait share")
        values = {
            "samples_per_second": rate,
            "step_ms": 1e3 * meter.seconds() / meter.batches,
            "wait_share": share,
        }
        if group.rank == 0:
            pairs = " ".join(f"{name}={value:.4g};" for name, value in values.items())
            print(f"epoch={self._epoch + 1}; ranks={group.size}; {pairs}", flush=True)
        if self._writer is not None:
            with self._writer.as_default(step=self._all_batches):
                for name, value in values.items():
                    _write_scalar(name, value)
        return values

    def _reduced(self, value: float, op: ReduceOp, name: str) -> float:
        own = tf.constant(value)
        reduced = allreduce(own, op=op, name=name, process_set=self.process_set)
        return float(reduced)
