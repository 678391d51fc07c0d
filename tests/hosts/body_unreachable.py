"""What a rank does in test_two_hosts_that_cannot_reach_each_other: notes what became of init().

    body_unreachable.py FOLDER

Each rank writes to FOLDER how many seconds that took, and the sentence.
"""

import os
import pathlib
import sys
import time

import smddp_tf as hvd
from smddp_tf.errors import InitError


def main():
    begin = time.monotonic()
    try:
        hvd.init()
        said = "no error"
    except InitError as error:
        said = str(error)
    note = pathlib.Path(sys.argv[1], os.environ["OMPI_COMM_WORLD_RANK"])
    note.write_text(f"{time.monotonic() - begin:.1f} {said}")
    # Since mpirun ends the others when a rank ends, and drops what they have to say.
    until = time.monotonic() + 20
    while len(list(note.parent.iterdir())) < 3 and time.monotonic() < until:
        time.sleep(0.05)
    return 1


if __name__ == "__main__":
    sys.exit(main())
