"""smddprun: a front to mpirun and srun with defaults for training. Standard library only."""


class LaunchError(ValueError):
    """The job cannot be launched as asked; the message gives the cause and the remedy."""
