"""Builds the native libraries with CMake and packs them; the rest is in pyproject.toml."""

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ROOT = pathlib.Path(__file__).parent.resolve()


def program(name: str) -> str:
    """A build tool: that of the building Python's environment, or one on PATH."""
    beside = pathlib.Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise SystemExit(
            f"{name} is needed to build smddp_tf; install it with `pip install {name}`"
        )
    return found


class BuildWithNative(build_py):
    """Compiles ops/ into the package's lib folder."""

    def run(self):
        """Builds the Python files, then the libraries beside them."""
        super().run()
        # A folder for each toolchain (`make wheels` sets one), as CMake cannot change it later.
        toolchain = pathlib.Path(os.environ.get("CMAKE_TOOLCHAIN_FILE", "native")).stem
        build = pathlib.Path(self.get_finalized_command("build").build_temp).resolve() / toolchain
        build = pathlib.Path(os.environ.get("SMDDP_BUILD_FOLDER", build))  # what is compiled there
        prefix = pathlib.Path(self.build_lib).resolve()
        if self.editable_mode:
            # It runs from the checkout, so the libraries belong there; and what is compiled is
            # kept, so that the next `pip install -e .` compiles only what changed.
            build, prefix = ROOT / "build" / "editable", ROOT
        cmake, ninja = program("cmake"), program("ninja")
        configure = ["-S", str(ROOT / "ops"), "-B", str(build), "-G", "Ninja"]
        options = ["-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        jobs = str(len(os.sched_getaffinity(0)))
        subprocess.check_call([cmake, *configure, *options])
        targets = ["--target", "smddp", "smddp_tf", "--parallel", jobs]
        subprocess.check_call([cmake, "--build", str(build), *targets])
        subprocess.check_call([cmake, "--install", str(build), "--prefix", str(prefix), "--strip"])


class NativeDistribution(Distribution):
    """A distribution that is not pure Python, though no Python header is compiled in."""

    def has_ext_modules(self):
        """The wheel is of one platform."""
        return True


class AnyPythonWheel(bdist_wheel):
    """One wheel for every Python: the libraries are opened with ctypes and by TensorFlow."""

    def get_tag(self):
        """Returns py3-none-<platform>."""
        return "py3", "none", super().get_tag()[2]


setup(
    distclass=NativeDistribution,
    cmdclass={"build_py": BuildWithNative, "bdist_wheel": AnyPythonWheel},
)
