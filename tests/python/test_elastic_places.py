"""On which hosts the slots of an elastic job run."""

import math

import pytest
from driven_job import begun, epoch, to

from smddp_tf.launch.elastic.driver import Send, Start
from smddp_tf.launch.elastic.places import Places


def fill(places, slots):
    """The hosts of these slots, all of which stay."""
    return [places.take(slot, range(slots.start, slot + 1)) for slot in slots]


def test_hosts_are_filled_in_their_order():
    """Then the one that is least over its number gets another: a rank that leaves is replaced."""
    places = Places([("a", 2), ("b", 1)])
    assert fill(places, range(4)) == ["a", "a", "b", "a"]
    assert places.total() == 3
    assert Places([("here", math.inf)]).total() == math.inf


def test_a_host_that_fails_comes_last():
    """But it is not given up: it is tried if no other has room."""
    places = Places([("a", 1), ("b", 1)])
    assert places.take(0, [0]) == "a"
    places.ended(0)  # before it joined
    assert places.take(1, [1]) == "b"
    assert places.take(2, [1, 2]) == "a"
    places.joined(2)
    places.ended(2)
    places.joined(1)
    places.ended(1)
    assert places.take(3, [3]) == "a"


def test_slots_without_a_place():
    """The newest of each host; those that are about to leave count no more."""
    places = Places([("a", 2), ("b", 2)])
    fill(places, range(4))
    places.list([("a", 1), ("b", 2), ("c", 1)])
    assert places.unlisted([0, 1, 2, 3]) == [1]
    assert places.unlisted([0, 2, 3]) == []
    places.list([("a", 1), ("a", 1)])
    assert places.unlisted([0, 1, 2, 3]) == [3, 2]
    places.list([("a", 1)])
    assert places.unlisted([0, 1]) == [], "on one host any may leave"
    places.list([("c", 1)])
    assert places.unlisted([0, 1]) == [1, 0]


def test_no_host():
    """It is an error of the slot that should have started."""
    with pytest.raises(OSError, match="no host is listed"):
        Places([]).take(0, [0])


def test_a_host_is_listed_no_more():
    """Its rank leaves with the next commit, if --min-np others can go on."""
    job = begun(3, least=2, replaces=True)
    job.actions += job.driver.discovered(2, job.now, unlisted=[0])
    assert job.taken() == to([0, 1, 2], "update", 1)
    job.asks(1, 0, 1, 2)
    assert job.taken() == [Send(0, {"do": "leave"}), *epoch(2, 1, 2)]


def test_a_host_is_replaced_before_its_ranks_leave():
    """Without the other host's there would be too few; so that one joins first."""
    job = begun(2, least=2, replaces=True)
    job.actions += job.driver.discovered(2, job.now, unlisted=[1])
    assert job.taken() == [Start(2)]
    job.joins(2, beside=2)
    job.asks(0, 2)
    job.taken()
    job.actions += job.driver.discovered(2, job.now, unlisted=[1])
    job.asks(1, 0, 1)
    assert job.taken()[-3:] == [Send(1, {"do": "leave"}), *epoch(2, 0, 2)]
