"""What ranks do in test_equality.py."""

import equality_cells
from harness import report


def cells(ways, features):
    """Reports "way/feature" -> difference."""
    report(differences=equality_cells.run(ways, features))
