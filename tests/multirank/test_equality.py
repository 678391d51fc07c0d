"""The matrix of docs/equality.md: no cell is empty, and cells are held to their bounds.

Every way of the newest Keras is trained here, and one of each older one; `make equality` does all.
`make test` leaves out one of them, jit, which Keras 2 has there.
"""

import re

import equality
import launcher
import pytest
from bodies import equality as bodies

WAYS = [
    *[("keras3", way) for way in equality.WAYS if way != "jit"],
    pytest.param("keras3", "jit", marks=pytest.mark.thorough),
    ("tf_keras", "graph"),
    ("keras2", "jit"),
]


@pytest.mark.every_version
@pytest.mark.tf_keras
@pytest.mark.parametrize(("keras_job", "way"), WAYS, indirect=["keras_job"])
def test_equals_one_process(keras_job, way):
    """Every feature this way, on 2 ranks."""
    results = keras_job(bodies.cells([way], list(equality.FEATURES)), 2, timeout=240).check(2)
    assert set(results[0]["differences"]) == {f"{way}/{name}" for name in equality.FEATURES}


@pytest.mark.parametrize("keras_job", ["keras3"], indirect=True)
def test_more_of_keras_equals_one_process(keras_job):
    """What the newest Keras has besides, in graph mode."""
    results = keras_job(bodies.cells(["graph"], list(equality.MORE)), 2, timeout=240).check(2)
    assert set(results[0]["differences"]) == {f"graph/{name}" for name in equality.MORE}


def test_the_page():
    """It has a number within the bound for each Keras, feature and way; the bounds are ours."""
    text = (launcher.ROOT / "docs/equality.md").read_text()
    for keras, title in equality.KERAS_NAMES.items():
        table = text.split(f"## {title}\n")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", table, re.M))
        for feature, bound in equality.BOUNDS.items():
            *cells, shown = rows[feature].split(" | ")
            assert float(shown) == bound
            for way, cell in zip(equality.WAYS, cells, strict=True):
                if equality.available(keras, way, feature):
                    assert float(cell) <= bound, (title, way, feature)
                else:
                    assert cell == "-", (title, way, feature)
