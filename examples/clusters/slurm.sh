#!/bin/bash
# Two nodes with four ranks each: sbatch examples/clusters/slurm.sh train.py
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
set -euo pipefail

# The environment in which smddp_tf is installed, and whose mpirun is to be used.
source "${VENV:-.venv}/bin/activate"

# Hosts and the number of ranks come from the allocation. Each rank has its own cores.
exec mpirun --map-by "slot:PE=${SLURM_CPUS_PER_TASK:-1}" --bind-to core \
  python "${@:?usage: sbatch slurm.sh SCRIPT [ARGUMENTS]}"
