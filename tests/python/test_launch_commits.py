"""Where smddprun has a job keep its commits, and what becomes of them."""

import pathlib

from smddp_tf.launch import commits
from smddp_tf.launch.supervise import Outcome


def test_a_folder_for_jobs_that_may_start_again(monkeypatch, tmp_path):
    """A new one each time, unless the user has named one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = [commits.new_folder({}, [("A", "b")], 1)["SMDDP_COMMITS"] for _ in range(2)]
    assert made[0] != made[1]
    assert {pathlib.Path(one).parent for one in made} == {tmp_path}
    assert commits.new_folder({}, [], 0) == {}
    assert commits.new_folder({"SMDDP_COMMITS": "here"}, [], 1) == {}
    assert commits.new_folder({}, [("SMDDP_COMMITS", None)], 1) == {}


def test_what_becomes_of_it(tmp_path, capsys):
    """The commit of a job that failed is kept, and the user told; nothing else is left."""
    folder = tmp_path / "commits"
    made = {"SMDDP_COMMITS": str(folder)}
    commits.finish(made, Outcome(1))  # it never committed
    for code, file, kept in ((1, "a.new", False), (0, "a.pickle", False), (1, "a.pickle", True)):
        folder.mkdir()
        (folder / file).touch()
        commits.finish(made, Outcome(code))
        assert folder.exists() == kept
        assert (f"with SMDDP_COMMITS={folder} a job goes on" in capsys.readouterr().err) == kept
    commits.finish({}, Outcome(1))
    assert folder.exists()
