"""For elastic scripts: a process that comes once the others have gone on without a lost rank.

Else the lost rank may be replaced before it is missed, and the job never has fewer ranks.
"""

import time


def note_size(folder, size) -> None:
    """Ranks go on as so many."""
    (folder / f"size{size}").touch()


def await_size(folder, size) -> None:
    """Until ranks have gone on as so many."""
    end = time.monotonic() + 100
    while not (folder / f"size{size}").exists():
        assert time.monotonic() < end, f"there were never {size} ranks"
        time.sleep(0.05)


def await_turn(folder, plan, slot) -> None:
    """Until there were as many ranks as the plan has before this slot: two, with 3<2 in slot 3."""
    for word in plan:
        if word.startswith(f"{slot}<"):
            await_size(folder, word.partition("<")[2])
