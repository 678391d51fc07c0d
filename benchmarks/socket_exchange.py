"""What plain sockets need for the bytes of an allreduce between two hosts: how fast a link can be.

Run by `bench_hosts.py --sockets`. Each of two ranks sends half of the bytes while it receives as
many, then the other half, as a reduce-scatter and an allgather do, by one thread for each direction
and with nothing to compute. Rank 0 prints the times.
"""

import argparse
import json
import os
import socket
import statistics
import threading
import time

PORT = 7731
CONNECT_SECONDS = 20


def connect(rank, address):
    """Return a socket between the two ranks; rank 0 listens at its address."""
    if rank == 0:
        with socket.create_server((address, PORT)) as listener:
            listener.settimeout(CONNECT_SECONDS)
            return listener.accept()[0]
    end = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=CONNECT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def receive(connection, view):
    """Fill the view; the peer's early end is an error."""
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError("the other rank has ended")
        view = view[count:]


def main():
    """Parse the arguments; see the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True, help="of rank 0's host")
    parser.add_argument("--bytes", type=int, required=True, help="of the allreduce")
    parser.add_argument("--repeats", type=int, required=True)
    args = parser.parse_args()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    connection = connect(rank, args.address)
    connection.settimeout(60)
    outgoing, incoming = bytes(args.bytes // 2), memoryview(bytearray(args.bytes // 2))
    times = []
    for _ in range(args.repeats + 1):
        start = time.perf_counter()
        for _ in range(2):
            receiver = threading.Thread(target=receive, args=(connection, incoming))
            receiver.start()
            connection.sendall(outgoing)
            receiver.join()
        times.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps({"case": "sockets", "med": statistics.median(times[1:])}))


if __name__ == "__main__":
    main()
