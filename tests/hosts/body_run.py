"""A user's process that starts ranks on several hosts: body_run.py HOSTS WORDS."""

import json
import socket
import sys

import numpy as np

import smddp_tf as hvd
from smddp_tf.errors import RankFailedError


def where(large):
    """A rank's place and, from each, some megabytes."""
    hvd.init()
    return hvd.rank(), socket.gethostname(), np.full(large, hvd.rank(), np.float32)


def fail_on(host):
    """The rank there."""
    hvd.init()
    if socket.gethostname() == host:
        raise KeyError(f"of {host}")


if __name__ == "__main__":
    on = {"hosts": sys.argv[1], "mpi_args": sys.argv[2]}
    for nic in ("eth0", None):
        found = hvd.run(where, (5_000_000,), network_interface=nic, **on)
        same = all((large == rank).all() and large.size == 5_000_000 for rank, _, large in found)
        print(json.dumps({"places": [one[:2] for one in found], "same": same, "nic": nic}))
    try:
        hvd.run(fail_on, ("host2",), network_interface="eth0", **on)
    except RankFailedError as error:
        print(json.dumps({"rank": error.rank, "cause": repr(error.__cause__)}))
