"""Runs an elastic job: feeds the driver with what happens, and does what it says."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smddp_tf.launch import reaper, supervise
from smddp_tf.launch.elastic.discovery import Discovery
from smddp_tf.launch.elastic.driver import Action, Driver, End, Kill, Limits, Say, Send, Start
from smddp_tf.launch.elastic.places import Places
from smddp_tf.launch.elastic.server import Server
from smddp_tf.launch.elastic.slots import VARIABLE, Slot
from smddp_tf.launch.machine import address_towards, interface_address

SLOT, HOST = "{slot}", "{slot-host}"  # in the command line: the slot's number, and its host
_ADDRESS, _SECRET = "SMDDP_RENDEZVOUS", "SMDDP_RENDEZVOUS_SECRET"
FOR_RANKS = (_ADDRESS, _SECRET, VARIABLE, reaper.VARIABLE)  # variables that each rank gets
_HERE = "127.0.0.1"
_SECRET_BYTES = 32
_DISCOVERY_SECONDS = 1.0
_LAST_WORDS_SECONDS = 1.0  # after mpirun's end, for the rank's last messages to arrive
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KILLED_SECONDS = 10.0  # for killed processes to end
_LONGEST_WAIT = 3600.0


@dataclasses.dataclass(frozen=True)
class Commands:
    """How a slot's process starts.

    Attributes:
      here: the command line of a slot's mpirun, on this machine.
      there: on another host.
      own_folder: as Slot has it, for this machine.
      is_here: whether a name means this machine.
      nic: the interface that leads to the other hosts; None: the one that the kernel takes.
    """

    here: Sequence[str]
    there: Sequence[str]
    own_folder: bool
    is_here: Callable[[str], bool]
    nic: str | None = None


class Job:
    """An elastic job; a Receiver of its server.

    Args:
      commands: that start a slot's process.
      environment: for all slots.
      tagged: whether each line of output begins with its slot.
      limits: what the command line says.
      hosts: (name, ranks) of each; a discovery script's count as soon as it has named some.
      discovery: the script that says how many ranks are wanted, if there is one.
    """

    def __init__(
        self,
        commands: Commands,
        environment: Mapping[str, str],
        tagged: bool,
        limits: Limits,
        hosts: Sequence[tuple[str, float]],
        discovery: Discovery | None,
    ) -> None:
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._commands, self._tagged = commands, tagged
        self._environment = {**environment, _SECRET: secret.hex()}
        self._driver, self._discovery = Driver(limits), discovery
        self._places = Places(hosts)
        self._here = self._shared = ""  # where the ranks of this machine, and of others, connect
        self._begun = False
        self._server = Server(secret, self)
        self._slots: dict[int, Slot] = {}  # those whose mpirun has not ended
        self._causes: dict[int, str] = {}
        self._ending: set[asyncio.Task] = set()  # of slots whose mpirun has ended
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[supervise.Outcome] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._hurries = False  # a second signal has come

    async def run(self) -> supervise.Outcome:
        """Until all processes have ended.

        Raises:
          OSError: there is no port for the ranks to connect to.
        """
        others = set(supervise.children())
        supervise.adopt_orphans()
        self._here = self._server.listen(_HERE)
        self._loop.add_signal_handler(signal.SIGCHLD, self._children_ended)
        for number in (*_ENDING, *supervise.FOR_RANKS):
            if signal.getsignal(number) != signal.SIG_IGN:  # what nohup ignores stays ignored
                self._loop.add_signal_handler(number, self._signalled, number)
        self._loop.set_exception_handler(self._broken)
        self._discover()
        self._begin()
        try:
            outcome = await self._outcome
        finally:
            await self._end_all()
        if outcome.code != 0:
            supervise.end_orphans(others)
        return outcome

    # ---- a Receiver -----------------------------------------------------------------------------

    def joined(self, slot: int) -> None:
        """A slot has connected."""
        if slot in self._slots:
            self._places.joined(slot)
            self._tell_address(slot)
        self._happens(functools.partial(self._driver.joined, slot))

    def received(self, slot: int, message: dict[str, Any]) -> None:
        """A slot has sent this."""
        driver, kind = self._driver, message["do"]
        event: Callable[[float], list[Action]]
        if kind == "next":
            event = functools.partial(
                driver.asked,
                slot,
                int(message["epoch"]),
                because=str(message.get("because", "")),
                again="again" in message,
                committed="committed" in message,
            )
        elif kind == "gather":
            part = int(message["epoch"]), int(message["number"]), str(message["data"])
            event = functools.partial(driver.gather, slot, *part)
        elif kind == "fail":
            event = functools.partial(
                driver.failed, slot, int(message["epoch"]), str(message["why"])
            )
        elif kind == "leaving":
            event = functools.partial(driver.leaving, slot)
        elif kind == "bye":
            event = functools.partial(driver.bye, slot)
        else:
            raise ValueError(f"there is no message {kind!r}")
        self._happens(event)

    def disconnected(self, slot: int) -> None:
        """A slot's connection has ended."""
        self._happens(functools.partial(self._driver.disconnected, slot))

    # ---- events and actions ---------------------------------------------------------------------

    def _happens(self, event: Callable[[float], list[Action]]) -> None:
        """Has the driver take an event, and does what follows."""
        if self._outcome.done():
            return
        for action in event(time.monotonic()):
            self._do(action)
        if self._timer is not None:
            self._timer.cancel()
        wait = min(max(0.0, self._driver.due() - time.monotonic()), _LONGEST_WAIT)
        self._timer = self._loop.call_later(wait, self._happens, self._driver.tick)

    def _do(self, action: Action) -> None:
        if isinstance(action, Start):
            self._start(action.slot)
        elif isinstance(action, Send):
            self._server.send(action.slot, action.message)
        elif isinstance(action, Say):
            supervise.say(action.text)
        elif isinstance(action, Kill):
            if action.slot in self._slots:
                self._slots[action.slot].kill()
        elif isinstance(action, End):
            cause = "" if action.slot is None else self._causes.get(action.slot, "")
            self._outcome.set_result(supervise.Outcome(action.code, cause=cause))

    def _start(self, number: int) -> None:
        try:
            host = self._places.take(number, self._driver.staying())
            slot = self._new_slot(number, host)
        except OSError as error:  # too many processes, say
            self._places.ended(number)
            supervise.say(f"slot {number} cannot be started: {error}")
            ended = functools.partial(self._driver.exited, number, 1)
            self._loop.call_soon(self._happens, ended)
        else:
            self._slots[number] = slot

    def _new_slot(self, number: int, host: str) -> Slot:
        commands, here = self._commands, self._commands.is_here(host)
        supervise.say(f"slot {number} starts" + ("" if here else f" on {host}"))
        address = self._here if here else self._address_for(host)
        words = [
            word.replace(SLOT, str(number)).replace(HOST, host)
            for word in (commands.here if here else commands.there)
        ]
        environment = {**self._environment, _ADDRESS: address}
        # Daemons on other hosts would look for the folder there.
        return Slot(number, words, environment, self._tagged, commands.own_folder and here)

    def _address_for(self, host: str) -> str:
        """Where ranks of other hosts connect: at the interface that leads to the first of them."""
        if not self._shared:
            nic = self._commands.nic
            own = (interface_address(nic) if nic else "") or address_towards(host)
            self._shared = self._server.listen(own)
            for slot in self._slots:
                self._tell_address(slot)
        return self._shared

    def _tell_address(self, slot: int) -> None:
        """A rank of this machine has come by the loopback interface: how do others reach it?"""
        if self._shared and self._commands.is_here(self._places.host(slot)):
            own = self._shared.rpartition(":")[0]
            self._server.send(slot, {"do": "here", "address": own})

    def _begin(self) -> None:
        """Starts the first slots; with a discovery script once its first call has ended."""
        if not self._begun and (self._discovery is None or not self._discovery.process_ids):
            self._begun = True
            self._happens(self._driver.begin)

    def _discover(self) -> None:
        """Every second."""
        if self._discovery is not None and not self._outcome.done():
            self._discovery.call()
            self._loop.call_later(_DISCOVERY_SECONDS, self._discover)

    # ---- processes ------------------------------------------------------------------------------

    def _children_ended(self) -> None:
        """After SIGCHLD."""
        for number, slot in list(self._slots.items()):
            code = slot.code()
            if code is not None:
                del self._slots[number]
                task = self._loop.create_task(self._exited(slot, code))
                self._ending.add(task)
                task.add_done_callback(self._has_ended)
        hosts = None if self._discovery is None else self._discovery.answer()
        if hosts is not None:
            self._places.list(hosts)
            unlisted = self._places.unlisted(self._driver.staying())
            found = functools.partial(self._driver.discovered, unlisted=unlisted)
            self._happens(functools.partial(found, self._places.total()))
        self._begin()
        own = [slot.process_id for slot in self._slots.values()]
        own += [] if self._discovery is None else self._discovery.process_ids
        supervise.reap_others(*own)

    def _has_ended(self, task: asyncio.Task) -> None:
        self._ending.discard(task)
        if task.exception() is not None:
            self._loop.call_exception_handler({"exception": task.exception()})

    def _broken(self, _: Any, context: dict[str, Any]) -> None:
        """A fault of smddprun's own: without this, asyncio would log it, and the job hang."""
        error = context.get("exception")
        if error is None or isinstance(error, OSError):  # of a connection
            self._loop.default_exception_handler(context)
        elif not self._outcome.done():
            self._outcome.set_exception(error)

    async def _exited(self, slot: Slot, code: int) -> None:
        """Tells the driver of a slot's end when all that the rank had sent was taken."""
        if code != 0:
            slot.kill()  # what the rank had started, and the rank itself if mpirun was killed
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self._server.is_connected(slot.number) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await self._loop.run_in_executor(None, slot.finish)
        self._causes[slot.number] = slot.cause()
        self._places.ended(slot.number)
        self._happens(functools.partial(self._driver.exited, slot.number, code))

    def _signalled(self, number: signal.Signals) -> None:
        """A signal to this process."""
        if number in supervise.FOR_RANKS:
            for slot in self._slots.values():
                slot.signal(number)
        elif self._outcome.done():
            self._hurries = True
        else:
            self._tell_all(signal.SIGTERM if number == signal.SIGHUP else number)
            self._outcome.set_result(supervise.Outcome(128 + number, interrupted=True))

    def _tell_all(self, number: signal.Signals) -> None:
        """Ends the job: without the message, a rank would take SIGTERM for one to itself alone."""
        for slot in self._slots.values():
            self._server.send(slot.number, {"do": "end", "why": "smddprun ends the job"})
            slot.signal(number)

    async def _end_all(self) -> None:
        """Waits for mpiruns that were told to end their ranks; then kills what is left."""
        if self._discovery is not None:
            self._discovery.end()
        if self._outcome.exception() is not None:
            self._tell_all(signal.SIGTERM)
        for seconds in (supervise.GRACE_SECONDS, _KILLED_SECONDS):
            deadline = time.monotonic() + seconds
            while (self._slots or self._ending) and time.monotonic() < deadline:
                if self._hurries and seconds > _KILLED_SECONDS:
                    break
                await asyncio.sleep(0.02)
            for slot in self._slots.values():
                slot.kill()
        await self._server.close()


def run(
    commands: Commands,
    environment: Mapping[str, str],
    tagged: bool,
    limits: Limits,
    hosts: Sequence[tuple[str, float]],
    discovery: Callable[[], Discovery] | None = None,
) -> supervise.Outcome:
    """Runs an elastic job once; the arguments are Job's.

    Raises:
      OSError: there is no port for the ranks to connect to.
    """

    async def whole() -> supervise.Outcome:
        found = None if discovery is None else discovery()
        return await Job(commands, marked, tagged, limits, hosts, found).run()

    name = secrets.token_hex(8)
    marked = {**environment, reaper.VARIABLE: name}
    with supervise.kept(name):
        return asyncio.run(whole())
