"""Callbacks that make the ranks start equal and report equal metrics."""

import numbers

from smddp_tf import _collectives, _native, _runtime, _variables
from smddp_tf._ops import Average
from smddp_tf.keras.callbacks._base import Callback, build, variables_of
from smddp_tf.keras.callbacks._check import FirstUpdate
from smddp_tf.keras.callbacks._state import optimizers_of

tf = _native.tensorflow()


def _has_variables(model) -> bool:
    """Whether all of the model's variables exist; a model without call() is never built itself."""
    return model.built or (bool(model.layers) and all(layer.built for layer in model.layers))


def _zeros_like_spec(tensor):
    """A batch of one zero element with the shape of a batch; unknown sizes become 1."""
    if not isinstance(tensor, tf.Tensor):
        raise TypeError(f"{type(tensor).__name__} inputs")
    return tf.zeros([dim or 1 for dim in [1, *tensor.shape.as_list()[1:]]], tensor.dtype)


class BroadcastGlobalVariablesCallback(Callback):
    """Gives all ranks the root's weights and optimizer state before the first gradient.

    Models that are built by their first batch are built with zeros first, so that they have
    variables to broadcast. A job whose first batch reduced no gradient at all is warned about, and
    one whose ranks have different weights after the first update; CheckRanksEqual looks again.

    Args:
      root_rank: the rank whose values all get.
      device: accepted for old scripts.
      local_variables: a list of variables that are not broadcast.

    Raises:
      ValueError: root_rank is no rank.
    """

    def __init__(self, root_rank, device="", local_variables=None):
        super().__init__()
        del device
        self.root_rank = _collectives.check_root(root_rank)
        self.local = {id(getattr(v, "_value", v)) for v in local_variables or []}
        self.done = False
        self._first_update = None

    def set_model(self, model):
        """Prepares a model that its first batch will build."""
        super().set_model(model)
        if not _has_variables(model) and not self.done and _runtime.size() > 1:
            self._build_at_first_step(model)

    def _build_at_first_step(self, model) -> None:
        original = model.train_step

        def train_step(data):
            if not self.done:
                with tf.init_scope():
                    self._build_with_zeros(model, data)
            return original(data)

        model.train_step = train_step

    def _build_with_zeros(self, model, data) -> None:
        inputs = data[0] if isinstance(data, (list, tuple)) else data
        if not _has_variables(model):
            try:
                model(tf.nest.map_structure(_zeros_like_spec, inputs), training=False)
            except Exception as error:
                raise RuntimeError(
                    "the model is not built, and calling it with zeros of its inputs' shapes, to "
                    f"have variables to broadcast before the first gradient, failed: {error}. "
                    "Build it before fit(): call it on a batch, or model.build(input_shape)"
                ) from error
        self._synchronize(model)

    def on_train_begin(self, logs=None):
        """Broadcasts, if the variables are there."""
        del logs
        if not self.done and _has_variables(self.model):
            self._synchronize(self.model)

    def _synchronize(self, model) -> None:
        self.done = True
        if _runtime.size() == 1:
            return
        variables = list(model.weights)
        if getattr(model, "optimizer", None) is not None:
            build(model.optimizer, model.trainable_variables)
        for optimizer in optimizers_of(model):
            variables += variables_of(optimizer)
        shared = [v for v in variables if id(getattr(v, "_value", v)) not in self.local]
        _variables.broadcast_(shared, self.root_rank, name="initial state")
        self._first_update = FirstUpdate(model, self.local)

    def on_train_batch_end(self, batch, logs=None):
        """After the first update: looks whether gradients were reduced."""
        del logs
        if self._first_update is not None and self._first_update.look(batch):
            self._first_update = None


class MetricAverageCallback(Callback):
    """Averages the epoch's metrics over all ranks, so that every rank reports the same.

    Put it before callbacks that look at metrics (checkpoints, early stopping, learning rate): they
    then see the averages. Averages are over ranks, not samples; with hvd.shard() the two agree.

    Args:
      device: accepted for old scripts.
    """

    def __init__(self, device=""):
        super().__init__()
        del device

    def on_epoch_end(self, epoch, logs=None):
        """Replaces the numbers in logs."""
        del epoch
        average_in_place(logs)


def average_in_place(logs) -> None:
    """Averages the numbers of a dict over all ranks; the ranks must have the same names.

    Raises:
      tf.errors.FailedPreconditionError: the names differ.
    """
    if not logs or _runtime.size() == 1:
        return
    names = [
        name
        for name in sorted(logs)
        if isinstance(logs[name], numbers.Number) or getattr(logs[name], "shape", None) == ()
    ]
    values = tf.constant([float(logs[name]) for name in names], tf.float64)
    reduced = _collectives.allreduce(values, op=Average, name="metrics " + ", ".join(names))
    for name, value in zip(names, reduced.numpy(), strict=True):
        logs[name] = float(value)
