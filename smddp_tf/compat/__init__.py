"""Runs unmodified scripts that were written for Horovod or SageMaker's library.

``python -m smddp_tf.compat train.py`` runs a script that imports horovod or smdistributed; the
modules are provided in that process only. docs/api-parity.md lists the supported names.
"""
