"""smddprun: a front to mpirun and srun with defaults for training. Standard library only."""
