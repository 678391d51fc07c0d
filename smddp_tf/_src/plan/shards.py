"""Divides the state of an optimizer among ranks: which rows of each variable a rank updates.

Pure: it sees sizes only, and does not import TensorFlow. All ranks compute the same cuts. A
variable's rows are those of its view as a matrix; cuts[i][r] are the first row of variable i that
is rank r's, and the row after its last.

By ranges, the variables are laid end to end and the whole is cut into equal parts, so at most
ranks - 1 variables are cut; by whole variables, each goes to the rank that has the least so far.
Evenly, each variable is cut as a reducescatter cuts it, so that its gradient can be scattered.
"""

import dataclasses
import math
from collections.abc import Sequence

# Kernels compute so many elements at once and the rest one by one, which may round differently. A
# cut at a multiple leaves every element where it was.
_ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class Matrix:
    """A variable as rows of equal size."""

    rows: int
    elements: int  # of a row
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The size of all rows."""
        return self.rows * self.elements * self.itemsize


def by_ranges(variables: Sequence[Matrix], ranks: int) -> list:
    """Cuts variables where equal parts of all their bytes end.

    Args:
      variables: their sizes, in order.
      ranks: the number of ranks.

    Returns:
      The cuts: for each variable a (start, stop) for each rank.
    """
    total = sum(variable.nbytes for variable in variables)
    cuts, before = [], 0
    for variable in variables:
        bounds = [_row_at(variable, total * r / ranks - before) for r in range(1, ranks)]
        bounds = [0, *bounds, variable.rows]
        cuts.append(list(zip(bounds[:-1], bounds[1:], strict=True)))
        before += variable.nbytes
    return cuts


def _row_at(variable: Matrix, offset: float) -> int:
    """The row nearest to a byte at which a variable may be cut."""
    step = _ALIGNMENT // math.gcd(variable.elements, _ALIGNMENT)
    row = step * round(offset / (variable.elements * variable.itemsize * step))
    return min(max(row, 0), variable.rows)


def evenly(variable: Matrix, ranks: int) -> list | None:
    """Cuts a variable as a reducescatter does: into equal numbers of rows, the first ranks' larger.

    Returns:
      The cuts; None where one would move elements, see _ALIGNMENT.
    """
    each, odd = divmod(variable.rows, ranks)
    bounds = [rank * each + min(rank, odd) for rank in range(ranks + 1)]
    if any(bound * variable.elements % _ALIGNMENT for bound in bounds[:-1]):
        return None
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def row_of_flat(elements: int) -> int:
    """The elements of a row of a variable whose own rows are of no use, so that it cuts evenly."""
    return _ALIGNMENT if elements % _ALIGNMENT == 0 else 1


def by_variables(variables: Sequence[Matrix], ranks: int) -> list:
    """Gives whole variables to ranks, the largest first; see by_ranges()."""
    held = [0] * ranks
    cuts: list = [None] * len(variables)
    for i in sorted(range(len(variables)), key=lambda i: (-variables[i].nbytes, i)):
        owner = min(range(ranks), key=lambda rank: (held[rank], rank))
        held[owner] += variables[i].nbytes
        rows = variables[i].rows
        cuts[i] = [(0, rows) if rank == owner else (0, 0) for rank in range(ranks)]
    return cuts


@dataclasses.dataclass(frozen=True)
class Round:
    """What is gathered together: of each rank, the variables of which it sends its rows."""

    sent: tuple  # for each rank a tuple of variables' indices
    counts: tuple  # for each rank the number of elements of each


def rounds(variables: Sequence[Matrix], cuts: Sequence, limit: int) -> list:
    """Divides a gathering of all ranks' rows into rounds, so that no buffer is much larger.

    Args:
      variables: of one dtype.
      cuts: theirs.
      limit: bytes that a rank sends in a round; more if a single piece is larger.

    Returns:
      A Round for each; a rank that has fewer than another sends nothing in the last ones.
    """
    ranks = len(cuts[0]) if cuts else 0
    lists = [_rounds_of(rank, variables, cuts, limit) for rank in range(ranks)]
    count = max(map(len, lists), default=0)
    found = []
    for k in range(count):
        of_ranks = [pieces[k] if k < len(pieces) else [] for pieces in lists]
        sent = tuple(tuple(i for i, _ in pieces) for pieces in of_ranks)
        found.append(Round(sent, tuple(tuple(n for _, n in pieces) for pieces in of_ranks)))
    return found


def _rounds_of(rank: int, variables, cuts, limit: int) -> list:
    """A rank's pieces, as lists of (index, elements)."""
    lists: list = []
    held = limit + 1
    for i, (variable, of_ranks) in enumerate(zip(variables, cuts, strict=True)):
        start, stop = of_ranks[rank]
        count = (stop - start) * variable.elements
        if not count:
            continue
        if held + count * variable.itemsize > limit:
            lists.append([])
            held = 0
        lists[-1].append((i, count))
        held += count * variable.itemsize
    return lists
