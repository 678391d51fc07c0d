"""This rank's part of the variables of an optimizer whose state is divided (ZeRO stage 1).

An optimizer makes slots for each variable that it is built on. Here it is built on pieces. A piece
is the variable itself where this rank updates all of it, and one without elements where it updates
nothing; so the foreign slots need no memory, while their number and order stay Keras's. The few
variables that are cut have a piece with a copy of this rank's rows.

A step updates the pieces. Then the ranks gather the variables, in rounds of about a bucket.

Between nodes an allreduce sends twice what a reducescatter does. So variables are cut evenly there,
and a rank gets the reduced gradients of its own rows alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from smddp_tf._src.collectives.allgather import allgather
from smddp_tf._src.gradients.reduce import reduce_gradients, source_name
from smddp_tf._src.graph import ops, xla
from smddp_tf._src.graph.framework import tensorflow
from smddp_tf._src.job import basics, config
from smddp_tf._src.job.process_sets import ProcessSet
from smddp_tf._src.plan import shards as plan
from smddp_tf.keras._distribution import raw

tf = tensorflow()


class Shards:
    """The pieces of one rank.

    Args:
      process_set: the ranks among which the state is divided.
      elementwise: the optimizer may update parts of a variable; else each goes to one rank.
      is_enough: whether gradients of own rows alone are, for what a step does before it updates.
    """

    def __init__(
        self, process_set: ProcessSet, elementwise: bool, is_enough: Callable[[], bool]
    ) -> None:
        self.process_set, self.elementwise, self._is_enough = process_set, elementwise, is_enough
        self._scatters = elementwise and basics.cross_size() > 1 and is_enough()
        self.rank: Any = process_set.rank()
        self.ranks: Any = process_set.size()
        self.variables: list[Any] = []
        self.pieces: list[Any] = []
        self._cuts: dict[int, list[tuple[int, int]]] = {}  # only of variables that are divided
        self._matrices: dict[int, plan.Matrix] = {}
        self._evenly: set[int] = set()  # the places of those whose gradients can be scattered
        self._places: dict[int, int] = {}  # id() of a variable or its piece -> its place

    def divide(
        self,
        variables: Sequence[Any],
        is_kept: Callable[[Any], bool],
        make: Callable[[Any, list[int]], Any],
    ) -> None:
        """Cuts variables and makes the pieces.

        Args:
          variables: those that the optimizer is built on.
          is_kept: whether every rank is to update all of a variable.
          make: make(variable, shape) returns a new variable, to be used in its stead.
        """
        self.variables = list(variables)
        self._matrices = {
            i: self._matrix(variable)
            for i, variable in enumerate(self.variables)
            if variable.shape.rank and 0 not in variable.shape and not is_kept(variable)
        }
        self._cuts = self._cut()
        self.pieces = [self._piece(i, make) for i in range(len(self.variables))]
        self._places = {
            id(raw(one)): i
            for i, pair in enumerate(zip(self.variables, self.pieces, strict=True))
            for one in pair
        }

    def _cut(self) -> dict[int, list[tuple[int, int]]]:
        evenly = {
            i: cuts
            for i, matrix in self._matrices.items()
            if self._scatters
            and self.variables[i].shape.rank > 1
            and (cuts := plan.evenly(matrix, self.ranks)) is not None
        }
        self._evenly = set(evenly)
        rest = [i for i in self._matrices if i not in evenly]
        cut = plan.by_ranges if self.elementwise else plan.by_variables
        cuts = cut([self._matrices[i] for i in rest], self.ranks)
        return evenly | dict(zip(rest, cuts, strict=True))

    def _row_shape(self, variable: Any) -> list[int]:
        """The shape of a row: that of a matrix, as sparse gradients have them; others are flat."""
        shape = variable.shape.as_list()
        if len(shape) == 2 or not self.elementwise:
            return shape[1:]
        elements = plan.row_of_flat(math.prod(shape)) if self._scatters and len(shape) > 2 else 1
        return [elements] if elements > 1 else []

    def _matrix(self, variable: Any) -> plan.Matrix:
        elements = math.prod(self._row_shape(variable))
        rows = variable.shape.num_elements() // elements
        return plan.Matrix(rows, elements, raw(variable).dtype.size)

    def _piece(self, i: int, make: Callable[[Any, list[int]], Any]) -> Any:
        variable = self.variables[i]
        if i not in self._cuts or self.owns_all(i):
            return variable
        start, stop = self._cuts[i][self.rank]
        if start == stop and not self.elementwise:
            return make(variable, [0] * variable.shape.rank)
        return make(variable, [stop - start, *self._row_shape(variable)])

    def place(self, variable: Any) -> int:
        """The place of a variable, or of the variable of a piece.

        Raises:
          ValueError: the optimizer was not built on it.
        """
        found = self._places.get(id(raw(variable)))
        if found is None:
            raise ValueError(
                f"the optimizer was built without {source_name(variable, 0)!r}, and "
                "shard_state=True divides the variables that it was built on; use a new optimizer"
            )
        return found

    def is_divided(self, i: int) -> bool:
        """Whether one rank does not update all of the variable at a place."""
        return i in self._cuts

    def owns_all(self, i: int) -> bool:
        """Whether this rank, and no other, updates all of the variable at a place."""
        return i in self._cuts and self._cuts[i][self.rank] == (0, self._matrices[i].rows)

    def owns_some(self, i: int) -> bool:
        """Whether this rank updates some of the variable at a place."""
        return i not in self._cuts or self._cuts[i][self.rank][0] < self._cuts[i][self.rank][1]

    def _is_copy(self, i: int) -> bool:
        return i in self._cuts and self.owns_some(i) and not self.owns_all(i)

    def first_element(self, i: int) -> int:
        """The first element of the variable at a place that this rank updates."""
        return self._cuts[i][self.rank][0] * self._matrices[i].elements

    def rows(self, value: Any, i: int) -> Any:
        """This rank's rows of a value that has the shape of the variable at a place."""
        if not self._is_copy(i):
            return value
        start, stop = self._cuts[i][self.rank]
        return tf.reshape(value, [-1, *self._row_shape(self.variables[i])])[start:stop]

    def _is_own(self, grad: Any, i: int) -> bool:
        """Whether a gradient has this rank's rows alone, as scattered() returns them."""
        return i in self._evenly and grad.shape != self.variables[i].shape

    def can_scatter(self, grad: Any, variable: Any) -> bool:
        """Whether ranks need no more of a gradient than each its rows."""
        place = self._places.get(id(raw(variable)))
        return (
            place in self._evenly
            and tf.is_tensor(grad)
            and not isinstance(grad, tf.IndexedSlices)
            and grad.shape == self.variables[place].shape
            and not grad.dtype.is_complex  # which is reduced by its parts
            and not xla.inside_jit()
            and self._is_enough()  # a script may have set a limit since
        )

    def scattered(self, grads: Sequence[Any], variables: Sequence[Any], options: Any) -> list[Any]:
        """Reduces gradients that can_scatter(); each rank gets its rows of them. Collective."""

        def emit(tensors: list[Any], plan: Any, reduction: Any) -> list[Any]:
            results = list(tensors)
            reduction = reduction.comparing(plan.description)
            for number, bucket in enumerate(plan.buckets):
                rows = [
                    tf.reshape(tensors[k], [-1, *self._row_shape(variables[k])]) for k in bucket
                ]
                parts = ops.reducescatter(rows, reduction.named(f"{reduction.name}.{number}"))
                for k, part in zip(bucket, parts, strict=True):
                    results[k] = part
            return results

        return reduce_gradients(grads, variables, options, emit)

    def _gradient(self, grad: Any, i: int) -> Any:
        """This rank's rows of a gradient."""
        if not isinstance(grad, tf.IndexedSlices) and self._is_own(grad, i):
            return grad
        if not self._is_copy(i) or not isinstance(grad, tf.IndexedSlices):
            return self.rows(grad, i)
        if self.variables[i].shape.rank > 2:
            raise ValueError(
                f"the gradient of {source_name(self.variables[i], i)!r}, of shape "
                f"{self.variables[i].shape}, is sparse (tf.IndexedSlices); with shard_state=True "
                "the variable may have two dimensions at most: give sparse_as_dense=True"
            )
        start, stop = self._cuts[i][self.rank]
        own = (grad.indices >= start) & (grad.indices < stop)
        shape = tf.constant(raw(self.pieces[i]).shape.as_list(), grad.indices.dtype)
        if xla.inside_jit():  # where shapes are static: the others' add nothing to the first row
            mask = tf.reshape(own, [-1] + [1] * (grad.values.shape.rank - 1))
            values = tf.where(mask, grad.values, tf.zeros_like(grad.values))
            indices = tf.where(own, grad.indices - start, tf.zeros_like(grad.indices))
            return tf.IndexedSlices(values, indices, shape)
        values = tf.boolean_mask(grad.values, own)
        return tf.IndexedSlices(values, tf.boolean_mask(grad.indices, own) - start, shape)

    def own_pieces(self, variables: Sequence[Any]) -> list[Any]:
        """The pieces of variables that have elements."""
        return [self.pieces[i] for i in map(self.place, variables) if self.owns_some(i)]

    def own_gradients(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """This rank's rows of the gradients of variables, one for each of own_pieces()."""
        places = map(self.place, variables)
        pairs = zip(grads, places, strict=True)
        return [self._gradient(grad, i) for grad, i in pairs if self.owns_some(i)]

    def refresh(self, variables: Sequence[Any]) -> None:
        """Copies into the pieces what was assigned to their variables since the last step."""
        for i in map(self.place, variables):
            if self._is_copy(i):
                raw(self.pieces[i]).assign(self.rows(raw(self.variables[i]), i))

    def require_same_ranks(self) -> None:
        """Rejects another job than the one among whose ranks the state was divided.

        Raises:
          RuntimeError: the number or the order of the ranks is another one.
        """
        now = self.process_set.rank(), self.process_set.size()
        if now != (self.rank, self.ranks):
            raise RuntimeError(
                f"the state of this optimizer was divided on rank {self.rank} of {self.ranks} "
                f"(shard_state=True), and this is rank {now[0]} of {now[1]}: save before "
                "shutdown(), and load after init()"
            )

    def gather(self, variables: Sequence[Any]) -> None:
        """Assigns to variables what the ranks have made of their pieces. Collective."""
        self.require_same_ranks()
        places = [i for i in map(self.place, variables) if i in self._cuts]
        by_dtype: dict[Any, list[int]] = {}
        for i in places:
            by_dtype.setdefault(raw(self.variables[i]).dtype, []).append(i)
        for dtype, same in by_dtype.items():
            self._gather_dtype(dtype, same)

    def _gather_dtype(self, dtype: Any, places: list[int]) -> None:
        matrices, cuts = [self._matrices[i] for i in places], [self._cuts[i] for i in places]
        limit = max(1, config.load().bucket_bytes // self.ranks)
        arrived: dict[int, dict[int, Any]] = {i: {} for i in places}
        for one in plan.rounds(matrices, cuts, limit):
            received = self._gather_round(dtype, places, one)
            for k, rank, part in received:
                arrived[places[k]][rank] = part
            for i in {places[k]: None for k, _, _ in received}:
                self._assign_if_whole(i, arrived)

    def _gather_round(self, dtype: Any, places: list[int], one: plan.Round) -> list[Any]:
        """Returns (index into places, rank, flat rows) for all pieces of the round."""
        flat = [tf.reshape(raw(self.pieces[places[k]]), [-1]) for k in one.sent[self.rank]]
        sent = tf.concat(flat, 0) if flat else tf.zeros([0], dtype)
        sizes = [sum(counts) for counts in one.counts]
        counts = [list(counts) for counts in one.counts]
        padded = xla.inside_jit()  # where the ranks' parts have one shape
        if padded:
            sent = tf.pad(sent, [[0, max(sizes) - sizes[self.rank]]])
            for of_rank, size in zip(counts, sizes, strict=True):
                of_rank.append(max(sizes) - size)
        splits = [count for of_rank in counts for count in of_rank]
        everything = allgather(sent, "weights of a divided optimizer", process_set=self.process_set)
        everything = tf.ensure_shape(everything, [sum(splits)])
        keys = [
            (k, rank)
            for rank, of_rank in enumerate(one.sent)
            for k in [*of_rank, *([None] if padded else [])]
        ]
        parts = tf.split(everything, splits)
        pairs = zip(keys, parts, strict=True)
        return [(k, rank, part) for (k, rank), part in pairs if k is not None]

    def _assign_if_whole(self, i: int, arrived: dict[int, dict[int, Any]]) -> None:
        """Assigns the variable at a place when all its rows are there, and drops them."""
        parts = arrived[i]
        if len(parts) < sum(start < stop for start, stop in self._cuts[i]):
            return
        if not self.owns_all(i):
            variable = raw(self.variables[i])
            value = tf.concat([parts[rank] for rank in sorted(parts)], 0)
            variable.assign(tf.reshape(value, variable.shape))
        del arrived[i]
