"""Looks at a fit() when it begins for the commonest mistakes: what one rank decides alone.

Later such a mistake shows as a rank that left, or as two collectives that differ. So each is said
when training begins, and again in the error that it leads to.
"""

from __future__ import annotations

import dis
import os
import sys
import types
import warnings
from typing import Any

from smddp_tf._src.gradients.equality import differences
from smddp_tf._src.job import basics, native
from smddp_tf._src.job.process_sets import ProcessSet
from smddp_tf._src.state import held
from smddp_tf.keras.callbacks._base import Callback
from smddp_tf.keras.callbacks._metrics import MetricAverageCallback
from smddp_tf.keras.callbacks._stopping import AgreeOnStop, EarlyStopping

_OURS = __name__.split(".")[0]
_KERASES = ("keras", "tf_keras")
# Callbacks of Keras's that change training; the others only write or print.
_DECIDE = {
    "BackupAndRestore",
    "EarlyStopping",
    "LearningRateScheduler",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TerminateOnNaN",
}
_WRITE = {"ModelCheckpoint": "filepath", "BackupAndRestore": "backup_dir", "CSVLogger": "filename"}
_DECIDING_ATTRIBUTES = {"stop_training", "learning_rate", "lr"}

_SAME_LISTS = (
    "give all ranks the same callbacks in the same order, as each decides or communicates; "
    "RankZero(callback) is for those that only write or print"
)
_SAME_VALIDATION = (
    "the other ranks wait, or average metrics that they do not have: give validation_data to all "
    "ranks (hvd.shard(data, uneven='repeat')), or call hvd.evaluate(model, x, y) after fit()"
)
_SAME_BATCHES = (
    "the ranks with more wait for gradients that never come: hvd.shard(data) gives all ranks as "
    "many, steps_per_epoch= takes the same number of each; a rank with fewer may call hvd.join() "
    "after fit()"
)
# What is compared -> what to do if it differs.
_REMEDIES = {
    "callbacks that change training": _SAME_LISTS,
    "validation_data": _SAME_VALIDATION,
    "batches an epoch": _SAME_BATCHES,
    "epochs": "give all ranks the same epochs= and initial_epoch=, or the others wait",
}
_FILES = "files"


class _Fit:
    """What a call of fit() was given, found in the frames of the functions that are running.

    Keras tells a callback neither the list that it is in nor whether there is validation data.
    """

    def __init__(self, callback: Any) -> None:
        self.callbacks: list[Any] = []
        self.arguments: dict[str, Any] = {}
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and not self.arguments:
            owner = frame.f_locals.get("self")
            listed = held.own(owner).get("callbacks")
            if isinstance(listed, list) and any(one is callback for one in listed):
                self.callbacks = list(listed)
            if owner is callback.model and "validation_data" in frame.f_locals:
                names = ("validation_data", "validation_freq", "initial_epoch")
                self.arguments = {name: frame.f_locals.get(name) for name in names}
            frame = frame.f_back


def _keras_class(callback: Any) -> type | None:
    """Keras's own class of a callback, or the one from which its class derives."""
    kinds = [k for k in type(callback).__mro__ if k.__module__.split(".")[0] in _KERASES]
    return kinds[0] if kinds else None


def _is_raw(callback: Any, name: str) -> bool:
    """Whether it is Keras's callback of this name, with Keras's own way to decide."""
    kind = _keras_class(callback)
    if kind is None or kind.__name__ != name:
        return False
    decides = ("get_monitor_value", "on_epoch_end", "on_batch_end", "on_train_batch_end")
    return all(getattr(type(callback), m, None) is getattr(kind, m, None) for m in decides)


def _sets(callback: Any) -> set[str]:
    """Which attributes that change training the methods of a script's own callback set."""
    found = set()
    for kind in type(callback).__mro__:
        if kind.__module__.split(".")[0] in (*_KERASES, _OURS):
            break
        codes = [getattr(one, "__code__", None) for one in vars(kind).values()]
        for instruction in (i for code in codes if code for i in dis.get_instructions(code)):
            if instruction.opname == "STORE_ATTR":
                found.add(instruction.argval)
    return found & _DECIDING_ATTRIBUTES


def title(callback: Any) -> str:
    """The name of a callback that must be in the lists of all ranks; "" for others."""
    kind, keras_kind = type(callback), _keras_class(callback)
    ours = kind.__module__.split(".")[0] == _OURS and kind is not Callback
    decides = keras_kind is not None and keras_kind.__name__ in _DECIDE
    return kind.__name__ if ours or decides or _sets(callback) else ""


def _alone(callbacks: list[Any]) -> list[str]:
    """A sentence for each callback by which this rank decides alone, though others follow it."""
    found = []
    for i, callback in enumerate(callbacks):
        after = callbacks[i + 1 :]
        averaged = any(isinstance(one, MetricAverageCallback) for one in callbacks[:i])
        agreed = any(isinstance(one, AgreeOnStop) for one in after)
        agreed_in_epochs = agreed or any(isinstance(one, EarlyStopping) for one in after)
        own = f"this rank's own {getattr(callback, 'monitor', 'loss')!r}"
        if _is_raw(callback, "EarlyStopping") and not averaged:
            text = f"Keras's EarlyStopping monitors {own}: "
            remedy = (
                "put MetricAverageCallback before it, or use "
                f"{_OURS}.keras.callbacks.EarlyStopping, which all ranks decide together"
            )
            if not agreed_in_epochs:
                found.append(f"{text}a rank that stops alone leaves the others waiting; {remedy}")
            elif getattr(callback, "restore_best_weights", False):
                found.append(f"{text}each rank restores other best weights; {remedy}")
        if _is_raw(callback, "ReduceLROnPlateau") and not averaged:
            found.append(
                f"Keras's ReduceLROnPlateau monitors {own}: the ranks' learning rates, and then "
                "their weights, come apart; put MetricAverageCallback before it, or use "
                f"{_OURS}.keras.callbacks.ReduceLROnPlateau"
            )
        if _is_raw(callback, "TerminateOnNaN") and not agreed:
            found.append(
                f"Keras's TerminateOnNaN looks at {own}: a rank that stops alone leaves the others "
                f"waiting; use {_OURS}.keras.callbacks.TerminateOnNaN"
            )
    return found


def _may_stop_alone(callbacks: list[Any]) -> list[str]:
    """What is right where all ranks come to the same, and is a likely cause once they have not."""
    for i, callback in enumerate(callbacks):
        agreed = any(isinstance(one, (AgreeOnStop, EarlyStopping)) for one in callbacks[i + 1 :])
        if "stop_training" in _sets(callback) and not agreed:
            return [
                f"{type(callback).__name__} sets model.stop_training; if only some ranks do, put "
                f"{_OURS}.keras.callbacks.AgreeOnStop last"
            ]
    return []


def _written(callbacks: list[Any]) -> list[str]:
    """The files that Keras's own callbacks write on this rank."""
    found = []
    for callback in callbacks:
        kind = type(callback)
        if kind is _keras_class(callback) and kind.__name__ in _WRITE:
            path: Any = getattr(callback, _WRITE[kind.__name__], None)
            path = path or getattr(callback, "_" + _WRITE[kind.__name__], "")
            found.append(f"{kind.__name__}({os.path.abspath(os.fspath(path))!r})")
    return found


def _entries(fit: _Fit, callback: Any) -> dict[str, Any]:
    """What all ranks should give fit() alike, as entries for differences()."""
    titles = [name for name in map(title, fit.callbacks) if name]
    params = callback.params or {}
    texts = {
        "callbacks that change training": f"[{', '.join(titles)}]",
        "batches an epoch": str(params.get("steps")),
        "epochs": f"{fit.arguments.get('initial_epoch')} to {params.get('epochs')}",
        _FILES: str(_written(fit.callbacks)),
    }
    averages = any(isinstance(one, MetricAverageCallback) for one in fit.callbacks)
    if callback.average_batch_normalization or averages:  # else some may validate alone
        texts["validation_data"] = _validation(fit.arguments)
    return {name: (name, text) for name, text in texts.items()}


def _validation(arguments: dict[str, Any]) -> str:
    if arguments.get("validation_data") is None:
        return "not given"
    frequency = arguments["validation_freq"]
    return "given" if frequency == 1 else f"given, validation_freq={frequency}"


def _same_file(fit: _Fit, lines: list[str], process_set: ProcessSet) -> list[str]:
    """What to say if all ranks write the same files, of which some are on one machine."""
    written = _written(fit.callbacks)
    if not written or basics.local_size() == 1 or any(one.startswith(_FILES) for one in lines):
        return []
    return [
        f"{written[0]} is in the callbacks of all ranks, which write the same file at the same "
        "time: wrap it in RankZero(...); for BackupAndRestore there is "
        f"{_OURS}.keras.callbacks.BackupAndRestore"
    ]


def look(callback: Any) -> None:
    """Warns of what ranks give a fit() differently, and of callbacks that decide on one rank.

    What is found is also told to the engine, whose errors end with it until forget() is called.
    Collective over the callback's process set.

    Args:
      callback: the BroadcastGlobalVariablesCallback whose on_train_begin() calls this.
    """
    fit = _Fit(callback)
    lines = differences(_entries(fit, callback), "arguments of fit()", callback.process_set)
    found = _alone(fit.callbacks) + _same_file(fit, lines, callback.process_set)
    for line in lines:
        name = line.split(":")[0]
        if name in _REMEDIES:
            found.append(f"{line}; {_REMEDIES[name]}")
    for text in found:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    suspects = found + _may_stop_alone(fit.callbacks)
    text = "".join(f"\n  {one}" for one in suspects)
    native.core().smddp_suspect((f"Seen when fit() began:{text}" if text else "").encode())


def forget() -> None:
    """Ends what look() told the engine: that fit() has ended."""
    native.core().smddp_suspect(b"")
