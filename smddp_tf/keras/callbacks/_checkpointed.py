"""What a sharded checkpoint has of a training, and which rank writes what of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from smddp_tf._src.collectives.variables import is_seed, own_seed
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job.process_sets import ProcessSet
from smddp_tf._src.plan import shards as plan
from smddp_tf._src.state import parts, share, traces
from smddp_tf._src.types import Variable
from smddp_tf.keras import _distribution
from smddp_tf.keras._distribution import raw
from smddp_tf.keras._whole_state import divided_slots
from smddp_tf.keras.callbacks._base import optimizers_of, training_state, variables_of
from smddp_tf.keras.callbacks._state import sums_of

tf = tensorflow()

# The dtypes that safetensors and NumPy both have.
_DTYPES = {
    **{"bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
    **{"uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "float16": "F16"},
    **{"bfloat16": "BF16", "float32": "F32", "float64": "F64"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}


class _Entry(NamedTuple):
    """A variable, and what this rank has of it."""

    key: str
    variable: Variable
    start: int  # the first element that this rank has, of all
    shape: tuple[int, ...]  # of the whole
    divided: bool  # each rank writes what it has of it

    @property
    def elements(self) -> int:
        return int(np.prod(raw(self.variable).shape.as_list(), dtype=np.int64))

    @property
    def dtype(self) -> str:
        return _DTYPES[tf.as_dtype(self.variable.dtype).base_dtype.name]


def require_supported(model: Any) -> None:
    """Rejects a training of which ranks hold what no file could give to other ranks.

    Raises:
      ValueError: the model is not built, an optimizer's gradients or weights differ by rank, or a
        variable has a dtype that the files do not have.
    """
    if not model.built:
        raise ValueError(
            "ShardedCheckpoint needs the model's variables: build the model, or call it once"
        )
    for optimizer in optimizers_of(model):
        distribution = _distribution.of(optimizer)
        if distribution is not None and (distribution.has_local or distribution.is_local_steps):
            what = "sync_every" if distribution.is_local_steps else "register_local_var()"
            raise ValueError(
                f"ShardedCheckpoint keeps what is the same on all ranks, or divided among them; "
                f"with {what} each rank has its own: save with hvd.callbacks.RankZero("
                "ModelCheckpoint(...)), or a file for each rank"
            )
    for variable in training_state(model, divided=True):
        name = tf.as_dtype(variable.dtype).base_dtype.name
        if name not in _DTYPES:
            raise ValueError(
                f"ShardedCheckpoint cannot write {_name_of(variable)!r}, which is of {name}: "
                f"safetensors files have {', '.join(_DTYPES)}"
            )


def _name_of(variable: Variable) -> str:
    return (getattr(variable, "path", None) or variable.name).split(":")[0]


def _accumulators(model: Any) -> set[int]:
    """Sums of gradients since the last update, which each rank has of its own batches."""
    return {id(raw(one)) for optimizer in optimizers_of(model) for one in sums_of(optimizer)}


def _entries(model: Any) -> list[_Entry]:
    """The variables that the training goes on from, the same ones on all ranks."""
    divided: dict[int, tuple[Any, int]] = {}
    for optimizer in optimizers_of(model):
        distribution = _distribution.of(optimizer)
        if distribution is not None and distribution.is_divided:
            slots = divided_slots(_distribution.innermost(optimizer))
            divided |= {key: (distribution.shards, place) for key, place in slots.items()}
    left_out = _accumulators(model)
    found: list[_Entry] = []
    for variable in training_state(model, divided=True):
        if id(raw(variable)) in left_out:
            continue
        start, shape = 0, tuple(raw(variable).shape.as_list())
        shards, place = divided.get(id(raw(variable)), (None, 0))
        if shards is not None and shards.owns_some(place) and not shards.owns_all(place):
            start, shape = shards.first_element(place), tuple(shards.variables[place].shape)
        key = f"{len(found):05}/{_name_of(variable)}"
        found.append(_Entry(key, variable, start, shape, shards is not None))
    return found


def _owners(model: Any, entries: list[_Entry], ranks: int) -> list[int]:
    """The rank that writes each entry that is not divided.

    Trained weights and optimizers' variables are the same on each rank. What else a model has, as
    moving statistics, is the first rank's, so that it belongs together.
    """
    shared = [*model.trainable_variables]
    for optimizer in optimizers_of(model):
        shared += variables_of(optimizer, divided=True)
    alike = {id(raw(variable)) for variable in shared}
    spread = [
        i for i, one in enumerate(entries) if not one.divided and id(raw(one.variable)) in alike
    ]
    sizes = [
        plan.Matrix(1, entries[i].elements, raw(entries[i].variable).dtype.size) for i in spread
    ]
    owners = [0] * len(entries)
    for i, cuts in zip(spread, plan.by_variables(sizes, ranks), strict=True):
        owners[i] = cuts.index((0, 1))
    return owners


def pieces(model: Any, process_set: ProcessSet) -> list[parts.Piece]:
    """Copies of what this rank writes."""
    rank: Any = process_set.rank()
    ranks: Any = process_set.size()
    entries = _entries(model)
    owners = _owners(model, entries, ranks)
    return [
        parts.Piece(one.key, one.start, one.shape, _array(one))
        for one, owner in zip(entries, owners, strict=True)
        if (one.elements if one.divided else owner == rank)
    ]


def _array(one: _Entry) -> np.ndarray:
    array = np.array(tf.convert_to_tensor(raw(one.variable)).numpy())
    return array if array.shape == one.shape else array.reshape(-1)


def facts(model: Any, epoch: int) -> dict[str, Any]:
    """What a checkpoint tells besides arrays: the epoch, and which vocabularies the model has."""
    return {"epoch": epoch, "tables": share.tables_of(share.layers_of(model))}


def problems(model: Any, checkpoint: parts.Checkpoint) -> list[str]:
    """Why the model cannot go on from the checkpoint."""
    entries, saved = _entries(model), list(checkpoint.keys())
    if len(entries) != len(saved):
        return [f"it has {len(saved)} variables, and this model with its optimizers {len(entries)}"]
    found = []
    for one, key in zip(entries, saved, strict=True):
        shape, dtype = checkpoint.shapes[key], checkpoint.dtype(key)
        empty = one.divided and not one.elements
        if not empty and (shape, dtype) != (one.shape, one.dtype):
            found.append(
                f"its {key!r} has shape {list(shape)} of {dtype}, and {one.key!r} of this model "
                f"{list(one.shape)} of {one.dtype}"
            )
    own, tables = share.tables_of(share.layers_of(model)), checkpoint.facts["tables"]
    if [digest for _, digest in own] != [digest for _, digest in tables]:
        layers = [one[0] for one, other in zip(own, tables, strict=False) if one[1] != other[1]]
        found.append(
            f"{', '.join(layers) or 'the layers'} had other vocabularies or boundaries: adapt to "
            "the same data before"
        )
    return found


def restore(model: Any, checkpoint: parts.Checkpoint, process_set: ProcessSet) -> None:
    """Assigns what this rank needs of a checkpoint that has no problems()."""
    for one, key in zip(_entries(model), checkpoint.keys(), strict=True):
        if one.divided and not one.elements:
            continue
        values = checkpoint.read(key, one.start, one.elements)
        variable = raw(one.variable)
        value = tf.constant(values.reshape(variable.shape.as_list()), variable.dtype)
        if is_seed(one.variable):  # ranks draw different numbers, as after a broadcast
            value = own_seed(one.variable, value, process_set.ranks[0])
        variable.assign(value)
    for optimizer in optimizers_of(model):
        for one in sums_of(optimizer):
            raw(one).assign(tf.zeros_like(raw(one)))
    changed = share.refresh(share.layers_of(model))
    traces.forget(changed, changed)
