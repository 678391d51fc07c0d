"""SIGINT while the core asks Python whether the other ranks are there."""

import os
import signal
import threading
import time

import pytest

from smddp_tf._src.job.bootstrap import Bootstrap

TRIES = 30  # the signal comes at another place each time


@pytest.fixture(autouse=True)
def interruptible():
    """SIGINT raises, also in the background, where shells have programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class _Alone:
    """An exchange whose other rank never comes."""

    def __init__(self):
        self.told = []

    def start(self, block):
        """Begins nothing."""

    def blocks(self):
        """None, as in a store that is asked every now and then."""
        time.sleep(0.0005)

    def fail(self, text):
        """Keeps what the other rank would hear."""
        self.told.append(text)

    def why(self):
        """Nothing is known of."""
        return ""

    def host(self):
        """Nobody connects to it."""
        return "127.0.0.1"

    def secret(self):
        """Nobody has it."""
        return b""


def _core(bootstrap, over=lambda: False, delay=None):
    """Asks as the core does, through the function pointers; the code of what it would return."""
    if delay is not None:  # connect() is ready for it by now
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
    deadline = time.monotonic() + 20
    while not over() and time.monotonic() < deadline:
        if bootstrap.test(None, None, 0) == -1:
            return 4
    return 3


def test_an_interrupt_ends_the_wait():
    """KeyboardInterrupt, wherever the signal comes; others are told, and the handler is back."""
    before = signal.getsignal(signal.SIGINT)
    for i in range(TRIES):
        exchange = _Alone()
        bootstrap = Bootstrap(0, 2, exchange, 3)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.connect(lambda one=bootstrap, i=i: _core(one, delay=0.005 + i * 0.00037))
        assert len(exchange.told) == 1
        assert "rank 3" in exchange.told[0] and "KeyboardInterrupt" in exchange.told[0]
        assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_that_raises_nothing():
    """It runs while the ranks wait, and they go on waiting."""
    calls = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        bootstrap = Bootstrap(0, 2, _Alone())
        assert bootstrap.connect(lambda: _core(bootstrap, lambda: calls, 0.02)) == 3
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_on_another_thread():
    """Handlers run on the main thread only; others leave them alone."""
    codes = []
    bootstrap = Bootstrap(0, 2, _Alone())
    waiting = threading.Thread(
        target=lambda: codes.append(bootstrap.connect(lambda: _core(bootstrap, lambda: True)))
    )
    waiting.start()
    waiting.join(timeout=20)
    assert codes == [3]
