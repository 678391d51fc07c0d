"""The explicit collectives, with Horovod's names and arguments.

They run in program order, which must be the same on all ranks. If the ranks' operations do not
match, ``tf.errors.FailedPreconditionError`` is raised on all of them and describes both sides; the
job can catch it and continue.
"""
