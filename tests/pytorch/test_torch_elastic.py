"""Elastic jobs of PyTorch: ranks are killed, replaced and leave; the others go on."""

import json
import os

import pytest
import torch_job

launcher = torch_job.launcher
SCRIPTS = launcher.ROOT / "tests" / "scripts"


def _smddprun(*words, **settings):
    torch_job.need_torch()
    env = {"PATH": f"{launcher.BIN}:{os.environ['PATH']}", **settings}
    command = [*torch_job.SMDDPRUN, *words]
    code, output, timed_out = launcher.run_command(command, timeout=180, env=env)
    assert not timed_out, output[-6000:]
    return code, output


def _hosts(tmp_path, ranks):
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\necho localhost:{ranks}\n")
    script.chmod(0o755)
    return ["--host-discovery-script", script]


def _train(tmp_path, options, *plan):
    """What the ranks that ended well have left, by slot; they have the weights of one process."""
    words = [torch_job.PYTHON, SCRIPTS / "torch_elastic.py", tmp_path, *plan]
    # Each layer has a bucket of its own.
    code, output = _smddprun(*options, *words, SMDDP_BUCKET_BYTES="100")
    assert code == 0, output[-6000:]
    lines = (tmp_path / "results").read_text().splitlines()
    found = {one["slot"]: one for one in map(json.loads, lines)}
    assert all(one["error"] < 1e-14 and one["steps"] == 15 for one in found.values()), found
    assert all(one["ranks"] == one["sizes"][-1] for one in found.values()), found
    return found


@pytest.mark.parametrize(
    ("word", "nodes"), [("1@7", 1), ("0:7", 1), ("2:8", 2), ("1-7", 1)], ids=str
)
@pytest.mark.thorough
def test_a_rank_is_lost_or_leaves(tmp_path, word, nodes):
    """Between steps, in a backward pass, after a notice."""
    environment = ["-x", f"SMDDP_NODES={nodes}"]
    found = _train(tmp_path, ["-np", 3, "--min-np", 2, *environment], word)
    assert sorted(found) == sorted({0, 1, 2} - {int(word[0])})
    assert all(one["sizes"] == [3, 2] and one["resets"] == [2] for one in found.values()), found


def test_a_killed_rank_is_replaced(tmp_path):
    """The one that comes counts its collectives and optimizers as the others do."""
    found = _train(tmp_path, ["-np", 3, "--min-np", 2, *_hosts(tmp_path, 3)], "0:7", "3<2", "3+9")
    assert sorted(found) == [1, 2, 3]
    assert found[1]["sizes"] == found[2]["sizes"] == [3, 2, 3]
    assert found[1]["resets"] == [2, 3]
    assert (found[3]["sizes"], found[3]["resets"]) == ([3], [])


@pytest.mark.thorough
def test_a_job_starts_again(tmp_path):
    """As a whole, from the file of its last commit."""
    found = _train(tmp_path, ["-np", 2, "--max-restarts", 2], "1@7", "0@8")
    assert sorted(found) == [0, 1]
    assert all(one["sizes"] == [2] and one["resets"] == [2] for one in found.values()), found


@pytest.mark.thorough
def test_a_script_for_horovod(tmp_path):
    """Unedited: one rank is killed, another comes, each sample of an epoch is used once."""
    words = [torch_job.PYTHON, SCRIPTS / "horovod_torch_elastic.py"]
    options = ["-np", 2, "--min-np", 2, "--alias", *_hosts(tmp_path, 2)]
    code, output = _smddprun(*options, *words)
    assert code == 0, output[-6000:]
    used = f"equal True last {list(range(72))}"
    for slot, sizes in {0: [2, 2], 2: [2]}.items():
        assert f"slot {slot} sizes {sizes} epoch 3 rate 0.02 {used}" in output, output[-6000:]


@pytest.mark.parametrize("ranks", [2, 3])
def test_states(tmp_path, ranks):
    """Saved, restored and sent: models, optimizers, schedules and objects."""
    for found in torch_job.run(tmp_path, "ranks_elastic", "state", ranks).check(ranks).values():
        assert found["taken"] == (
            "TypeError: commit= cannot be an attribute of a state, which has that name"
        )
        assert found["no_model"].endswith("and a load_state_dict(), not list")
        assert "takes a state first" in found["no_state"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_samplers(tmp_path, ranks):
    """All samples are used, and none that is done."""
    torch_job.run(tmp_path, "ranks_elastic", "sampler", ranks).check(ranks)


def test_a_commit_of_another_model(tmp_path):
    """An error on all ranks, which names both shapes."""
    env = {"SMDDP_COMMITS": str(tmp_path / "commits")}

    def run(name, width):
        folder = tmp_path / name
        folder.mkdir()
        return torch_job.run(folder, "ranks_elastic", "other_model", 2, env, width=width).check(2)

    assert run("one", 4)[1] == {"error": "KeyError: 'the commit stays'", "epoch": 1}
    assert run("same", 4)[1]["epoch"] == 2
    for found in run("other", 5).values():
        assert found["error"].startswith("ValueError: the last commit does not fit"), found
        assert "[4, 3]" in found["error"] and "[5, 3]" in found["error"]
        assert found["epoch"] == 0


def test_a_process_group_is_refused():
    """torch.distributed has one number of ranks."""
    torch_job.need_torch()
    code = "import smddp_tf.torch, torch.distributed as d; d.init_process_group('smddp')"
    code, output = _smddprun("-np", 2, "--min-np", 1, torch_job.PYTHON, "-c", code)
    assert code != 0 and "it cannot be used in an elastic job" in output, output[-6000:]
