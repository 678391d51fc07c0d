"""docs/wrap.py wraps paragraphs of Markdown, and nothing else."""

import importlib.util
import pathlib

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "docs" / "wrap.py"
SPEC = importlib.util.spec_from_file_location("wrap", PATH)
wrap = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(wrap)
WORDS = "word " * 30


@pytest.mark.parametrize(
    "text",
    [
        "short\nlines\nstay\n",
        f"# A heading {WORDS}\n",
        f"| a cell | {WORDS} |\n",
        f"```text\n{WORDS}\n```\n",
        f"    code {WORDS}\n",
        f"---\ntitle: {WORDS}\n---\n",
    ],
)
def test_what_stays(text):
    assert wrap.wrapped(text) == text


def test_paragraphs_and_items():
    """Items keep their indentation; a second run changes nothing."""
    text = f"{WORDS}\n\n- {WORDS}\n  1. {WORDS}\n"
    once = wrap.wrapped(text)
    assert max(map(len, once.split("\n"))) <= wrap.WIDTH
    assert once.split() == text.split()
    assert "\n- word" in once and "\n  word" in once and "\n     word" in once
    assert wrap.wrapped(once) == once


def test_code_spans_are_not_broken_and_no_word_begins_a_block():
    span = "`smddprun -np 2 python train.py`"
    once = wrap.wrapped(f"{'x' * 90} {span} {'y' * 66} - z 1. {WORDS}\n")
    assert span in once
    assert not any(line.startswith(("- ", "1. ")) for line in once.split("\n"))
