"""The notebooks, cell after cell in one process, and as scripts on two ranks.

Those that call run() start ranks themselves: tests/launch executes them.
"""

import json
import re

import launcher
import pytest

NOTEBOOKS = [
    path
    for path in sorted((launcher.ROOT / "examples" / "notebooks").glob("*.ipynb"))
    if "hvd.run(" not in path.read_text()
]


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_learns(keras3_job, notebook, ranks, tmp_path):
    """0 ranks are one process without mpirun, as in a notebook."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    script = tmp_path / f"{notebook.stem}.py"
    script.write_text("\n\n".join(code))
    python = launcher.warm_python(keras3_job.python, keras3_job.env)
    command = [*(launcher.mpirun(ranks) if ranks else []), *python, script]
    code, output, timed_out = launcher.run_command(
        command, timeout=150, env=keras3_job.env, cwd=tmp_path
    )
    assert (code, timed_out) == (0, False), output[-4000:]
    # Five epochs; two ranks take half as many steps in them. Guessing has 0.1.
    assert float(re.findall(r"test accuracy ([\d.]+)", output)[-1]) >= 0.9
