"""A script for Horovod, for `python -m smddp_tf.compat`: it starts its ranks itself."""

import horovod
import horovod.tensorflow as hvd


def train(factor):
    """Horovod's names in a rank."""
    from horovod.runner import run

    hvd.init()
    assert run is horovod.run
    return factor * hvd.rank(), hvd.size()


if __name__ == "__main__":
    assert hvd.run is horovod.run
    print(horovod.run(train, args=(5,), np=2, use_mpi=True))
    print("one rank:", horovod.run(int, ("7",), {}))
