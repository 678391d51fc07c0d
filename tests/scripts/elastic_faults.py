"""An elastic training with a fault: of its reset callback, once, or of its last rank, each time.

Usage: elastic_faults.py folder reset|rank, where hosts.sh reads how many ranks there are to be.
"""

import pathlib
import sys
import time

import smddp_tf as hvd

folder, fault = pathlib.Path(sys.argv[1]), sys.argv[2]
hvd.init()
state = hvd.elastic.ObjectState(step=0)


def fails_once():
    """As a callback does that an upgrade has broken."""
    if not (folder / "failed").exists():
        (folder / "failed").touch()
        raise RuntimeError("a fault of the reset callback")


if fault == "reset":
    state.register_reset_callbacks([fails_once])


@hvd.elastic.run
def train(state):
    """Sixty steps."""
    print("begins at step", state.step, flush=True)
    while state.step < 60:
        if fault == "rank" and state.step == 10 and hvd.rank() == hvd.size() - 1:
            raise RuntimeError("a fault in step 10")
        state.step += 1
        if state.step == 20:
            (folder / "ranks").write_text("2")
        awaits = fault == "reset" and not (folder / "failed").exists()
        if awaits and state.step == 50:
            state.step -= 1  # the second rank is still starting
        hvd.allreduce(1.0, name="gradients")
        time.sleep(0.02)
        state.commit()


train(state)
print("ended at step", state.step, flush=True)
