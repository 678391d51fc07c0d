"""Starts train.py as a job of SageMaker: python launch.py --role ARN --image URI [--way sdk3].

Needs an AWS account and the package `sagemaker`, of version 2 or 3, neither of which is needed to
train. Two hosts with 8 ranks each. The wheel of smddp_tf lies beside train.py, and is named in
requirements.txt, which the container installs before it trains; an image of your own has both.
"""

import argparse
import pathlib

HOSTS, RANKS_PER_HOST, INSTANCE = 2, 8, "ml.p4d.24xlarge"
FOLDER = str(pathlib.Path(__file__).resolve().parent)
HYPERPARAMETERS = {"epochs": 10, "learning-rate": 0.01}
METRICS = ("loss", "accuracy")


def with_sdk_2(role, image, data):
    """The estimator. Any image with SageMaker's training toolkit can be trained on by MPI."""
    from sagemaker.tensorflow import TensorFlow

    from smddp_tf.sagemaker import metric_definitions

    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=FOLDER,
        role=role,
        image_uri=image,
        instance_count=HOSTS,
        instance_type=INSTANCE,
        distribution={"mpi": {"enabled": True, "processes_per_host": RANKS_PER_HOST}},
        hyperparameters=HYPERPARAMETERS,
        metric_definitions=metric_definitions(*METRICS),
    )
    estimator.fit({"training": data} if data else None)
    return estimator


def with_own_image(role, image, data):
    """Version 2 with an image that has no toolkit, but smddp_tf, train.py, sshd and a key.

    docs/sagemaker.md has its Dockerfile.
    """
    from sagemaker.estimator import Estimator

    from smddp_tf.sagemaker import metric_definitions

    estimator = Estimator(
        image_uri=image,
        role=role,
        instance_count=HOSTS,
        instance_type=INSTANCE,
        container_entry_point=["smddprun", "--sagemaker", "python", "/opt/program/train.py"],
        hyperparameters={"mpi_world_size": HOSTS * RANKS_PER_HOST, **HYPERPARAMETERS},
        metric_definitions=metric_definitions(*METRICS),
    )
    estimator.fit({"training": data} if data else None)
    return estimator


def _train_with_sdk_3(role, image, data, **how):
    """A model trainer of version 3; `how` says what runs on each host."""
    from sagemaker.train import ModelTrainer
    from sagemaker.train.configs import Compute, InputData, MetricDefinition

    from smddp_tf.sagemaker import metric_definitions

    trainer = ModelTrainer(
        training_image=image,
        role=role,
        compute=Compute(instance_type=INSTANCE, instance_count=HOSTS),
        hyperparameters=HYPERPARAMETERS,
        **how,
    ).with_metric_definitions(
        [
            MetricDefinition(name=one["Name"], regex=one["Regex"])
            for one in metric_definitions(*METRICS)
        ]
    )
    inputs = [InputData(channel_name="training", data_source=data)] if data else None
    trainer.train(input_data_config=inputs)
    return trainer


def with_sdk_3(role, image, data):
    """Its MPI driver. It tells mpirun the ranks of one host only, so all are named here.

    Of two -np Open MPI takes the last. sagemaker.check_hosts() in train.py fails if some host has
    no rank all the same.
    """
    from sagemaker.train.configs import SourceCode
    from sagemaker.train.distributed import MPI

    source = SourceCode(source_dir=FOLDER, entry_script="train.py", requirements="requirements.txt")
    ranks = ["-np", str(HOSTS * RANKS_PER_HOST)]
    mpi = MPI(process_count_per_node=RANKS_PER_HOST, mpi_additional_options=ranks)
    return _train_with_sdk_3(role, image, data, source_code=source, distributed=mpi)


def with_sdk_3_smddprun(role, image, data):
    """Smddprun on every host instead: the image needs sshd and a key, not mpi4py or paramiko."""
    from sagemaker.train.configs import SourceCode

    # With a command, hyperparameters are no arguments of the script.
    words = [f"--{name}={value}" for name, value in HYPERPARAMETERS.items()]
    command = f"smddprun --sagemaker -np {HOSTS * RANKS_PER_HOST} python train.py"
    source = SourceCode(
        source_dir=FOLDER, command=command, args=words, requirements="requirements.txt"
    )
    return _train_with_sdk_3(role, image, data, source_code=source)


WAYS = {
    "sdk2": with_sdk_2,
    "own-image": with_own_image,
    "sdk3": with_sdk_3,
    "sdk3-smddprun": with_sdk_3_smddprun,
}


def main():
    """Start the job and wait for it. deploy.py serves the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", required=True, help="the ARN of the role that the job assumes")
    parser.add_argument("--image", required=True, help="an image with TensorFlow and Open MPI")
    parser.add_argument("--data", help="s3://... with digits.npz; default: what scikit-learn has")
    parser.add_argument("--way", choices=sorted(WAYS), default="sdk2")
    args = parser.parse_args()
    WAYS[args.way](args.role, args.image, args.data)


if __name__ == "__main__":
    main()
