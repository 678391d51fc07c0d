"""A job on cores and GPUs that Ray grants: python ray_train.py 2 train.py --epochs 3.

Ray finds a machine that has them free and keeps others away; smddprun starts the ranks there. Needs
Ray beside smddp_tf and TensorFlow in the environment that Ray's workers have.
"""

import subprocess
import sys

import ray

CORES_PER_RANK, GPUS_PER_RANK = 1, 0


def train(ranks, program):
    """What the worker runs: the job, to its end; its lines appear in the driver's output."""
    command = [sys.executable, "-m", "smddp_tf.launch", "-np", str(ranks), *program]
    return subprocess.run(command, check=False).returncode


def main():
    """Ask for what all ranks need, and wait."""
    ranks, program = int(sys.argv[1]), sys.argv[2:]
    ray.init()  # the cluster around, or one of this machine alone
    granted = {"num_cpus": ranks * CORES_PER_RANK, "num_gpus": ranks * GPUS_PER_RANK}
    # Ray would start a task again that failed; smddprun's --max-restarts knows of checkpoints.
    job = ray.remote(max_retries=0, **granted)(train)
    sys.exit(ray.get(job.remote(ranks, program)))


if __name__ == "__main__":
    main()
