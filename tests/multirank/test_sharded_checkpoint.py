"""hvd.callbacks.ShardedCheckpoint: each rank saves its part, and any number of ranks goes on."""

from bodies import sharded_checkpoint


def test_any_number_of_ranks_goes_on(keras_job, tmp_path):
    """Saved on 4, loaded on 1, 2 and 3; on as many ranks training ends with the same bits."""
    folder = str(tmp_path / "saved")
    (tmp_path / "saved").mkdir()
    nodes = {"SMDDP_NODES": "2"}  # between which variables are cut in another way
    saved = keras_job(sharded_checkpoint.save(folder=folder), 4, timeout=300, env=nodes).check(4)
    sizes = saved[0]["ranges"]["sizes"]
    assert max(sizes) < 0.4 * sum(sizes), sizes
    for ranks in (1, 2, 3, 4):
        body, env = sharded_checkpoint.load(folder=folder), nodes if ranks == 4 else {}
        loaded = keras_job(body, ranks, timeout=300, env=env).check(ranks)
    for way, ends in loaded[0].items():
        assert set(ends) == {saved[0][way]["end"]}, way


def test_refusals(keras_job, tmp_path):
    """What cannot be saved or read is told to all ranks."""
    keras_job(sharded_checkpoint.refusals(folder=str(tmp_path)), 2, timeout=200).check(2)


def test_vocabularies(keras_job, tmp_path):
    """They are compared, as no variable has them."""
    keras_job(sharded_checkpoint.tables(folder=str(tmp_path)), 2).check(2)


def test_training_goes_on_meanwhile(keras3_job, tmp_path):
    """While a rank's disk writes, steps go on; saves are left out on all ranks."""
    found = keras3_job(sharded_checkpoint.in_the_background(folder=str(tmp_path)), 3).check(3)
    assert found[1]["written"] < 12


def test_a_kill_leaves_the_last_whole_one(keras3_job, tmp_path):
    """Jobs that save all the time are killed; the next one goes on, on a rank more or less."""
    steps = []
    for seconds, of in ((0.5, 3), (0.87, 2), (0.31, 3), (0.73, 2)):
        body = sharded_checkpoint.until_killed(folder=str(tmp_path), seconds=seconds)
        job = keras3_job(body, of)
        assert job.returncode != 0
        assert not job.timed_out
        assert sorted(job.results) == list(range(of)), job.output[-3000:]
        assert len({result["weights"] for result in job.results.values()}) == 1
        steps.append(job.results[0]["step"])
    assert steps[0] == 0
    assert steps == sorted(set(steps)), steps  # each job got further
