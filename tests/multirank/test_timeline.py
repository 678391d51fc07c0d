"""Traces of the ranks, and what is read from them."""

import json
import re

import launcher
import pytest
from bodies import timeline as bodies

from smddp_tf import timeline


@pytest.mark.quiet
@pytest.mark.parametrize("ranks", [2, 3])
def test_who_waited_for_whom(job, tmp_path, ranks):
    """Events nest, are the same on all ranks, and the slow rank is named."""
    job(bodies.writes_a_trace, ranks).check(ranks)
    files = [tmp_path / f"trace.rank{r}.json" for r in range(ranks)]
    names = []
    for path in files:
        events = json.loads(path.read_text())  # complete: the timeline was stopped
        own = timeline.collectives(events)
        names.append(sorted((key, event["name"]) for key, event in own.items()))
        assert len(own) == 21 + 15
        for event in own.values():
            assert event["dur"] >= 0 and event["args"]["ready"] <= event["ts"]
            phases = [
                e
                for e in events
                if e.get("cat") == "phase"
                and e["tid"] == event["tid"]
                # Microseconds since 1970 in a double are true to a quarter.
                and event["ts"] <= e["ts"] + 1
                and e["ts"] + e["dur"] <= event["ts"] + event["dur"] + 1
            ]
            assert {e["name"] for e in phases} == {"waiting for peers", "moving bytes"}
        sizes = {e["name"]: e["args"]["bytes"] for e in own.values()}
        assert sizes["allreduce 'regular'"] == 4000
    assert all(one == names[0] for one in names) and "after" not in str(names)
    command = [launcher.BIN / "python", "-m", "smddp_tf.timeline", *files]
    command += ["-o", tmp_path / "all.json"]
    code, output, _ = launcher.run_command(command, timeout=60)
    assert code == 0, output
    longest = re.search(r"([\d.]+) ms for rank (\d) in allreduce 'slow \"one\"'", output)
    assert longest and int(longest[2]) == ranks - 1, output
    # All others waited half a second.
    assert 450 * (ranks - 1) < float(longest[1]) < 800 * (ranks - 1), output
    assert len(timeline.collectives(timeline.read(tmp_path / "all.json"))) == 36


def test_a_killed_rank_leaves_a_trace(job, tmp_path):
    """SMDDP_TIMELINE; the file of a rank that died is readable."""
    job(bodies.is_killed, 2, env={"SMDDP_TIMELINE": str(tmp_path / "t.json")})
    own = timeline.collectives(timeline.read(tmp_path / "t.rank1.json"))
    assert sum(e["name"] == "allreduce 'regular'" for e in own.values()) == 30


def test_the_plot(job, tmp_path):
    """A picture, where matplotlib is; else the reason."""
    job(bodies.writes_a_trace, 2).check(2)
    files = [tmp_path / f"trace.rank{r}.json" for r in range(2)]
    picture = tmp_path / "step.png"
    command = [launcher.BIN / "python", "-m", "smddp_tf.timeline", *files, "--plot", picture]
    code, output, _ = launcher.run_command(command, timeout=60)
    if "No module named 'matplotlib'" in output:
        assert code == 1
        pytest.skip("matplotlib is not here")
    assert code == 0 and picture.read_bytes().startswith(b"\x89PNG"), output
    code, output, _ = launcher.run_command([*command, "--step", "99"], timeout=60)
    assert code == 1 and "there is no step 99" in output


def test_several_jobs(job, tmp_path):
    """Each rank of the launcher's has a file, whatever its rank in its own job."""
    env = {"SMDDP_TIMELINE": str(tmp_path / "trace.json")}
    results = job(bodies.several_jobs, 3, env=env).check(3)
    for process, result in results.items():
        events = json.loads((tmp_path / f"trace.rank{process}.json").read_text())
        own = timeline.collectives(events).values()
        assert {event["pid"] for event in own} == {result["rank"]}
        sums = [event["name"] for event in own if event["name"].startswith("allreduce")]
        # A job of one rank has nothing to reduce.
        assert sums == 10 * [f"allreduce '{result['name']}'"] * (result["size"] - 1)
