"""Scripts written for Horovod or for SageMaker's library, without an edit.

``python -m smddp_tf.compat train.py`` runs a script whose imports are horovod's or smdistributed's:
these names are provided in that process, and nowhere else. docs/api-parity.md says what there is.
"""
