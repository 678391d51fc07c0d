"""The doctor where PyTorch is installed, and TensorFlow is not."""

import torch_job

launcher = torch_job.launcher


def test_without_tensorflow():
    """It imports PyTorch with the backend and runs a small job; nothing asks for TensorFlow."""
    torch_job.need_torch()
    command = [torch_job.PYTHON, "-m", "smddp_tf.doctor"]
    code, output, timed_out = launcher.run_command(command, timeout=120, env=torch_job.ENVIRONMENT)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert "PyTorch 2." in output and output.strip().endswith("a job can run"), output
    assert "TensorFlow" not in output, output


def test_version():
    """What bug reports show."""
    torch_job.need_torch()
    command = [torch_job.PYTHON, "-m", "smddp_tf", "--version"]
    code, output, timed_out = launcher.run_command(command, timeout=60, env=torch_job.ENVIRONMENT)
    assert (code, timed_out) == (0, False), output[-4000:]
    assert "\nPyTorch 2." in output and "for PyTorch import smddp_tf.torch\n" in output, output
