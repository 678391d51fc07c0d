"""smdistributed.dataparallel.torch: the backend smddp under SageMaker's names."""

from smddp_tf.compat.environment import adopt_torch_environment

adopt_torch_environment()  # for scripts that install the names themselves, without --alias
