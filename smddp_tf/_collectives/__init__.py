"""The collectives that a script calls by hand, with Horovod's names and arguments.

They run in program order, which must be the same on all ranks. If the ranks do not ask for the same
thing, ``tf.errors.FailedPreconditionError`` is raised on all of them, with what each side has; the
job can catch it and go on.
"""
