"""The state machine of elastic jobs."""

import pytest
from driven_job import Job, begun, epoch, to

from smddp_tf.launch.elastic import driver
from smddp_tf.launch.elastic.driver import End, Kill, Send, Start


def test_a_loss():
    """The others hear of it, and are the next epoch when all of them have asked."""
    job = begun(3, 2)
    job.does("disconnected", 1)
    why = "rank 1 (slot 1) was lost"
    assert job.said() == [why]
    assert job.taken() == to([0, 2], "void", 1, why=why)
    job.asks(1, 2)
    job.does("exited", 1, 137)
    assert job.taken() == []
    job.asks(1, 0)
    assert job.said() == ["2 ranks go on as epoch 2"]
    assert job.taken() == epoch(2, 0, 2)


def test_a_loss_while_an_epoch_starts():
    """It is void for those that had begun it, and for those that had asked already."""
    job = begun(4, 2)
    job.does("exited", 3, 1)
    job.asks(1, 0, 1)
    job.does("disconnected", 1)
    job.taken()
    job.asks(1, 2)
    assert job.taken() == epoch(2, 0, 2)
    job.does("failed", 2, 2, "no memory")
    assert job.taken() == to([0], "void", 2, why="rank 1 (slot 2) cannot start: no memory")
    job.asks(2, 0)
    assert job.taken()[0] == Send(0, {"do": "end", "why": SHORT})


def _raises(job, number, slot, others, committed, code=1):
    """A rank raises in an epoch; the others, which may have committed, ask for the next."""
    job.does("disconnected", slot)
    for other in others:
        job.actions += job.driver.asked(
            other, number, job.now, because="error", committed=committed
        )
    job.does("exited", slot, code)


def test_a_rank_that_raises_again_and_again():
    """Without a commit in between the job ends, and not where there is one, or for signals."""
    for codes, committed, ends in [
        ([1] * 5, False, True),
        ([1] * 9, True, False),
        ([137] * 9, False, False),
        ([1, 137] * 4 + [1], False, True),
    ]:
        job = begun(len(codes) + 1, 1)
        for number, code in enumerate(codes, 1):
            rest = range(number, len(codes) + 1)
            _raises(job, number, number - 1, rest, committed, code)
        over = [said for said in job.said() if "without a commit in between" in said]
        assert bool(over) == ends, (codes, committed)
        if ends:
            assert over == ["ranks have raised errors in 5 epochs without a commit in between"]
            why = {"do": "end", "why": over[0]}
            job.asks(len(codes) + 1, *rest)
            assert [Send(slot, why) for slot in rest] == job.taken()[-len(rest) :]
            for slot in rest:
                job.does("exited", slot, 1)
            assert job.taken() == [End(1, len(codes) - 1)]


@pytest.mark.parametrize("before", [False, True])
def test_an_error_after_a_commit_counts(before):
    """Whether its process ends before the others say what they had committed, or after."""
    job = begun(6, 1)
    for number in range(1, 6):
        rest = range(number, 6)
        job.does("disconnected", number - 1)
        if before:
            job.does("exited", number - 1, 1)
        for other in rest:
            job.actions += job.driver.asked(
                other, number, job.now, because="error", committed=number == 1
            )
        if not before:
            job.does("exited", number - 1, 1)
    assert "ranks have raised errors in 5 epochs without a commit in between" in job.said()


def test_a_process_that_ends_late():
    """No epoch begins while its exit code may be one error too many; a signal is none."""
    for code, goes_on in [(1, False), (137, True)]:
        job = begun(6, 1)
        for number in range(1, 5):
            _raises(job, number, number - 1, range(number, 6), False)
        job.does("disconnected", 4)
        job.taken()
        job.asks(5, 5)
        assert job.taken() == []
        job.does("exited", 4, code)
        assert (epoch(6, 5) == job.taken()) == goes_on


def test_a_process_that_ends_after_a_commit():
    """Its error came before the commit, so it does not count, and nobody waits for it."""
    job = begun(7, 1)
    job.does("disconnected", 0)
    job.asks(1, *range(1, 7))
    for number in range(2, 6):
        _raises(job, number, number - 1, range(number, 7), number == 2)
    job.does("exited", 0, 1)
    over = "ranks have raised errors in 5 epochs without a commit in between"
    assert over not in job.said()
    job.does("disconnected", 5)
    job.asks(6, 6)
    job.does("exited", 5, 1)
    assert over in job.said()


SHORT = "1 rank can train, and --min-np is 2; no --host-discovery-script finds others"


def test_an_error_that_is_no_loss():
    """All have asked, and nothing has changed."""
    job = begun(2)
    job.asks(1, 1)
    assert job.taken() == []
    job.asks(1, 0)
    assert job.taken() == to([0, 1], "same", 1)
    job.asks(1, 0, 1)
    assert job.taken() == to([0, 1], "same", 1)


def test_an_error_that_is_no_loss_and_another_epoch():
    """Who wants to try again gets an epoch of the same ranks; the next error is as the first."""
    job = begun(2)
    job.does("asked", 1, 1)
    job.actions += job.driver.asked(0, 1, job.now, because="error", again=True)
    assert job.taken() == epoch(2, 0, 1)
    job.asks(2, 0, 1)
    assert job.taken() == to([0, 1], "same", 2)


def test_gathers():
    """In the order of ranks, several at a time; void if a member can no longer take part."""
    job = begun(3)
    for number, slot in [(1, 2), (2, 1), (1, 0), (2, 0), (1, 1)]:
        job.does("gather", slot, 1, number, f"{number} of {slot}")
    blocks = ["1 of 0", "1 of 1", "1 of 2"]
    assert job.taken() == to([0, 1, 2], "gathered", 1, number=1, data=blocks)
    job.asks(1, 2)  # an error of its own, while the others wait for it in the second one
    assert job.taken() == to([0, 1], "void", 1, why="rank 2 (slot 2) has left")
    job.asks(1, 0, 1)
    assert job.taken() == epoch(2, 0, 1, 2)
    job.does("gather", 0, 1, 3, "of an epoch that is over")
    job.does("bye", 1)
    job.does("gather", 0, 2, 1, "too late")
    assert job.taken() == to([0, 2], "void", 2, why="rank 1 (slot 1) has left")


def test_a_newcomer():
    """Members hear of it when it is ready; it becomes the last rank, whatever its slot."""
    job = begun(2, 2, replaces=True)
    job.does("discovered", 3)
    assert job.taken() == [Start(2)]
    job.does("discovered", 3)
    job.joins(2, beside=2)
    assert job.taken() == []
    job.asks(0, 2)
    assert job.taken() == to([0, 1], "update", 1)
    job.asks(1, 1, 0)
    assert job.said() == ["3 ranks go on as epoch 2, with slot 2"]
    assert job.taken() == epoch(2, 0, 1, 2)
    job.does("disconnected", 0)
    assert job.taken() == [*to([1, 2], "void", 2, why="rank 0 (slot 0) was lost"), Start(3)]
    job.joins(3)
    job.asks(0, 3)
    job.asks(2, 2, 1)
    assert job.taken() == epoch(3, 1, 2, 3)


def test_a_newcomer_that_dies():
    """The members have left their epoch for its sake, so they get another, as they were."""
    job = begun(2, replaces=True)
    job.does("discovered", 3)
    job.joins(2)
    job.asks(0, 2)
    job.asks(1, 0)
    job.taken()
    job.does("exited", 2, 1)
    job.asks(1, 1)
    assert job.taken() == [Start(3), *epoch(2, 0, 1)]
    job.joins(3)
    job.asks(0, 3)
    assert job.taken() == to([0, 1], "update", 2)


def test_members_leave():
    """Those of the highest ranks; never so many that the job could not go on."""
    job = begun(4, 2, replaces=True)
    job.does("discovered", 3)
    assert job.taken() == to(range(4), "update", 1)
    job.asks(1, 3, 2, 1, 0)
    assert job.taken() == [Send(3, {"do": "leave"}), *epoch(2, 0, 1, 2)]
    job.does("discovered", 0)
    job.does("bye", 3)
    job.does("exited", 3, 0)
    job.asks(2, 0, 1, 2)
    assert job.taken() == [
        *to(range(3), "update", 2),
        Send(2, {"do": "leave"}),
        *epoch(3, 0, 1),
    ]
    job.passes(driver.EXIT_SECONDS)
    assert job.taken() == [Kill(2)]  # it had time to end


def test_sigterm():
    """That rank leaves when all have asked, also if too few are left; its place is filled."""
    job = begun(3, 3, replaces=True)
    job.does("discovered", 3)
    job.does("leaving", 1)
    job.does("leaving", 1)
    leaves = "rank 1 (slot 1) got SIGTERM, and leaves when the ranks next commit"
    assert job.said() == [leaves]
    assert job.taken() == [*to(range(3), "update", 1), Start(3)]
    job.asks(1, 2, 1)
    assert job.taken() == []
    job.asks(1, 0)
    assert job.taken() == [Send(1, {"do": "leave"})]
    job.does("bye", 1)
    job.does("exited", 1, 0)
    job.joins(3)
    job.asks(0, 3)
    assert job.taken() == epoch(2, 0, 2, 3)


def test_sigterm_of_newcomers_and_of_all():
    """One that is not let in yet is not let in; if no rank stays, the job has failed."""
    job = begun(2, replaces=True)
    job.does("discovered", 3)
    job.joins(2)
    job.does("leaving", 2)
    assert job.taken() == [Start(2), Start(3)]
    job.asks(0, 2)
    assert job.taken() == [Send(2, {"do": "leave"})]
    job.does("leaving", 0)
    job.does("leaving", 1)
    job.asks(1, 0, 1)
    end = {"do": "end", "why": "all ranks got SIGTERM"}
    killed = [Kill(3), Kill(4), Kill(5)]
    assert job.taken()[-5:] == [Send(0, end), Send(1, end), *killed]
    for slot, code in [(2, 0), (3, 137), (4, 137), (5, 137), (0, 1), (1, 1)]:
        job.does("exited", slot, code)
    assert job.taken() == [End(1)]


def test_more_are_ready_than_may_be():
    """A newcomer for which there is no room any more is told to leave."""
    job = begun(2, replaces=True, most=3)
    job.does("discovered", 9)
    assert job.taken() == [Start(2)]
    job.does("discovered", 2)
    job.joins(2)
    job.asks(0, 2)
    assert job.taken() == [Send(2, {"do": "leave"})]


def test_silence():
    """A member that does not ask because of a loss is killed; not one after an update."""
    job = begun(3, fence=60, replaces=True)
    job.does("discovered", 4)
    job.joins(3)
    job.asks(0, 3)
    job.asks(1, 0, 1)
    job.taken()
    job.passes(1000)
    assert job.taken() == []
    job.asks(1, 2)
    job.taken()
    job.asks(2, 1)  # it has seen that a peer stands still; nobody knows of a loss
    job.passes(59)
    job.asks(2, 0, 3)
    assert job.taken() == []
    job.passes(1)
    assert job.said()[0] == "rank 2 (slot 2) was silent for 60 s, and is killed"
    assert job.taken() == [Kill(2), *epoch(3, 0, 1, 3), Start(4)]
    job.does("exited", 2, 137)
    assert job.taken() == []


def test_the_end():
    """Well if one has said bye; losses after that begin no epoch, unless the rest asks for one."""
    job = begun(4, 3)
    job.does("bye", 3)
    job.does("exited", 3, 0)
    job.does("disconnected", 2)
    assert job.taken() == []
    job.asks(1, 0, 1)
    assert job.taken() == epoch(2, 0, 1)
    job.does("bye", 0)
    job.does("bye", 1)
    job.does("exited", 0, 0)
    job.does("exited", 2, 1)
    assert job.taken() == []
    job.does("exited", 1, 0)
    assert job.taken() == [End(0)]


def test_a_bye_and_no_end():
    """A process that hangs after its training is killed, and has ended well."""
    job = begun(2, fence=60)
    job.does("bye", 0)
    job.does("bye", 1)
    job.does("exited", 1, 0)
    job.passes(59)
    assert job.taken() == []
    job.passes(1)
    late = "rank 0 (slot 0) has ended well, but not its process, in 60 s: it is killed"
    assert job.said() == [f"{late} (--fence-after)"]
    assert job.taken() == [Kill(0)]
    job.does("exited", 0, 137)
    assert job.taken() == [End(0)]


def test_a_bye_and_an_exit_code():
    """A script that calls sys.exit(3) says bye too; that is a loss after all."""
    job = begun(3, 2)
    job.does("bye", 1)
    job.does("exited", 1, 3)
    why = "rank 1 (slot 1) ended with exit code 3"
    assert job.said() == [why]
    assert job.taken() == to([0, 2], "void", 1, why=why)
    job.asks(1, 0, 2)
    assert job.taken() == epoch(2, 0, 2)
    for slot in (0, 2):
        job.does("bye", slot)
    job.does("exited", 2, 4)
    job.does("exited", 0, 3)
    assert job.taken() == [End(4, 2)]


def test_newcomers_at_the_end():
    """Those that wait are told to leave, those that start are killed; none is started."""
    job = begun(2, replaces=True)
    job.does("discovered", 4)
    job.joins(2)
    job.taken()
    job.does("bye", 0)
    job.asks(0, 2)
    assert job.taken() == [Send(2, {"do": "leave"})]
    job.does("exited", 0, 0)
    job.does("bye", 1)
    assert job.taken() == [Kill(3)]
    for slot in (1, 2, 3):
        job.does("exited", slot, 0)
    assert job.taken() == [End(0)]


@pytest.mark.parametrize("replaces", [False, True])
def test_all_are_lost(replaces):
    """The job has failed with the code of the first; newcomers know nothing to go on with."""
    job = begun(3, replaces=replaces)
    if replaces:
        job.does("discovered", 4)
    job.taken()
    job.does("disconnected", 2)
    job.does("exited", 0, 1)
    job.does("exited", 1, 1)
    killed = [one.slot for one in job.taken() if isinstance(one, Kill)]
    assert killed == ([3, 4, 5] if replaces else [])  # two were started for 2 and 0
    for slot in killed:
        job.does("exited", slot, 137)
    job.does("exited", 2, 3)
    assert job.taken() == [End(3, 2)]


def test_too_few():
    """Who has asked waits for newcomers, and hears in the end that none came."""
    job = begun(2, 2, replaces=True, timeout=600)
    job.does("exited", 0, 5)
    job.asks(1, 1)
    job.taken()
    job.passes(599)
    assert job.taken() == []
    job.passes(1)
    why = "after --elastic-timeout 600, 1 rank can train, and --min-np is 2"
    assert job.taken() == [Send(1, {"do": "end", "why": why})]
    job.does("exited", 1, 1)
    assert job.taken() == [End(5, 0)]


def test_a_newcomer_in_time():
    """It ends the wait."""
    job = begun(2, 2, replaces=True, timeout=600)
    job.does("discovered", 2)
    job.does("exited", 0, 5)
    job.asks(1, 1)
    job.passes(599)
    job.joins(2)
    job.asks(0, 2)
    assert job.taken()[-2:] == epoch(2, 1, 2)


def test_the_first_epoch_waits_for_all():
    """But not longer than --elastic-timeout; who is late is a newcomer."""
    job = Job(3, 2, timeout=600)
    job.joins(0, 1, 2)
    job.asks(0, 2, 0)
    job.taken()
    job.passes(599)
    assert job.taken() == []
    job.passes(1)
    assert job.taken() == epoch(1, 0, 2)
    job.asks(0, 1)
    job.asks(1, 0, 2)
    assert job.taken() == [*to([0, 2], "update", 1), *epoch(2, 0, 2, 1)]


def test_the_first_epoch_does_not_wait_for_the_dead():
    """Without a script nobody replaces them."""
    job = Job(3, 2, timeout=600)
    job.joins(0, 1)
    job.asks(0, 0, 1)
    job.does("exited", 2, 1)
    assert job.taken()[-2:] == epoch(1, 0, 1)
    job = Job(3, 3, timeout=600)
    job.joins(0, 1)
    job.asks(0, 0, 1)
    job.does("exited", 2, 4)
    assert [one.message["do"] for one in job.taken()[3:]] == ["end", "end"]
    job.does("exited", 0, 1)
    job.does("exited", 1, 1)
    assert job.taken() == [End(4, 2)]


def test_a_program_that_does_not_start():
    """With a script too: until one has joined, nothing is started again."""
    job = Job(2, 1, replaces=True)
    job.does("discovered", 2)
    job.does("exited", 1, 3)
    job.does("exited", 0, 2)
    assert job.taken() == [Start(0), Start(1), End(3, 1)]


def test_slots_that_die_before_they_join():
    """After three in a row there are pauses, each twice as long, and one is tried at a time."""
    job = begun(1, replaces=True, cooldown=(1, 60))
    job.does("discovered", 3)
    assert job.taken() == [Start(1), Start(2)]
    for slot, started in [(1, [Start(3)]), (2, [Start(4)]), (3, [])]:
        job.does("exited", slot, 1)
        job.passes(1000)
        assert job.taken() == started
    for slot, pause in zip(range(4, 11), (2, 4, 8, 16, 32, 60, 60), strict=True):
        job.does("exited", slot, 1)
        job.passes(pause - 1)
        assert job.taken() == []
        job.passes(1)
        assert job.taken() == [Start(slot + 1)]
    job.joins(11)
    assert job.taken() == [Start(12)]


def test_reset_limit():
    """So often may the ranks change."""
    job = begun(3, resets=1)
    job.does("exited", 0, 1)
    job.asks(1, 1, 2)
    job.taken()
    job.does("exited", 1, 1)
    job.taken()
    job.asks(2, 2)
    why = "the ranks change more often than --reset-limit 1"
    assert job.taken() == [Send(2, {"do": "end", "why": why})]


def test_what_the_protocol_does_not_allow():
    """The connection is closed then."""
    job = begun(2)
    for event, given in [("joined", [0]), ("joined", [7]), ("asked", [0, 0]), ("asked", [0, 2])]:
        with pytest.raises(ValueError, match="slot"):
            job.does(event, *given)
    job.asks(1, 0)
    with pytest.raises(ValueError, match="slot 0 has not been in epoch 1"):
        job.asks(1, 0)
