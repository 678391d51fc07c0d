"""The kinds of faults: what each does to a job, and how long the others are held up.

Each takes the job and random numbers, and returns seconds. Where a rank is lost these are from the
fault (of several the last) to the moment when all survivors have finished a step without it.
Otherwise they are the longest pause between two steps of a survivor.
"""

import os
import signal
import time

from storm_job import FENCE_SECONDS, MOST, TIMEOUT_SECONDS, HangError

KINDS = {}  # name -> (function, meaning)


def kind(name: str, meaning: str):
    """Enters a function under its name in the table."""

    def entered(function):
        KINDS[name] = function, meaning
        return function

    return entered


# ---- what is measured ---------------------------------------------------------------------------


def after_loss(job, since: float, ranks: list) -> float:
    """Seconds until all of the ranks that live have stepped without the victims."""

    def stepped():
        ends = []
        for slot in set(ranks) - job.victims:
            calls = [c for c in job.found(slot, "call") if not job.victims & set(c["members"])]
            begin = next((c["at"] for c in calls if c["at"] > since), None)
            steps = [] if begin is None else job.found(slot, "step", begin)
            if not steps:
                return None
            ends.append(steps[0]["at"])
        return max(ends)

    return job.wait(stepped, f"a step of all without slots {sorted(job.victims)}") - since


def longest_pause(job, since: float, until: float, ranks: list) -> float:
    """Between two steps of a rank, of which one is in this time."""
    longest = 0.0
    for slot in set(ranks) - job.victims:
        steps = [event["at"] for event in job.found(slot, "step")]
        for one, other in zip(steps, steps[1:], strict=False):
            if other > since and one < until:
                longest = max(longest, other - one)
    return longest


def all_stepped(job, since: float, ranks: list) -> float:
    """When all of these ranks have finished a step after a time."""

    def stepped():
        steps = [job.found(slot, "step", since) for slot in ranks]
        return max(found[0]["at"] for found in steps) if all(steps) else None

    return job.wait(stepped, f"a step of slots {ranks}")


def settle(job, least: int = 2) -> None:
    """Waits until there are as many ranks as are wanted, and at least so many."""
    if job.wanted < least:
        job.want(least)
    job.wait(lambda: job.settled(job.wanted), f"{job.wanted} ranks that step")


def choose(job, chosen, number: int = 1) -> list:
    """So many members."""
    return chosen.sample(job.members(), number)


# ---- SIGKILL ------------------------------------------------------------------------------------


@kind("kill", "SIGKILL of a rank at any moment")
def kill(job, chosen):
    """One rank."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    return after_loss(job, job.signal(victim, signal.SIGKILL), ranks)


@kind("kill rank 0", "the same of rank 0, whose state the others had")
def kill_first(job, chosen):
    """The first of the members."""
    ranks = job.members()
    return after_loss(job, job.signal(ranks[0], signal.SIGKILL), ranks)


@kind("kill two", "of two ranks at once")
def kill_two(job, chosen):
    """All but one, or two of four."""
    settle(job, least=3)
    ranks, victims = job.members(), choose(job, chosen, 2)
    job.victims.update(victims)
    return after_loss(job, max(job.signal(victim, signal.SIGKILL) for victim in victims), ranks)


@kind("kill mpirun", "of the mpirun of a rank")
def kill_mpirun(job, chosen):
    """The rank itself is not touched."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    mpirun = job.mpirun(victim)
    job.victims.add(victim)
    at = time.monotonic()
    os.kill(mpirun, signal.SIGKILL)
    return after_loss(job, at, ranks)


@kind("kill in recovery", "of another rank while the others recover from the first")
def kill_in_recovery(job, chosen):
    """Within the time that recovery takes."""
    settle(job, least=3)
    ranks, (one, other) = job.members(), choose(job, chosen, 2)
    job.signal(one, signal.SIGKILL)
    time.sleep(chosen.uniform(0, 0.4))
    return after_loss(job, job.signal(other, signal.SIGKILL), ranks)


@kind("kill in sync", "of another rank while it takes up or has taken up the state")
def kill_in_sync(job, chosen):
    """At points of recovery: of the error, restore(), the reset callbacks, sync()."""
    settle(job, least=3)
    ranks, (one, other) = job.members(), choose(job, chosen, 2)
    point = chosen.choice(["lost", "restore", "reset", "sync", "sync", "synced"])
    order = job.order(point, other, chosen.choice([0.0, chosen.uniform(0, 0.05)]))
    job.signal(one, signal.SIGKILL)
    _, at = job.ordered(order)
    return after_loss(job, at, ranks)


@kind("kill in commit", "of a rank within commit()")
def kill_in_commit(job, chosen):
    """Some may have that commit, and some not."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    order = job.order("commit", victim, chosen.choice([0.0, chosen.uniform(0, 0.01)]))
    _, at = job.ordered(order)
    return after_loss(job, at, ranks)


@kind("notice", "SIGTERM to a rank: it leaves when the ranks next commit; nothing is done twice")
def notice(job, chosen):
    """Nobody's collectives fail."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    at = job.signal(victim, signal.SIGTERM)
    seconds = after_loss(job, at, ranks)
    if victim in job.lost() or any(job.found(slot, "lost", at) for slot in ranks):
        raise HangError(f"slot {victim} was lost, though it could have left")
    return seconds


# ---- newcomers ----------------------------------------------------------------------------------


MOST_ATTEMPTS = 10  # about one kill in 20 brings a newcomer that the others take along


def kill_until_update(job, chosen, least: int, **order) -> tuple:
    """Kills members until another one is asked to let a newcomer in, where it takes an order.

    A newcomer may also come while the others recover, who then take it along: nobody is asked.

    Returns:
      (the order's number, who takes it, the other members).
    """
    for _ in range(MOST_ATTEMPTS):
        settle(job, least)
        ranks, (one, other) = job.members(), choose(job, chosen, 2)
        number = job.order("update", other, **order)
        after_loss(job, job.signal(one, signal.SIGKILL), ranks)
        job.wait(
            lambda n=number: job.is_taken(n) or job.settled(job.wanted),
            f"slot {other} is asked, or a newcomer trains",
        )
        if not job.withdraw(number):
            return number, other, [slot for slot in ranks if slot != one]
    raise HangError(f"after {MOST_ATTEMPTS} kills, nobody was asked to let a newcomer in")


@kind("kill at admission", "of a member while a newcomer is let in")
def kill_at_admission(job, chosen):
    """A rank is killed so that a newcomer comes."""
    after = chosen.choice([0.0, chosen.uniform(0, 0.1)])
    order, other, ranks = kill_until_update(job, chosen, 3, after=after)
    _, at = job.ordered(order)
    return after_loss(job, at, ranks)


@kind("kill a newcomer outside", "of a newcomer that is not let in yet; the others must not notice")
def kill_outside(job, chosen):
    """While it starts, or waits."""
    settle(job)
    ranks, (one,) = job.members(), choose(job, chosen)
    order = job.order(chosen.choice(["start", "waiting"]), None)
    after_loss(job, job.signal(one, signal.SIGKILL), ranks)
    newcomer, at = job.ordered(order)
    end = all_stepped(job, at, [slot for slot in ranks if slot not in job.victims])
    return longest_pause(job, at, end, ranks)


@kind("kill a newcomer at the door", "of newcomers for which the members leave their epoch")
def kill_at_the_door(job, chosen):
    """One of the members does it."""
    begin = time.monotonic()
    _, other, others = kill_until_update(job, chosen, 2, does="kill newcomers")
    kills = job.wait(lambda: job.found(other, "kills", begin), "newcomers are killed")[0]
    job.victims.update(kills["slots"])
    return all_stepped(job, kills["at"], others) - kills["at"]


@kind("kill a newcomer inside", "of a newcomer while it is let in, or takes the state")
def kill_inside(job, chosen):
    """Within the newcomer's first epoch."""
    settle(job)
    ranks, (one,) = job.members(), choose(job, chosen)
    after = chosen.choice([0.0, chosen.uniform(0, 0.05)])
    order = job.order(chosen.choice(["sync", "synced"]), None, after)
    after_loss(job, job.signal(one, signal.SIGKILL), ranks)
    newcomer, at = job.ordered(order)
    return after_loss(job, at, ranks)


@kind("more ranks, fewer ranks", "the discovery script changes its mind")
def resize(job, chosen):
    """Up or down, and sometimes back before anything has come of it."""
    ranks, at = job.members(), time.monotonic()
    for _ in range(chosen.choice([1, 1, 2, 4])):
        job.want(chosen.choice([n for n in range(2, MOST + 1) if n != job.wanted]))
        time.sleep(chosen.uniform(0, 1.5))
    settle(job)
    stayed = [slot for slot in ranks if slot in job.members()]
    return longest_pause(job, at, time.monotonic(), stayed)


# ---- SIGSTOP ------------------------------------------------------------------------------------


@kind("stop", f"SIGSTOP of a rank for good; noticed after {TIMEOUT_SECONDS} s")
def stop(job, chosen):
    """It is killed when the others have been silent enough."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    return after_loss(job, job.signal(victim, signal.SIGSTOP), ranks)


@kind("stop and continue", "SIGSTOP, and SIGCONT within 2 s; nobody is lost; from SIGCONT on")
def stop_shortly(job, chosen):
    """All go on."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    job.signal(victim, signal.SIGSTOP)
    time.sleep(chosen.uniform(0.2, 2.0))
    at = job.signal(victim, signal.SIGCONT)
    seconds = all_stepped(job, at, ranks) - at
    job.victims.remove(victim)
    return seconds


@kind("stop, continue late", "SIGCONT about when the rank is given up: it is lost, or goes on")
def stop_long(job, chosen):
    """From SIGCONT, or, if the rank was given up before, from when it was."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    begin = job.signal(victim, signal.SIGSTOP)
    end = begin + chosen.uniform(TIMEOUT_SECONDS - 1, TIMEOUT_SECONDS + FENCE_SECONDS + 1)
    while time.monotonic() < end and job.is_alive(victim):
        time.sleep(0.02)
    at = time.monotonic()
    if job.is_alive(victim):
        at = job.signal(victim, signal.SIGCONT)
    others = [slot for slot in ranks if slot != victim]
    steps = [step["at"] for slot in others for step in job.found(slot, "step", at)]
    seconds = max(steps) - at if steps else all_stepped(job, at, others) - at
    settle(job)
    if job.is_alive(victim):
        job.victims.remove(victim)
    return max(0.0, seconds)


# ---- others -------------------------------------------------------------------------------------


@kind("raise", "an exception in the script of one rank")
def raise_in_script(job, chosen):
    """Between two steps."""
    ranks, (victim,) = job.members(), choose(job, chosen)
    _, at = job.ordered(job.order("step", victim, does="raise"))
    return after_loss(job, at, ranks)


@kind("smddprun stops", "SIGSTOP of smddprun for up to 3 s; nobody must notice")
def stop_smddprun(job, chosen):
    """The ranks do not need it while they train."""
    settle(job)
    ranks, at = job.members(), time.monotonic()
    job.smddprun.send_signal(signal.SIGSTOP)
    time.sleep(chosen.uniform(0.5, 3.0))
    job.smddprun.send_signal(signal.SIGCONT)
    end = all_stepped(job, time.monotonic(), ranks)
    return longest_pause(job, at, end, ranks)


@kind("smddprun stops, kill", "of a rank while smddprun is stopped; from its SIGCONT on")
def stop_smddprun_and_kill(job, chosen):
    """The survivors wait for it."""
    settle(job)
    ranks, (victim,) = job.members(), choose(job, chosen)
    job.smddprun.send_signal(signal.SIGSTOP)
    time.sleep(chosen.uniform(0, 0.5))
    job.signal(victim, signal.SIGKILL)
    time.sleep(chosen.uniform(0, 2.0))
    at = time.monotonic()
    job.smddprun.send_signal(signal.SIGCONT)
    return after_loss(job, at, ranks)
