"""Marks gradients that a tape or compute_gradients() reduced, so that no optimizer does so again.

A script may wrap both the tape and the optimizer. Horovod's Keras optimizers reduce nothing in
apply_gradients(), so there each gradient is reduced once.
"""

from typing import Any

from smddp_tf._src.graph.framework import tensorflow

tf = tensorflow()

_ATTRIBUTE = "_smddp_reduced_over"  # the number of a process set
_has_marked: set = set()  # not empty once the process has marked a gradient


def _own(grad):
    """The gradient as an object of its own: a local one may be what the script holds elsewhere."""
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values, grad.indices, grad.dense_shape)
    return tf.identity(grad)


def marked(grads, before, process_set) -> list:
    """Marks gradients as reduced over a process set; returns them.

    Args:
      grads: the gradients; None stays None.
      before: what they were before they were reduced.
      process_set: the ranks that took part.
    """
    results = []
    for grad, one in zip(grads, before, strict=True):
        if grad is not None:
            grad = _own(grad) if grad is one else grad
            mark(grad, process_set)
        results.append(grad)
    return results


def is_marked(grad, process_set) -> bool:
    """Whether marked() returned this very object, for the same ranks."""
    number = getattr(grad, _ATTRIBUTE, None)
    return number is not None and number == process_set.process_set_id


def mark(grad, process_set) -> None:
    """Marks a gradient, with the tensor that has its elements, as reduced over a process set."""
    _has_marked.add(True)
    for one in {id(grad): grad, id(_values(grad)): _values(grad)}.values():
        setattr(one, _ATTRIBUTE, process_set.process_set_id)


# What sets a variable to the value of its second input. Optimizers update theirs by other ops.
_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "Assign", "AssignAdd")
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")


def mark_what_comes_from_marked(grads, process_set, trained) -> None:
    """Marks gradients that the graph computes from marked ones: clips, casts, scales or sums.

    Does nothing in eager execution, where nothing tells.

    It looks at what has elements of gradients: floating tensors that are no scalars, unless the
    gradient is one, since a scalar is a norm or a factor, which local gradients may depend on too.
    A variable is looked through if the graph assigns it such a tensor, as one in which a script
    adds up gradients.

    Args:
      grads: tensors or tf.IndexedSlices of a graph, or None.
      process_set: the ranks that have reduced.
      trained: variables that gradients are of, which are not looked through.
    """
    if not _has_marked or tf.executing_eagerly():
        return
    ends = {_storage(variable) for variable in trained}
    others: dict = {True: set(), False: set()}  # what comes from none, for scalars and for others
    for grad in grads:
        if grad is None or not hasattr(_values(grad), "graph"):
            continue
        scalar = _values(grad).shape.rank == 0
        seen = _seen_before_marked(_values(grad), process_set, ends, scalar, others[scalar])
        if seen is None:
            mark(grad, process_set)
        else:
            others[scalar] |= seen


def _seen_before_marked(grad, process_set, ends: set, scalars: bool, others: set) -> set | None:
    """None if the gradient comes from a marked one; else what it comes from."""
    seen, following = set(), [grad]
    while following:
        tensor = following.pop()
        if is_marked(tensor, process_set):
            return None
        key = tensor.graph, tensor.name
        if key in seen or key in others:
            continue
        seen.add(key)
        for one in _made_of(tensor, ends):
            holds_elements = one.dtype.is_floating and (scalars or one.shape.rank != 0)
            if holds_elements or one.dtype == tf.resource:
                following.append(one)
    return seen


def _values(grad):
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad


def _storage(variable) -> tuple:
    """Where the graph has a variable: the graph and the name of its op."""
    variable = getattr(variable, "_value", variable)
    tensor: Any = getattr(variable, "handle", None)
    tensor = getattr(variable, "_variable", None) if tensor is None else tensor
    return (tensor.graph, tensor.op.name) if hasattr(tensor, "graph") else (None, variable.name)


def _made_of(tensor, ends: set) -> list:
    """The tensors from which an op makes this one, or that are assigned to this variable."""
    op = tensor.op
    outer = [there for there, here in getattr(tensor.graph, "captures", ()) if here is tensor]
    if outer:
        return [there for there in outer if hasattr(there, "graph")]  # else it is eager
    if op.type not in _VARIABLES:
        return list(op.inputs)
    if (tensor.graph, op.name) in ends:
        return []
    return [user.inputs[1] for user in tensor.consumers() if user.type in _ASSIGNS]
