"""The matrix of docs/equality.md: no cell is empty, and every cell is held to its bound."""

import re

import equality
import launcher
import pytest


@pytest.mark.parametrize("way", list(equality.WAYS))
def test_equals_one_process(keras_job, way):
    """Every feature this way, on 2 ranks."""
    results = keras_job(equality.bodies([way]), 2, timeout=240).check(2)
    assert set(results[0]["differences"]) == {f"{way}/{name}" for name in equality.FEATURES}


def test_the_page():
    """It has a number within the bound for each Keras, feature and way; the bounds are ours."""
    text = (launcher.ROOT / "docs/equality.md").read_text()
    for title in equality.KERAS_NAMES.values():
        table = text.split(f"## {title}\n")[1].split("\n## ")[0]
        rows = dict(re.findall(r"^\| ([^|]+) \| (.+) \|$", table, re.M))
        for feature, bound in equality.BOUNDS.items():
            *numbers, shown = [float(number) for number in rows[feature].split(" | ")]
            assert shown == bound
            assert len(numbers) == len(equality.WAYS)
            assert max(numbers) <= bound, (title, feature)
