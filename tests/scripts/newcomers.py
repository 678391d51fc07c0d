"""For elastic scripts: a process that comes once the others have gone on without a lost rank.

Else the lost rank may be replaced before it is missed, and the job never has fewer ranks.
"""

import time


def note_size(folder, size) -> None:
    """Ranks go on as so many."""
    (folder / f"size{size}").touch()


def await_size(folder, size) -> None:
    """Until ranks have gone on as so many."""
    _await_file(folder / f"size{size}")


def await_answer(folder) -> None:
    """Until smddprun has taken an answer of a discovery script that notes each as answer1, answer2.

    The second call comes after the first's answer was taken.
    """
    _await_file(folder / "answer2")


def _await_file(path) -> None:
    end = time.monotonic() + 100
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.05)


def await_turn(folder, plan, slot) -> None:
    """Until there were as many ranks as the plan has before this slot: two, with 3<2 in slot 3."""
    for word in plan:
        if word.startswith(f"{slot}<"):
            await_size(folder, word.partition("<")[2])
