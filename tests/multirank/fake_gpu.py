"""Builds tests/fake_gpu for a TensorFlow: a GPU whose memory the host cannot access."""

import pathlib
import sysconfig

import launcher
import shared

_FOLDER = launcher.ROOT / "tests/fake_gpu"
_DRIVER = launcher.ROOT / "build/fake_cuda"


def library(python: str) -> str:
    """The path of the plugin for that Python's TensorFlow, whose headers it is compiled with."""
    name = shared.name_of("fake_gpu", python)
    return shared.once(name, lambda: _compile(python, shared.session()[1] / f"{name}.so"))


def _compile(python: str, path: pathlib.Path) -> str:
    find = "import tensorflow as tf; print(tf.sysconfig.get_include(), tf.sysconfig.get_lib())"
    include, lib = _run([python, "-c", find]).split()[-2:]
    compiler = (sysconfig.get_config_var("CXX") or "g++").split()[0]
    _run(
        [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-o", str(path)]
        + [str(source) for source in sorted(_FOLDER.glob("*.cc"))]
        + [f"-I{_FOLDER.parent / 'fake_cuda'}", f"-I{include}"]
        + [f"-L{_DRIVER}", "-l:libcuda.so.1", f"-Wl,-rpath,{_DRIVER}"]
        + [f"-L{lib}", "-l:libtensorflow_framework.so.2", f"-Wl,-rpath,{lib}"]
    )
    return str(path)


def _run(command) -> str:
    code, output, _ = launcher.run_command(command, timeout=120)
    assert code == 0, output[-4000:]
    return output
