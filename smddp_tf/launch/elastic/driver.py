"""What an elastic job does next. Pure: events and the time go in, actions come out.

A slot is one process of the job; its number is never used again. Slots that train together are the
members of an epoch, where each has a rank. A member that hears of a loss, or that others are to
come or to leave, leaves its epoch and asks for the next. That begins when all living members have
asked. So no slot is in two epochs, and rank 0 always has the state of the training.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Collection, Iterator
from typing import Any

EXIT_SECONDS = 30  # for a process to end by itself when it is no longer in the job
_PATIENCE = 3  # so many slots that die before they join are replaced at once
_SIGNALS = 128  # the lowest exit code of a process that a signal has ended
_FAULTS = 5  # so many epochs in which a rank raises, without a commit in between, end the job


@dataclasses.dataclass(frozen=True)
class Limits:
    """What the command line says.

    Attributes:
      start: ranks at the beginning.
      least: the fewest ranks of an epoch.
      most: the most.
      timeout: seconds to wait for ranks if there are fewer than `least`.
      fence: seconds after which a silent member is killed.
      cooldown: the shortest and longest wait between slots that die before they join.
      resets: how many epochs may follow the first.
      replaces: whether a discovery script says how many ranks are wanted.
    """

    start: int
    least: int
    most: float = math.inf
    timeout: float = 600.0
    fence: float = 60.0
    cooldown: tuple[float, float] = (1.0, 60.0)
    resets: float = math.inf
    replaces: bool = False


@dataclasses.dataclass(frozen=True)
class Start:
    """Start a process for this slot."""

    slot: int


@dataclasses.dataclass(frozen=True)
class Kill:
    """End all processes of this slot at once."""

    slot: int


@dataclasses.dataclass(frozen=True)
class Send:
    """Send this to a slot."""

    slot: int
    message: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclasses.dataclass(frozen=True)
class End:
    """The job has ended and no process is left; slot: the one whose exit code this is."""

    code: int
    slot: int | None = None


Action = Start | Kill | Send | Say | End


class Phase(enum.Enum):
    """What a slot does."""

    STARTING = "its process has not joined yet"
    JOINED = "it has joined, and has not asked for an epoch"
    WAITING = "it has asked for the next epoch"
    RUNNING = "it is in the epoch"
    FINISHED = "its training has ended well"
    GONE = "it was lost, or told to leave"


_LIVING = (Phase.STARTING, Phase.JOINED, Phase.WAITING, Phase.RUNNING)


@dataclasses.dataclass
class _Slot:
    number: int
    phase: Phase = Phase.STARTING
    kill_at: float = math.inf  # when its process is killed
    leaving: bool = False  # it got SIGTERM
    overdue: bool = False  # it has ended well, but its process had to be killed
    lost_in: int = 0  # the epoch of which it was a member when it was lost


def _counted(number: int) -> str:
    return f"{number} rank" + ("s" if number != 1 else "")


class Driver:
    """The state machine. Each event returns the actions that follow from it, in order.

    An event that the protocol does not allow raises ValueError; the slot's connection is then to be
    closed, which is a loss.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots: dict[int, _Slot] = {}  # those whose processes have not ended
        self._next_slot = 0
        self._actions: list[Action] = []
        self._epoch = 0
        self._members: list[int] = []  # of the epoch, in the order of ranks
        self._forget_epoch()
        self._lost: dict[int, int] = {}  # slot -> exit code, of losses since it began
        self._short_since: float | None = None  # fewer than `least` ranks have asked
        self._finished: set[int] = set()  # slots that have ended well, as far as is known
        self._over: dict[str, Any] | None = None  # the answer to whoever asks when the job is over
        self._ended = False
        self._wanted: int | None = None  # ranks, as discovery says
        self._deaths = 0  # slots in a row that died before they joined
        self._start_after = -math.inf
        self._faulty: set[int] = set()  # epochs since a commit in which a rank raised an error

    def _forget_epoch(self) -> None:
        self._void = False  # the members know that the epoch cannot go on
        self._updated = False  # they know that others come or leave
        self._failed = False  # a member asked for the next although nothing had been said
        self._again = False  # a member asks for another epoch even if all of them live
        self._silent_since: float | None = None  # a member has asked because of a loss
        self._gathers: dict[int, dict[int, str]] = {}  # number -> slot -> data

    # ---- events ---------------------------------------------------------------------------------

    def begin(self, now: float) -> list[Action]:
        """The job begins."""
        self._short_since = now
        listed = self._limits.start if self._wanted is None else self._wanted
        for _ in range(min(self._limits.start, listed) - len(self._slots)):
            self._start()
        return self._settled(now)

    def joined(self, number: int, now: float) -> list[Action]:
        """A slot's process has connected."""
        slot = self._slots.get(number)
        if slot is None or slot.phase is not Phase.STARTING:
            raise ValueError(f"slot {number} has no process that is to join")
        slot.phase, self._deaths = Phase.JOINED, 0
        # Until it is let in, a newcomer says that it is the rank after these.
        self._send(number, {"do": "welcome", "size": len(self._old())})
        return self._settled(now)

    def asked(
        self,
        number: int,
        epoch: int,
        now: float,
        because: str = "",
        again: bool = False,
        committed: bool = False,
    ) -> list[Action]:
        """A slot has left this epoch, and asks for the next.

        Args:
          number: the slot's.
          epoch: that it has left.
          now: the time.
          because: of an "error", if it knows.
          again: it wants a next one even if no member was lost.
          committed: it has committed in this epoch.
        """
        slot = self._slots[number]
        if slot.phase is Phase.GONE:
            self._send(number, self._over or {"do": "end", "why": "this rank has left the job"})
            return self._settled(now)
        if slot.phase is Phase.RUNNING and epoch == self._epoch:
            # Who has been told to ask may do so for another reason.
            self._failed = self._failed or not self._updated or because == "error"
            self._again = self._again or again
            if committed:
                self._faulty &= {epoch}  # an error of it comes after what it has committed
                for other in self._slots.values():
                    other.lost_in = epoch if other.lost_in == epoch else 0
        elif slot.phase is not Phase.JOINED or epoch != 0:
            raise ValueError(f"slot {number} has not been in epoch {epoch}")
        slot.phase = Phase.WAITING
        return self._settled(now)

    def gather(self, number: int, epoch: int, index: int, data: str, now: float) -> list[Action]:
        """A member's part of an allgather."""
        if self._slots[number].phase is Phase.RUNNING and epoch == self._epoch and not self._void:
            parts = self._gathers.setdefault(index, {})
            parts[number] = data
            if len(parts) == len(self._members):
                del self._gathers[index]
                blocks = [parts[member] for member in self._members]
                message = {"do": "gathered", "epoch": epoch, "number": index, "data": blocks}
                self._send_to(Phase.RUNNING, message)
        return self._settled(now)

    def failed(self, number: int, epoch: int, why: str, now: float) -> list[Action]:
        """A member cannot start in this epoch, and leaves the job."""
        slot = self._slots[number]
        if slot.phase is Phase.RUNNING and epoch == self._epoch:
            self._lose(slot, f"cannot start: {why}", now)
        return self._settled(now)

    def leaving(self, number: int, now: float) -> list[Action]:
        """A slot's process got SIGTERM: it leaves when the members next ask for an epoch."""
        slot = self._slots[number]
        if slot.phase in _LIVING and not slot.leaving:
            slot.leaving = True
            self._say(f"{self._name(number)} got SIGTERM, and leaves when the ranks next commit")
        return self._settled(now)

    def bye(self, number: int, now: float) -> list[Action]:
        """A slot's training has ended well; its exit code may say otherwise soon."""
        slot = self._slots[number]
        if slot.phase in _LIVING:
            slot.phase, slot.kill_at = Phase.FINISHED, now + self._limits.fence
            if number in self._members or not self._epoch:
                self._finished.add(number)
        return self._settled(now)

    def disconnected(self, number: int, now: float) -> list[Action]:
        """A slot's connection has ended."""
        slot = self._slots.get(number)
        if slot is not None and slot.phase in _LIVING:
            self._lose(slot, "was lost", now)
        return self._settled(now)

    def exited(self, number: int, code: int, now: float) -> list[Action]:
        """A slot's mpirun has ended."""
        slot = self._slots[number]
        failed = code != 0 and number in self._finished and not slot.overdue
        if slot.phase in _LIVING or failed:
            self._finished.discard(number)
            self._lose(slot, f"ended with exit code {code}", now)
        if number in self._lost:
            self._lost[number] = code
        del self._slots[number]
        if slot.lost_in and 0 < code < _SIGNALS:
            self._faulty.add(slot.lost_in)
            if len(self._faulty) == _FAULTS and self._over is None and not self._finishing:
                self._lost[number] = code
                why = f"ranks have raised errors in {_FAULTS} epochs without a commit in between"
                self._fail(why, now)
                self._make_void(why)
        return self._settled(now)

    def discovered(self, wanted: float, now: float, unlisted: Collection[int] = ()) -> list[Action]:
        """So many ranks can run.

        Args:
          wanted: their number.
          now: the time.
          unlisted: slots that cannot run any longer where they are. They leave when others can go
            on without them.
        """
        for number in unlisted:
            slot = self._slots[number]
            rest = {n for n in self.staying() if n != number}
            members = rest & set(self._old())
            ready = len(members | (rest & set(self._newcomers())))
            if number not in self._old() or (members and ready >= self._limits.least):
                slot.leaving = True
                self._say(f"{self._name(number)} leaves: its host has no slot for it any more")
        stay = [number for number in unlisted if not self._slots[number].leaving]
        self._wanted = int(min(wanted + len(stay), self._limits.most))
        return self._settled(now)

    def staying(self) -> list[int]:
        """The living slots that are not to leave."""
        return [n for n in self._living(*_LIVING) if not self._slots[n].leaving]

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._settled(now)

    def due(self) -> float:
        """When tick() has something to do if nothing happens before."""
        times = [slot.kill_at for slot in self._slots.values()]
        if self._over is not None:
            return min(times, default=math.inf)
        if self._silent_since is not None and self._silent():
            times.append(self._silent_since + self._limits.fence)
        if self._short_since is not None:
            times.append(self._short_since + self._limits.timeout)
        if self._lacks():
            times.append(self._start_after)
        return min(times, default=math.inf)

    @property
    def _finishing(self) -> bool:
        """Whether a member's training has ended: then the others only have to end too."""
        return bool(self._epoch and self._finished)

    # ---- what follows ---------------------------------------------------------------------------

    def _settled(self, now: float) -> list[Action]:
        """Does whatever the state asks for, and hands over the actions."""
        if not self._ended:
            if self._over is None:
                self._kill_overdue(now)
                self._fence(now)
                self._break_gathers()
                self._judge(now)
            if self._over is None:
                self._advance(now)
            if self._over is None:
                self._resize(now)
            self._close(now)
        actions, self._actions = self._actions, []
        return actions

    def _start(self) -> None:
        slot = _Slot(self._next_slot)
        self._next_slot += 1
        self._slots[slot.number] = slot
        self._actions.append(Start(slot.number))

    def _living(self, *phases: Phase) -> list[int]:
        """The numbers of slots in these phases, in order."""
        return [number for number, slot in self._slots.items() if slot.phase in phases]

    def _old(self) -> list[int]:
        """The living members, in the order of ranks."""
        living = set(self._living(*_LIVING))
        return [number for number in self._members if number in living]

    def _silent(self) -> list[int]:
        """The members that have not asked for the next epoch."""
        return [number for number in self._old() if self._slots[number].phase is Phase.RUNNING]

    def _newcomers(self) -> list[int]:
        waiting = self._living(Phase.WAITING)
        return [number for number in waiting if number not in self._members]

    def _send(self, number: int, message: dict[str, Any]) -> None:
        self._actions.append(Send(number, message))

    def _send_to(self, phase: Phase, message: dict[str, Any]) -> None:
        """To the members in this phase."""
        for number in self._members:
            if number in self._slots and self._slots[number].phase is phase:
                self._send(number, message)

    def _say(self, text: str) -> None:
        self._actions.append(Say(text))

    def _name(self, number: int) -> str:
        if number in self._members:
            return f"rank {self._members.index(number)} (slot {number})"
        return f"slot {number}"

    def _lose(self, slot: _Slot, what: str, now: float) -> None:
        """A living slot is lost: the others hear of it, and its process is ended if it stays."""
        name = self._name(slot.number)
        self._say(f"{name} {what}")
        if slot.phase is Phase.STARTING:
            self._deaths += 1
            if self._deaths >= _PATIENCE:
                least, most = self._limits.cooldown
                self._start_after = now + min(most, least * 2 ** (self._deaths - _PATIENCE))
        if slot.number in self._members or not self._epoch:
            self._lost[slot.number] = 0
        slot.phase, slot.kill_at = Phase.GONE, now + EXIT_SECONDS
        if slot.number in self._members and not self._finishing:
            slot.lost_in = self._epoch
            self._make_void(f"{name} {what}")

    def _make_void(self, why: str) -> None:
        if not self._void:
            self._void = True
            self._gathers.clear()
            self._send_to(Phase.RUNNING, {"do": "void", "epoch": self._epoch, "why": why})

    def _dismiss(self, number: int, answer: dict[str, Any], now: float) -> None:
        """Answers a slot that asked for the next epoch: there is none for it."""
        slot = self._slots[number]
        slot.phase, slot.kill_at = Phase.GONE, now + EXIT_SECONDS
        self._send(number, answer)

    def _kill(self, slot: _Slot) -> None:
        slot.kill_at = math.inf
        self._actions.append(Kill(slot.number))

    def _kill_overdue(self, now: float) -> None:
        for slot in self._slots.values():
            if now >= slot.kill_at:
                if slot.phase is Phase.FINISHED:
                    slot.overdue = True
                    late = f"has ended well, but not its process, in {self._limits.fence:g} s"
                    self._say(f"{self._name(slot.number)} {late}: it is killed (--fence-after)")
                self._kill(slot)

    def _fence(self, now: float) -> None:
        """Kills members that are silent while others, which have lost a rank, wait for them."""
        silent = self._silent()
        if len(silent) == len(self._old()) or not (self._void or self._failed):
            self._silent_since = None
            return
        if self._silent_since is None:
            self._silent_since = now
        if now >= self._silent_since + self._limits.fence:
            for number in silent:
                slot = self._slots[number]
                self._lose(slot, f"was silent for {self._limits.fence:g} s, and is killed", now)
                self._kill(slot)

    def _break_gathers(self) -> None:
        """An allgather that a member can no longer take part in is void, and the epoch with it."""
        running = self._living(Phase.RUNNING)
        for parts in self._gathers.values():
            for number in self._members:
                if number not in parts and number not in running:
                    self._make_void(f"{self._name(number)} has left")
                    return

    def _judge(self, now: float) -> None:
        """Whether the job is over because no member lives."""
        if self._old() if self._epoch else self._living(*_LIVING):
            return
        if self._finished:
            self._finish({"do": "leave"}, now)
        elif self._lost:
            self._fail("all ranks were lost", now)

    def _fail(self, why: str, now: float) -> None:
        self._say(why)
        self._finish({"do": "end", "why": why}, now)

    def _finish(self, answer: dict[str, Any], now: float) -> None:
        """The job is over: this is the answer to those who ask."""
        self._over = answer
        for slot in self._slots.values():
            # What is still starting has nothing to save.
            if slot.phase in (Phase.STARTING, Phase.JOINED):
                slot.phase, slot.kill_at = Phase.GONE, now

    def _close(self, now: float) -> None:
        """Ends a job that is over when its processes have ended."""
        if self._over is None:
            return
        for number in self._living(Phase.WAITING):
            self._dismiss(number, self._over, now)
        self._kill_overdue(now)
        if not self._slots:
            self._ended = True
            failures = [(code, slot) for slot, code in self._lost.items() if code]
            end = End(*failures[0]) if failures else End(1)
            self._actions.append(End(0) if self._finished else end)

    # ---- epochs ---------------------------------------------------------------------------------

    def _most(self) -> float:
        """The most ranks of the next epoch: never so few that the job could not go on."""
        if self._finishing:
            return len(self._old())
        if self._wanted is None:
            return self._limits.most
        return max(self._wanted, self._limits.least)

    def _advance(self, now: float) -> None:
        """Begins the next epoch if all who have to have asked for it."""
        if not self._let_go(now) or self._may_be_over():
            return
        old = self._old()
        most = int(min(self._most(), len(self._slots)))
        chosen = [*old, *self._newcomers()][:most]
        if self._epoch == 0 and not self._may_begin(len(chosen), now):
            return
        if len(chosen) < self._limits.least and not self._finishing:
            self._wait_for_ranks(len(chosen), now)
            return
        self._short_since = None
        # Who was told of others has left the epoch for them, so there has to be another.
        if chosen == self._members and not (self._void or self._updated or self._again):
            self._send_to(Phase.WAITING, {"do": "same", "epoch": self._epoch})
            for number in chosen:
                self._slots[number].phase = Phase.RUNNING
            self._forget_epoch()
        elif self._epoch > self._limits.resets and not self._finishing:
            self._fail(f"the ranks change more often than --reset-limit {self._limits.resets}", now)
        else:
            self._begin_epoch(chosen, [number for number in old if number not in chosen], now)

    def _let_go(self, now: float) -> bool:
        """Dismisses those that got SIGTERM; False if no member can go on."""
        old, silent = self._old(), self._silent()
        going = [n for n in self._living(Phase.WAITING) if self._slots[n].leaving]
        if old and set(old) <= set(going) and not self._finishing:
            self._fail("all ranks got SIGTERM", now)
            return False
        for number in going:
            if number not in old or not silent:
                self._say(f"{self._name(number)} leaves")
                self._dismiss(number, {"do": "leave"}, now)
        return not silent and bool(self._old() or not old)

    def _may_be_over(self) -> bool:
        """Whether an exit code that is still to come may end the job, as one fault too many."""
        awaited = {slot.lost_in for slot in self._slots.values() if slot.lost_in}
        return not self._finishing and len(self._faulty | awaited) >= _FAULTS

    def _may_begin(self, ready: int, now: float) -> bool:
        """Whether the first epoch waits for nobody."""
        coming = self._living(Phase.STARTING, Phase.JOINED)
        late = self._short_since is not None and now >= self._short_since + self._limits.timeout
        enough = ready >= min(self._limits.start, self._most())
        return enough or late or not (coming or self._limits.replaces)

    def _wait_for_ranks(self, ready: int, now: float) -> None:
        if self._short_since is None:
            self._short_since = now
        few = f"{_counted(ready)} can train, and --min-np is {self._limits.least}"
        if not (self._limits.replaces or self._living(Phase.STARTING, Phase.JOINED)):
            self._fail(f"{few}; no --host-discovery-script finds others", now)
        elif now >= self._short_since + self._limits.timeout:
            self._fail(f"after --elastic-timeout {self._limits.timeout:g}, {few}", now)

    def _begin_epoch(self, chosen: list[int], leaving: list[int], now: float) -> None:
        new = [number for number in chosen if number not in self._members]
        for number in leaving:
            self._say(f"{self._name(number)} leaves")
            self._dismiss(number, {"do": "leave"}, now)
        first = not self._epoch
        self._epoch, self._members = self._epoch + 1, chosen
        self._forget_epoch()
        self._lost.clear()
        if first:
            self._finished.clear()
        for rank, number in enumerate(chosen):
            self._slots[number].phase = Phase.RUNNING
            place = {"epoch": self._epoch, "rank": rank, "size": len(chosen), "slots": chosen}
            self._send(number, {"do": "epoch", **place})
        joined = "" if first or not new else f", with slot {', '.join(map(str, new))}"
        ranks = _counted(len(chosen)) + (" begin" if first else " go on")
        if len(chosen) == 1:
            ranks = "1 rank " + ("begins" if first else "goes on")
        self._say(f"{ranks} as epoch {self._epoch}{joined}")

    # ---- discovery ------------------------------------------------------------------------------

    def _lacks(self) -> int:
        """How many slots are to be started; 1 at a time while they die before they join."""
        if self._wanted is None or self._finishing or self._over is not None:
            return 0
        starting = self._living(Phase.STARTING)
        if not self._epoch and starting and len(starting) == len(self._living(*_LIVING)):
            return 0  # until one has joined, the program may be what fails
        lacking = max(0, self._wanted - len(self.staying()))
        if self._deaths >= _PATIENCE:
            return min(lacking, 0 if starting else 1)
        return lacking

    def _resize(self, now: float) -> None:
        """Tells members that others come or that they leave, dismisses and starts slots."""
        old, newcomers = self._old(), self._newcomers()
        if self._epoch:
            staying = sum(not self._slots[number].leaving for number in old)
            room = int(min(max(0, self._most() - staying), len(newcomers)))
            for number in newcomers[room:]:
                self._say(f"{self._name(number)} leaves: no more ranks are wanted")
                self._dismiss(number, {"do": "leave"}, now)
            leave = any(self._slots[number].leaving for number in old)
            changes = room or leave or len(old) > self._most()
            if changes and not (self._void or self._updated or self._finishing):
                self._updated = True
                self._send_to(Phase.RUNNING, {"do": "update", "epoch": self._epoch})
        if now >= self._start_after:
            for _ in range(self._lacks()):
                self._start()

    # ---- for tests ------------------------------------------------------------------------------

    def phases(self) -> Iterator[tuple[int, Phase]]:
        """The slots whose processes have not ended, and what they do."""
        return ((slot.number, slot.phase) for slot in self._slots.values())
