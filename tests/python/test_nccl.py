"""Which NCCL is opened: the wheel's, another by SMDDP_NCCL_LIBRARY, or none, with the reason.

The library is tests/fake_nccl, which needs no GPU; TensorFlow is not imported.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
FAKE = ROOT / "build/fake_nccl/libnccl.so.2"
ASK = (
    "from smddp_tf._src.job import native; import smddp_tf; "
    "print(smddp_tf.nccl_built(), native.nccl())"
)


def _asked(path=(), **env):
    """What a process says that finds Python modules in `path` too."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *map(str, path)])} | env
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_one_of_the_wheel(tmp_path):
    """nvidia/nccl/lib on sys.path, as tensorflow[and-cuda] has it."""
    folder = tmp_path / "nvidia/nccl/lib"
    folder.mkdir(parents=True)
    (folder / "libnccl.so.2").symlink_to(FAKE)
    assert _asked([tmp_path]) == f"True 2.32.3: {folder / 'libnccl.so.2'}"


def test_another(tmp_path):
    """A path, which has to be right."""
    assert _asked(SMDDP_NCCL_LIBRARY=str(FAKE)) == f"True 2.32.3: {FAKE}"
    missing = tmp_path / "libnccl.so.2"
    said = _asked(SMDDP_NCCL_LIBRARY=str(missing))
    assert said.startswith("False none: ") and str(missing) in said, said


def test_one_that_is_too_old():
    """Says which versions will do."""
    said = _asked(SMDDP_NCCL_LIBRARY=str(FAKE), FAKE_NCCL_VERSION="21403")
    assert said == f"False none: {FAKE} is of version 2.14.3 and 2.18 or later is needed"
