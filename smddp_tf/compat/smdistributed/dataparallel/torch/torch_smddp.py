"""smdistributed.dataparallel.torch.torch_smddp: importing it registers the backend "smddp"."""

import smddp_tf.torch  # noqa: F401
