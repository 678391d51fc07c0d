"""What a process does in test_wheel.py."""

import sys

from harness import without_init


@without_init
def needs_no_tensorflow():
    sys.modules["tensorflow"] = None
    import smddp_tf as hvd

    hvd.init()
    assert hvd.size() == 1
    try:
        hvd.allreduce  # noqa: B018
        said = "TensorFlow was not needed"
    except ImportError as error:
        said = str(error)
    assert "smddp_tf[cpu]" in said, said
    print(hvd.__file__)
