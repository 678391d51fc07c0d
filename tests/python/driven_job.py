"""A driver of an elastic job, with a clock of the test's own."""

from smddp_tf.launch.elastic import driver
from smddp_tf.launch.elastic.driver import Limits, Say, Send, Start


class Job:
    """A driver, the actions that it took since they were last looked at, and the time."""

    def __init__(self, start, least=1, **limits):
        self.driver, self.now, self.actions = driver.Driver(Limits(start, least, **limits)), 0.0, []
        self.does("begin")

    def does(self, event, *given):
        self.actions += getattr(self.driver, event)(*given, self.now)

    def passes(self, seconds):
        """Time, with a tick whenever one is due."""
        end = self.now + seconds
        while self.driver.due() <= end:
            self.now = max(self.now, self.driver.due())
            self.does("tick")
            assert self.driver.due() > self.now
        self.now = end
        self.does("tick")

    def taken(self):
        """The actions since the last call, without what the user is told."""
        found, self.actions = [one for one in self.actions if not isinstance(one, Say)], []
        return found

    def said(self):
        return [one.text for one in self.actions if isinstance(one, Say)]

    def joins(self, *slots, beside=None):
        """Slots connect, and are told how many ranks train already."""
        for slot in slots:
            before = len(self.actions)
            self.does("joined", slot)
            welcome = self.actions.pop(before)
            size = welcome.message["size"] if beside is None else beside
            assert welcome == Send(slot, {"do": "welcome", "size": size})

    def asks(self, epoch, *slots):
        for slot in slots:
            self.does("asked", slot, epoch)


def epoch(number, *slots):
    """The messages that begin an epoch."""
    return [
        Send(
            slot,
            {"do": "epoch", "epoch": number, "rank": rank, "size": len(slots), "slots": [*slots]},
        )
        for rank, slot in enumerate(slots)
    ]


def to(slots, do, epoch, **more):
    """A message to several slots."""
    return [Send(slot, {"do": do, "epoch": epoch, **more}) for slot in slots]


def begun(start, least=1, **limits):
    """A job whose first epoch has begun."""
    job = Job(start, least, **limits)
    job.joins(*range(start), beside=0)
    job.asks(0, *range(start))
    assert job.taken() == [Start(slot) for slot in range(start)] + epoch(1, *range(start))
    return job
