"""Fixtures: the environments in which jobs run, and how to run one."""

import os
import sys

import launcher
import pytest


def on_ranks(fixture: str, environments, *ranks):
    """Parametrizes a test: more ranks in the first environment, the newest, fewest elsewhere."""
    first, *others = environments
    fewest, *more = ranks
    cases = [(first, n) for n in more or ranks] + [(other, fewest) for other in others]
    return pytest.mark.parametrize((fixture, "ranks"), cases, indirect=[fixture])


def _python_of(version: str) -> str:
    return str(launcher.ROOT / f".venv-{version}/bin/python")


ALL_PYTHONS = {"tf2.21": sys.executable, "tf2.15": _python_of("2.15")}
# The newest and the oldest; or those from between that `make test-all` names.
BETWEEN = os.environ.get("SMDDP_TEST_TENSORFLOWS", "").split()
PYTHONS = {f"tf{version}": _python_of(version) for version in BETWEEN} or dict(ALL_PYTHONS)
ALL_PYTHONS.update(PYTHONS)


@pytest.fixture(params=list(PYTHONS))
def python(request):
    """The Python of each TensorFlow that the project is tested on."""
    path = ALL_PYTHONS[request.param]
    reason = launcher.why_not(path)
    if reason:
        pytest.skip(f"{request.param} is not here: {reason}")
    return path


@pytest.fixture
def job(tmp_path):
    """run_ranks(body, ranks, ...) in a folder of this test."""
    return lambda body, ranks, **options: launcher.run_ranks(body, ranks, tmp_path, **options)


# Keras 2 has its optimizers and trainers, so most tests run on those two in `make test-all` only.
ALL_KERASES = bool(os.environ.get("SMDDP_TEST_ALL_KERASES"))


def pytest_collection_modifyitems(config, items):
    """Leaves out what runs on tf_keras, but for tests that are marked for it."""
    if ALL_KERASES:
        return
    left_out = [
        item
        for item in items
        if "tf_keras" in getattr(getattr(item, "callspec", None), "params", {}).values()
        and item.get_closest_marker("tf_keras") is None
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
KERASES = {"keras3": ("tf2.21", {}), "tf_keras": ("tf2.21", LEGACY), "keras2": ("tf2.15", {})}


class KerasJob:
    """Runs bodies where tf.keras is this Keras."""

    def __init__(self, name, tmp_path):
        python, self.env = KERASES[name]
        self.name, self.python, self.tmp_path = name, ALL_PYTHONS[python], tmp_path

    def why_not(self, modules) -> str:
        """Why modules cannot be imported here; "" if they can."""
        return launcher.why_not(self.python, modules)

    def __call__(self, body, ranks, env=None, **options):
        return launcher.run_ranks(
            body,
            ranks,
            self.tmp_path,
            python=self.python,
            env={**self.env, **(env or {})},
            **options,
        )


def _keras_job(name, tmp_path) -> KerasJob:
    run = KerasJob(name, tmp_path)
    reason = run.why_not("tensorflow, tf_keras" if run.env else "tensorflow")
    if reason:
        pytest.skip(f"{name} is not here: {reason}")
    return run


@pytest.fixture(params=list(KERASES))
def keras_job(request, tmp_path):
    """A KerasJob for Keras 3, for tf_keras on the same TensorFlow, and for Keras 2."""
    return _keras_job(request.param, tmp_path)


@pytest.fixture
def keras3_job(tmp_path):
    """A KerasJob for Keras 3, where the Keras makes no difference."""
    return _keras_job("keras3", tmp_path)


@pytest.fixture
def keras2_job(tmp_path):
    """A KerasJob for Keras 2 alone."""
    return _keras_job("keras2", tmp_path)


@pytest.fixture(params=["tf_keras", "keras2"])
def legacy_keras_job(request, tmp_path):
    """A KerasJob for what needs Keras 2 or its successor."""
    return _keras_job(request.param, tmp_path)
