"""Every public name has an example in its docstring, and the examples are right."""

from bodies import docstrings


def check(results, least):
    for result in results.values():
        assert not result["without"], "no `Examples:` with >>> in the docstrings of these"
        assert not result["differ"]
        assert result["run"] >= least


def test_examples(job):
    """As they are shown: of one rank."""
    check(job(docstrings.examples(), 1).check(1), least=120)


def test_examples_of_process_sets(job):
    """A set is a part of the ranks, so the job has two."""
    check(job(docstrings.examples(of_two_ranks=True), 2).check(2), least=5)
