"""run() in the kernel of a notebook."""

import os
import re
import time

import launcher
import nbclient
import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

NOTEBOOK = launcher.ROOT / "examples" / "notebooks" / "two_ranks.ipynb"


@pytest.fixture(autouse=True)
def _as_users_do(monkeypatch, tmp_path):
    """The environment of a user's kernel, whose files are this test's."""
    for name, value in launcher.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{launcher.BIN}:{os.environ['PATH']}")
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def test_two_ranks(tmp_path):
    """The example trains; the cells have the ranks' lines, the accuracy and the plot."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=120, resources=where).execute()
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    said = "".join(one.text for one in outputs if one.get("name") == "stdout")
    for rank in range(2):
        losses = re.findall(rf"^\[.*\b{rank}\].*epoch \d: loss ([\d.]+),", said, re.M)
        assert len(losses) == 8, said
        assert float(losses[-1]) < 0.2 * float(losses[0])
    assert float(re.findall(r"test accuracy ([\d.]+)", said)[0]) >= 0.9
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 1


def _reply_to(asked, client):
    """Others may come before it, as that of a question whether the kernel is ready."""
    for _ in range(20):
        reply = client.get_shell_msg(timeout=20)
        if reply["parent_header"]["msg_id"] == asked:
            return reply
    raise AssertionError("no reply among 20")


WAITING = """
import os, pathlib, time
import smddp_tf as hvd

def wait(folder):
    pathlib.Path(folder, f"pid{{os.getpid()}}").touch()
    time.sleep(120)

hvd.run(wait, ({folder!r},))
"""


@pytest.mark.parametrize("how", ["interrupted", "shut down"])
def test_a_kernel_that_is(how, tmp_path):
    """As the buttons do it: no rank runs a second later, and an interrupted kernel goes on."""
    manager, client = start_new_kernel()
    try:
        # After an error a kernel refuses the cells that already wait. By the default, the one
        # below would be refused too if it arrived within that instant.
        asked = client.execute(WAITING.format(folder=str(tmp_path)), stop_on_error=False)
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("pid*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        ranks = [path.name[3:] for path in tmp_path.glob("pid*")]
        assert len(ranks) == 2
        begin = time.monotonic()
        if how == "interrupted":
            manager.interrupt_kernel()
        else:
            manager.shutdown_kernel(now=True)
        while any(map(launcher.runs, ranks)) and time.monotonic() < begin + 20:
            time.sleep(0.01)
        assert time.monotonic() - begin < 1
        if how == "interrupted":
            reply = _reply_to(asked, client)
            assert reply["content"]["ename"] == "KeyboardInterrupt"
            again = client.execute_interactive("assert hvd.run(int, (7,)) == [7, 7]", timeout=60)
            assert again["content"]["status"] == "ok", again
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
