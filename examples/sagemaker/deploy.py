"""Serves what train.py has exported: here, or as an endpoint of SageMaker.

    python deploy.py --here model/1
    python deploy.py --name digits --role ARN --image URI --model-data s3://.../model.tar.gz

The image is one for serving, not for training: TensorFlow Serving in SageMaker's
`tensorflow-inference`. An endpoint costs money until it is deleted.
"""

import argparse
import json

SECONDS = 1800  # until an endpoint is in service


def here(folder, instances):
    """What TensorFlow Serving answers to {"instances": instances}: the signature of the model."""
    import tensorflow as tf

    signature = tf.saved_model.load(folder).signatures["serving_default"]
    ((name, wanted),) = signature.structured_input_signature[1].items()
    (found,) = signature(**{name: tf.constant(instances, wanted.dtype)}).values()
    return {"predictions": found.numpy().tolist()}


def deploy(client, name, role, image, model_data, instance_type="ml.c5.xlarge"):
    """An endpoint with that name, in service; `client` is boto3's for SageMaker."""
    client.create_model(
        ModelName=name,
        ExecutionRoleArn=role,
        PrimaryContainer={"Image": image, "ModelDataUrl": model_data},
    )
    variant = {"VariantName": "all", "ModelName": name, "InitialInstanceCount": 1}
    client.create_endpoint_config(
        EndpointConfigName=name,
        ProductionVariants=[{**variant, "InstanceType": instance_type}],
    )
    client.create_endpoint(EndpointName=name, EndpointConfigName=name)
    waiting = {"Delay": 30, "MaxAttempts": SECONDS // 30}
    client.get_waiter("endpoint_in_service").wait(EndpointName=name, WaiterConfig=waiting)


def ask(runtime, name, instances):
    """The endpoint's answer; `runtime` is boto3's client for sagemaker-runtime."""
    reply = runtime.invoke_endpoint(
        EndpointName=name,
        ContentType="application/json",
        Body=json.dumps({"instances": instances}),
    )
    return json.loads(reply["Body"].read())


def main():
    """Serve, and ask for the digit in an empty picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", metavar="FOLDER", help="a SavedModel, served in this process")
    parser.add_argument("--name", help="of the endpoint")
    parser.add_argument("--role", help="the ARN of the role that the endpoint assumes")
    parser.add_argument("--image", help="an image for serving")
    parser.add_argument("--model-data", help="where the training job left its model")
    args = parser.parse_args()
    empty = [[0.0] * 64]
    if args.here:
        print(json.dumps(here(args.here, empty)))
        return
    if not (args.name and args.role and args.image and args.model_data):
        parser.error("give --here, or all of --name, --role, --image and --model-data")
    import boto3

    deploy(boto3.client("sagemaker"), args.name, args.role, args.image, args.model_data)
    print(json.dumps(ask(boto3.client("sagemaker-runtime"), args.name, empty)))


if __name__ == "__main__":
    main()
