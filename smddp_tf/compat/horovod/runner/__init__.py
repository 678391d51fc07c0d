"""horovod.runner: run()."""

import pickle

import smddp_tf
from smddp_tf.compat import _install
from smddp_tf.launch.function import pickling


def _with_names(call, sources):
    """What a rank calls: the function, which may import horovod, as may its module."""
    _install.install()
    pickling.keep_sources(sources)
    func, args, kwargs = pickle.loads(call)
    return func(*args, **kwargs)


def run(func, args=(), kwargs=None, num_proc=None, *elastic, np=None, **options):
    """smddp_tf.run, with one rank unless told, as in Horovod."""
    call = pickling.dumps_call(func, args, kwargs or {})
    return smddp_tf.run(_with_names, call, None, num_proc or np or 1, *elastic, **options)
