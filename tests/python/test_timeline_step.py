"""What the timeline computes of a step, and draws, from traces that are written here."""

import json

import pytest

from smddp_tf import timeline

# (ready, began, met, done) of each bucket in microseconds; bucket 1's gradients are the last.
BUCKETS = {0: [(0, 0, 30, 60), (100, 100, 110, 140)], 1: [(20, 20, 30, 60), (90, 90, 110, 140)]}


def events(rank: int) -> list:
    """The trace of a rank."""
    written = []
    for bucket, (ready, began, met, done) in enumerate(BUCKETS[rank]):
        common = {"ph": "X", "pid": rank, "tid": 1}
        name = f"gradient bucket {bucket} of 'tape' (step 7)"
        arguments = {"bytes": 4, "sequence": bucket, "ready": ready, "failed": False}
        whole = {"ts": began, "dur": done - began, "cat": "collective", "args": arguments}
        written += [
            {"name": name, **common, **whole},
            {"name": "waiting for peers", "ts": began, "dur": met - began, **common},
            {"name": "moving bytes", "ts": met, "dur": done - met, **common},
        ]
    return written


def traces() -> dict:
    return {rank: timeline.collectives(events(rank)) for rank in BUCKETS}


def test_a_step_has_its_phases():
    """By rank and bucket, with the time at which all ranks were there."""
    found = timeline.steps(traces(), {0: 0, 1: 1000})
    assert list(found) == [7]
    assert [(row["rank"], row["bucket"], row["met"]) for row in found[7]] == [
        (0, 0, 30),
        (0, 1, 110),
        (1, 0, 1030),
        (1, 1, 1110),
    ]


def test_what_runs_beside_the_backward_pass_is_hidden():
    """Bucket 0 is, on both ranks: 60 of 100 microseconds on rank 0, 40 of 90 on rank 1."""
    rows = timeline.steps(traces(), {0: 0, 1: 0})[7]
    assert timeline.hidden_share(rows) == pytest.approx(100 / 190)


def test_a_trace_without_phases():
    """As of a rank that was killed between an event and its phases: nothing was waited."""
    first = events(0)[:1]
    assert [event["waited"] for event in timeline.collectives(first).values()] == [0.0]


def test_the_picture(tmp_path):
    """Its title says how long the step took and how much was hidden; the legend is outside."""
    pytest.importorskip("matplotlib", reason="matplotlib is not here")
    picture = tmp_path / "step.svg"
    timeline.plot(traces(), {0: 0, 1: 0}, None, picture)
    text = picture.read_text()
    assert "step 7: 0.14 ms from the first gradient to the last result, 53%" in text
    for colour in timeline._COLOURS.values():
        assert colour in text
    with pytest.raises(ValueError, match="there is no step 3; there are 7 to 7"):
        timeline.plot(traces(), {0: 0, 1: 0}, 3, picture)


def test_events_are_json(tmp_path):
    """The traces above are read like those of a job."""
    path = tmp_path / "trace.rank0.json"
    path.write_text(json.dumps(events(0)))
    assert timeline.collectives(timeline.read(path)) == traces()[0]
