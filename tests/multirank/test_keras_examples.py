"""The Keras examples, as a user runs them."""

import re

import launcher
import pytest

EXAMPLES = launcher.ROOT / "examples"


def run(keras_job, script, *arguments, ranks=2):
    """Runs an example; returns its output."""
    python = launcher.warm_python(keras_job.python, keras_job.env)
    command = [*launcher.mpirun(ranks), *python, EXAMPLES / script, *arguments]
    code, output, timed_out = launcher.run_command(command, timeout=150, env=keras_job.env)
    assert (code, timed_out) == (0, False), output[-4000:]
    return output


def number(name, output):
    """The last value that was printed with this name."""
    return float(re.findall(rf"{name}=([\d.]+);", output)[-1])


@pytest.mark.every_version
def test_keras_digits(keras_job, tmp_path):
    """Learns; 6 epochs and then 9 more on other ranks go on where it stopped."""
    first = run(keras_job, "keras_digits.py", "--checkpoints", tmp_path, "--epochs", "6")
    assert "all 2 ranks hold the same weights" in first
    assert "learning rate warm-up is done, at 0.1" in first
    assert number("samples_per_second", first) > 0
    rest = run(keras_job, "keras_digits.py", "--checkpoints", tmp_path, "--resume")
    assert "Epoch 7/15" in rest and "Epoch 6/15" not in rest
    assert number("accuracy", rest) >= 0.96
    assert (tmp_path / "best.keras").exists()


def test_the_readme(keras3_job, tmp_path):
    """Its first example learns, and prints what the README shows, on rank 0 alone."""
    readme = (launcher.ROOT / "README.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1])
    output = run(keras3_job, script)
    shown = r"128/128 - \S+ - \S+ - accuracy: (0\.\d{4}) - loss: 0\.\d{4}"
    assert len(re.findall(shown, readme)) == 3
    learnt = re.findall(shown, output)
    assert len(learnt) == 3 and float(learnt[-1]) > 0.9, output


def test_keras_text(keras3_job):
    """Does much better than guessing."""
    output = run(keras3_job, "keras_text.py")
    assert number("accuracy", output) > 2 * number("guessing", output)


def test_keras_mixed_precision_jit(keras3_job):
    """Learns, and the ranks' loss scales are equal."""
    output = run(keras3_job, "keras_mixed_precision_jit.py")
    assert number("accuracy", output) >= 0.95
    scales = re.findall(r"loss scale of each rank: \[([\d.]+), ([\d.]+)\]", output)
    assert scales and scales[0][0] == scales[0][1]


def test_gan(keras3_job):
    """Draws pixels about as bright as the digits', the same on all ranks."""
    output = run(keras3_job, "gan.py", "--epochs", "40")
    assert "ranks agree=True;" in output
    assert number("brightness error", output) < 0.8 * number("untrained", output)


def test_tfa_lamb(keras2_job):
    """LAMB with a large batch; the script imports Addons as they are, which needs Keras 2."""
    reason = keras2_job.why_not("tensorflow_addons")
    if reason:
        pytest.skip(f"tensorflow-addons is not here: {reason}")
    assert number("accuracy", run(keras2_job, "tfa_lamb.py")) >= 0.95
