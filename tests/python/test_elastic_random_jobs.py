"""The state machine of elastic jobs, with slots that do at random what the protocol allows."""

import collections
import random

import pytest
from driven_job import Job

from smddp_tf.launch.elastic.driver import End, Kill, Send, Start


class World:
    """Slots that do at random what the protocol allows, and checks of what the driver does."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        start = self.random.randint(1, 4)
        self.least = self.random.randint(1, start)
        self.replaces = self.random.random() < 0.6
        most = start + self.random.randint(0, 2)
        self.job = Job(start, self.least, most=most, replaces=self.replaces)
        # slot -> what it does: starts, joined, asked, runs, stopped, told, left, dead
        self.slots, self.epochs, self.answers = {}, [], []
        self.epoch_of = collections.Counter()
        self.finished, self.end, self.heard = set(), None, set()
        self.overdue = set()  # have ended well, and were killed
        self.obeys()

    def obeys(self):
        """Does what the driver says, and checks it."""
        while taken := self.job.taken():
            for place, action in enumerate(taken):
                assert self.end is None, "actions after the end"
                if isinstance(action, Start):
                    assert action.slot not in self.slots
                    self.slots[action.slot] = "starts"
                elif isinstance(action, Kill):
                    self.overdue |= {action.slot} & self.finished
                    self.slots[action.slot] = "dead"
                elif isinstance(action, End):
                    assert not self.slots
                    assert action.code or self.finished or not self.epochs
                    self.end = action.code
                elif isinstance(action, Send) and action.message["do"] != "epoch":
                    self.hears(action.slot, **action.message)
                elif isinstance(action, Send) and action.message["rank"] == 0:
                    self.begins(taken[place : place + action.message["size"]])

    def begins(self, sent):
        """All members have asked, and who is in the epoch before has left it."""
        members = [one.slot for one in sent]
        before = self.epochs[-1] if self.epochs else []
        for rank, one in enumerate(sent):
            place = {"epoch": len(self.epochs) + 1, "rank": rank, "size": len(members)}
            assert one.message == {"do": "epoch", **place, "slots": members}
            assert self.slots[one.slot] in ("asked", "dead"), self.slots
            self.slots[one.slot] = self.slots[one.slot].replace("asked", "runs")
            self.epoch_of[one.slot] = len(self.epochs) + 1
        assert not [
            slot
            for slot in before
            if self.slots.get(slot) in ("runs", "stopped") and slot not in members
        ]
        old = [slot for slot in members if slot in before]
        assert members[: len(old)] == old == sorted(old, key=before.index)
        assert not before or members[0] in before
        assert len(members) >= self.least or self.finished
        self.epochs.append(members)
        self.heard.clear()

    def hears(self, slot, do, **message):
        doing = self.slots.get(slot)
        if do in ("leave", "end"):
            assert doing in ("asked", "dead")
            self.slots[slot] = "told" if doing == "asked" else doing
        elif do == "same":
            assert message["epoch"] == len(self.epochs)
            assert all(self.slots[one] in ("asked", "runs", "dead") for one in self.epochs[-1])
            self.slots[slot] = "runs" if doing == "asked" else doing
        else:
            assert do in ("void", "update", "gathered")
            assert message["epoch"] == self.epoch_of[slot] == len(self.epochs)
            assert doing in ("runs", "stopped", "dead", "left")
            if do == "void":
                self.heard.add(slot)

    def dies(self, slot):
        """Its connection ends; its process ends now or later."""
        doing = self.slots[slot]
        self.slots[slot] = "dead"
        if doing not in ("starts", "dead") and self.random.random() < 0.7:
            self.job.does("disconnected", slot)
        self.obeys()

    def exits(self, slot, code):
        self.slots.pop(slot)
        if code and slot not in self.overdue:
            self.finished.discard(slot)
        self.job.does("exited", slot, code)
        self.obeys()

    def lives(self, slot, faults):
        """One thing that a slot may do."""
        doing, rank = self.slots[slot], self.random.random()
        if faults and rank < 0.02:
            self.dies(slot)
        elif doing == "starts":
            self.slots[slot] = "joined"
            self.job.joins(slot)
        elif doing == "joined":
            self.slots[slot] = "asked"
            self.job.asks(0, slot)
        elif doing == "runs":
            self.runs(slot, faults, rank)
        elif doing == "stopped" and not faults and rank < 0.1:
            self.slots[slot] = "runs"  # nobody else may be there to miss it
        elif doing == "told":
            self.slots[slot] = "left"
            self.job.does("bye", slot)
        elif doing in ("left", "dead"):
            codes = [0, 0, 0, 3] if doing == "left" else [0, 1, 137]
            self.exits(slot, self.random.choice(codes))
        self.obeys()

    def runs(self, slot, faults, rank):
        epoch = self.epoch_of[slot]
        if slot in self.heard or rank < 0.3:
            self.slots[slot] = "asked"
            self.job.asks(epoch, slot)
        elif faults and rank < 0.33:
            self.slots[slot] = "stopped"
        elif faults and rank < 0.36:
            self.slots[slot] = "left"
            self.job.does("failed", slot, epoch, "no memory")
        elif faults and rank < 0.38:
            self.job.does("leaving", slot)
        elif rank < 0.42 + 0.3 * (not faults):
            self.slots[slot] = "left"
            self.finished.add(slot)
            self.job.does("bye", slot)
        else:
            self.job.does("gather", slot, epoch, 1, "data")

    def step(self, faults=True):
        rank = self.random.random()
        if rank < 0.05 and self.replaces and faults:
            self.job.does("discovered", self.random.randint(0, 6))
        elif rank < 0.15 or not self.slots:
            wait = self.random.choice([0.1, 5, 70]) if faults else 1000
            self.job.passes(wait)
        else:
            self.lives(self.random.choice(sorted(self.slots)), faults)
        self.obeys()


@pytest.mark.parametrize("first", range(0, 3000, 500))
def test_random_jobs(first):
    """At most one epoch lives, of slots that asked for it; and every job comes to an end."""
    ends = collections.Counter()
    for seed in range(first, first + 500):
        world = World(seed)
        for _ in range(world.random.randint(0, 300)):
            if world.end is None:
                world.step()
        for _ in range(3000):
            if world.end is None:
                world.step(faults=False)
        assert world.end is not None, (seed, world.slots, dict(world.job.driver.phases()))
        ends[world.end] += 1
    assert {0, 1, 137} <= set(ends), ends
