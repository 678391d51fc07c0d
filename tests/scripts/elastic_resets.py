"""An elastic training whose first rank raises in its reset callback, when a second one comes.

Usage: elastic_resets.py folder, where hosts.sh reads how many ranks there are to be.
"""

import pathlib
import sys
import time

import smddp_tf as hvd

folder = pathlib.Path(sys.argv[1])
hvd.init()
state = hvd.elastic.ObjectState(step=0)


def fails_once():
    """As a callback does that an upgrade has broken."""
    if not (folder / "failed").exists():
        (folder / "failed").touch()
        raise RuntimeError("a fault of the reset callback")


state.register_reset_callbacks([fails_once])


@hvd.elastic.run
def train(state):
    """Sixty steps."""
    print("begins at step", state.step, flush=True)
    while state.step < 60:
        state.step += 1
        if state.step == 20:
            (folder / "ranks").write_text("2")
        if state.step == 50 and hvd.size() == 1 and not (folder / "failed").exists():
            state.step -= 1  # the second rank is still starting
        time.sleep(0.02)
        state.commit()


train(state)
print("ended at step", state.step, flush=True)
