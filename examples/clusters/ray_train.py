"""A job on cores and GPUs that Ray grants: python ray_train.py 2 train.py --epochs 3.

Ray finds a machine that has them free and keeps others away; smddprun starts the ranks there. Needs
Ray and cloudpickle beside smddp_tf and TensorFlow in the environment that Ray's workers have.
"""

import os
import runpy
import sys

import smddp_tf as hvd

CORES_PER_RANK, GPUS_PER_RANK = 1, 0


def train(program):
    """What each rank runs: the script, with its arguments."""
    sys.argv = program
    sys.path.insert(0, os.path.dirname(os.path.abspath(program[0])))  # as Python does
    runpy.run_path(program[0], run_name="__main__")


def main():
    """Ask for what all ranks need, and wait. A rank's exception is raised here."""
    ranks, program = int(sys.argv[1]), sys.argv[2:]
    granted = {"num_cpus": ranks * CORES_PER_RANK, "num_gpus": ranks * GPUS_PER_RANK}
    hvd.run(train, (program,), np=ranks, launcher="ray", resources=granted)


if __name__ == "__main__":
    main()
