"""A rank of an elastic job that trains nothing: it speaks smddprun's protocol over a plain socket.

    smddprun -np 3 --min-np 2 python elastic_rank.py FOLDER [what=K ...]

It counts steps, each an allgather through smddprun, until FOLDER/stop exists. In FOLDER it notes
its process id (pid.K of slot K) and the epochs that it was in (epochs.K). main() has what slot K
does with `what=K`.
"""

import base64
import json
import os
import pathlib
import signal
import socket
import sys
import time

from smddp_tf._src.job.signed import NONCE_BYTES, Codec

LIMIT = 60  # seconds that a rank waits for a message


class Void(Exception):
    """The epoch cannot go on."""


class Rank:
    def __init__(self, secret):
        host, _, port = os.environ["SMDDP_RENDEZVOUS"].rpartition(":")
        self.slot = int(os.environ["SMDDP_RENDEZVOUS_SLOT"])
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT)
        self._codec = Codec(secret, self._socket.recv(NONCE_BYTES, socket.MSG_WAITALL), False)
        self._messages = []
        self.epoch, self.place, self.updated, self._gathers = 0, {}, False, 0
        self.step = 0
        self.send(do="join", slot=self.slot)

    def send(self, **message):
        self._socket.sendall(self._codec.encode(message))

    def patience(self, seconds):
        """How long gather() waits; next() waits for the others of the job."""
        self._seconds = seconds

    def receive(self):
        while not self._messages:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("smddprun has closed the connection")
            self._messages += self._codec.decode(data)
        return self._messages.pop(0)

    def next(self, **more):
        """Whether there is an epoch for this rank; its place is self.place then."""
        self._socket.settimeout(LIMIT)
        self.send(do="next", epoch=self.epoch, **more)
        while True:
            message = self.receive()
            if message["do"] == "epoch":
                self.epoch, self.place = message["epoch"], message
                self.updated, self._gathers = False, 0
                return True
            if message["do"] == "same":
                raise RuntimeError("nothing has changed")
            if message["do"] == "leave":
                return False
            if message["do"] == "end":
                raise RuntimeError(message["why"])

    def gather(self, value):
        """The values of all members."""
        self._gathers += 1
        data = base64.b64encode(json.dumps(value).encode()).decode()
        self._socket.settimeout(self._seconds)
        self.send(do="gather", epoch=self.epoch, number=self._gathers, data=data)
        while True:
            message = self.receive()
            if message["do"] == "void":
                raise Void(message["why"])
            self.updated = self.updated or message["do"] == "update"
            if message["do"] == "gathered" and message["number"] == self._gathers:
                return [json.loads(base64.b64decode(block)) for block in message["data"]]


def train(rank, folder):
    """Steps of an epoch; whether the training has ended."""
    print(f"epoch {rank.epoch}: rank {rank.place['rank']} of {rank.place['size']}", flush=True)
    rank.step = rank.gather(rank.step)[0]
    with open(folder / f"epochs.{rank.slot}", "a") as file:
        file.write(json.dumps({**rank.place, "step": rank.step}) + "\n")
    while True:
        said = rank.gather([rank.slot, rank.step, rank.updated, (folder / "stop").exists()])
        assert [slot for slot, *_ in said] == rank.place["slots"], said
        assert all(other == rank.step for _, other, *_ in said), said
        rank.step += 1
        if any(stop for *_, stop in said):
            return True
        if any(updated for _, _, updated, _ in said):
            return False
        time.sleep(0.02)


def main(folder, *does):
    """What slot K does with `fails=K`, `forges=K` and so on; `fails=all` has all of them fail."""
    does = dict(word.split("=") for word in does)
    slot = os.environ["SMDDP_RENDEZVOUS_SLOT"]
    (folder / f"pid.{slot}").write_text(str(os.getpid()))
    if does.get("fails") in (slot, "all"):
        raise ValueError("of slot " + slot)
    secret = bytes.fromhex(os.environ["SMDDP_RENDEZVOUS_SECRET"])
    if does.get("forges") == slot:
        secret = bytes(len(secret))
    if does.get("ignores") == slot:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank, ended, more = Rank(secret), False, {}
    if does.get("twin") == slot:
        twin = Rank(secret)
        try:
            twin.receive()
        except ConnectionError:
            print("the twin is refused", flush=True)
    rank.patience(float(does.get("patience", LIMIT)))
    while not ended and rank.next(**more):
        more = {}
        try:
            ended = train(rank, folder)
        except Void as void:
            print(f"void: {void}", flush=True)
        except TimeoutError:
            print("a peer stands still", flush=True)
            more = {"because": "error"}
    rank.send(do="bye")
    print(f"slot {slot} ends at step {rank.step}", flush=True)
    if does.get("exits") in (slot, "all"):
        sys.exit(3)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
