"""Simulated jobs: seeded schedules of ranks that die, stop, join and disagree."""

import pathlib
import subprocess

PROGRAM = pathlib.Path(__file__).parents[1] / "build" / "smddp_simulate"
SCHEDULES = 5000


def test_simulated_schedules():
    """Every schedule keeps what the library promises; one that does not prints its seed."""
    command = [PROGRAM, "--schedules", str(SCHEDULES), "--jobs", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert result.stdout.startswith(f"{SCHEDULES} schedules"), result.stdout[-2000:]
