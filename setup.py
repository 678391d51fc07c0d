"""Builds the native libraries with CMake and packs them; the rest is in pyproject.toml."""

import pathlib
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution
from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).parent.resolve()


def program(name: str) -> str:
    """A build tool: that of the building Python's environment, or one on PATH."""
    beside = pathlib.Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


class BuildWithNative(build_py):
    """Compiles ops/ into the package's lib folder."""

    def run(self):
        """Builds the Python files, then the libraries beside them."""
        super().run()
        build = pathlib.Path(self.get_finalized_command("build").build_temp).resolve() / "native"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        configure = ["-S", str(ROOT / "ops"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"]
        prefix = pathlib.Path(self.build_lib).resolve()
        if self.editable_mode:
            prefix = ROOT
        subprocess.check_call([program("cmake"), *configure, *generator])
        subprocess.check_call([program("cmake"), "--build", str(build), "--parallel"])
        install = [program("cmake"), "--install", str(build), "--prefix", str(prefix)]
        subprocess.check_call(install)


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
