"""What ranks do in test_equality.py."""

import equality_cells
from harness import report


def cells(ways):
    """Reports "way/feature" -> difference, of every feature in these ways."""
    report(differences=equality_cells.run(ways))
