"""Starts train.py as a job of SageMaker: python launch.py --role ARN --image URI [--sdk 3].

Needs an AWS account and the package `sagemaker` of the version named by --sdk, neither of which is
needed to train. Two hosts with 8 ranks each. The wheel of smddp_tf lies beside train.py, and is
named in requirements.txt, which the container installs before it trains.
"""

import argparse
import pathlib

HOSTS, RANKS_PER_HOST, INSTANCE = 2, 8, "ml.p4d.24xlarge"
FOLDER = str(pathlib.Path(__file__).resolve().parent)


def with_sdk_2(role, image, data):
    """The estimator. Any image can be trained on by MPI."""
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
        hyperparameters={"epochs": 10, "learning-rate": 0.01},
        metric_definitions=metric_definitions("loss", "accuracy"),
    )
    estimator.fit({"training": data} if data else None)
    return estimator.deploy(initial_instance_count=1, instance_type="ml.c5.xlarge")


def with_sdk_3(role, image, data):
    """The model trainer. Its mpirun is told the ranks of one host only, so all are named here.

    sagemaker.check_hosts() in train.py fails if some host has no rank all the same.
    """
    from sagemaker.train import ModelTrainer
    from sagemaker.train.configs import Compute, InputData, SourceCode
    from sagemaker.train.distributed import MPI

    trainer = ModelTrainer(
        training_image=image,
        role=role,
        source_code=SourceCode(
            source_dir=FOLDER, entry_script="train.py", requirements="requirements.txt"
        ),
        compute=Compute(instance_type=INSTANCE, instance_count=HOSTS),
        distributed=MPI(
            process_count_per_node=RANKS_PER_HOST,
            mpi_additional_options=["-np", str(HOSTS * RANKS_PER_HOST)],
        ),
        hyperparameters={"epochs": 10, "learning-rate": 0.01},
    )
    inputs = [InputData(channel_name="training", data_source=data)] if data else None
    trainer.train(input_data_config=inputs)


def main():
    """Start the job and wait for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", required=True, help="the ARN of the role that the job assumes")
    parser.add_argument("--image", required=True, help="an image with TensorFlow and Open MPI")
    parser.add_argument("--data", help="s3://... with digits.npz; default: what scikit-learn has")
    parser.add_argument("--sdk", type=int, choices=[2, 3], default=2)
    args = parser.parse_args()
    {2: with_sdk_2, 3: with_sdk_3}[args.sdk](args.role, args.image, args.data)


if __name__ == "__main__":
    main()
