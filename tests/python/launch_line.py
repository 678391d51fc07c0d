"""What smddprun would run, for tests: words, environment and machine -> one line."""

import sys

from smddp_tf.launch import __main__ as launch
from smddp_tf.launch import command, mpi, options
from smddp_tf.launch.machine import Machine

OPEN_MPI_4 = mpi.Mpi("mpirun", "openmpi", "4.1.8")
OPEN_MPI_5 = mpi.Mpi("mpirun", "openmpi", "5.0.11")
MPICH = mpi.Mpi("mpirun", "mpich", "5.0.2")
INTEL = mpi.Mpi("mpirun", "intel", "2021.18.1")
USER = Machine(root=False, cores=8, name="here")
PROGRAM = ["python", "train.py"]


def line(words, mpi=OPEN_MPI_5, machine=USER, environment=()):
    """The command for smddprun's words, in an environment that has PATH only unless given."""
    given = options.parse(words.split())
    environment = {"PATH": "/usr/bin:/bin", **dict(environment)}
    given.program = [sys.executable if word == "python" else word for word in given.program]
    job = launch.make_job(given, environment, machine)
    made = command.srun(job, mpi) if given.srun else command.mpirun(job, mpi, machine)
    return " ".join(made).replace(sys.executable, "python")
