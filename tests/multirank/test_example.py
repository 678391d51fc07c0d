"""The example: real data, the same result on any number of ranks."""

import re

import launcher
import numpy as np
import pytest
import sklearn.datasets

SCRIPT = launcher.ROOT / "examples" / "train_digits.py"


def train(python, ranks, folder, *arguments):
    """Trains; returns (accuracy after each epoch, weights)."""
    weights = folder / f"weights{ranks}.npz"
    checkpoints = folder / f"checkpoints{ranks}"
    start = [*(launcher.mpirun(ranks) if ranks else []), *launcher.warm_python(python)]
    options = ["--checkpoints", checkpoints, "--weights", weights, *arguments]
    command = [*start, SCRIPT, *options]
    code, output, timed_out = launcher.run_command(command, timeout=180)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert re.search(rf"all {ranks or 1} ranks hold the same weights; \d+ samples/s", output)
    accuracy = [float(a) for a in re.findall(r"accuracy=([\d.]+);", output)]
    with np.load(weights) as data:
        return accuracy, np.concatenate([data[name].ravel() for name in data.files])


def test_any_number_of_ranks(python, tmp_path):
    """Accuracy at least 0.97 on 1, 2 and 4 ranks, and equal weights up to rounding."""
    alone, whole = train(python, 0, tmp_path)
    assert alone[-1] >= 0.97
    for ranks in (2, 4):
        accuracy, weights = train(python, ranks, tmp_path)
        assert accuracy[-1] >= 0.97
        # 225 steps whose gradients differ by float32 rounding (2^-24 relative): measured 3e-7.
        assert np.abs(weights - whole).max() < 1e-4


def test_own_data(tmp_path):
    """--data takes a file laid out as MNIST's: images of bytes, and labels."""
    digits = sklearn.datasets.load_digits()
    images, labels = (digits.images * 15).astype("uint8"), digits.target
    parts = {"x_train": images[:1440], "y_train": labels[:1440]}
    data = tmp_path / "digits.npz"
    np.savez(data, **parts, x_test=images[1440:], y_test=labels[1440:])
    python = launcher.BIN / "python"
    accuracy, _ = train(python, 2, tmp_path, "--data", data, "--epochs", "3")
    assert len(accuracy) == 3
    # Of the last writers, whom training has not seen; guessing reaches 0.1.
    assert accuracy[-1] >= 0.8


def test_resume(tmp_path):
    """3 epochs, then resumed to 6 on another number of ranks: the same as 6 in one go."""
    python = launcher.BIN / "python"
    straight, whole = train(python, 2, tmp_path / "a", "--epochs", "6")
    first, _ = train(python, 2, tmp_path / "b", "--epochs", "3")
    (tmp_path / "b" / "checkpoints2").rename(tmp_path / "b" / "checkpoints4")
    state = tmp_path / "b" / "checkpoints4" / "checkpoint"
    state.write_text(state.read_text().replace("checkpoints2", "checkpoints4"))
    rest, resumed = train(python, 4, tmp_path / "b", "--epochs", "6", "--resume")
    assert first + rest == straight
    assert np.abs(resumed - whole).max() < 1e-4


@pytest.fixture(autouse=True)
def _folders(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
