"""One call of the event loop after some microseconds.

The loop's own timers have milliseconds. This one is a descriptor of the kernel's that becomes readable (``timerfd``);
where the system has none, or no descriptor is left, it is the loop's timer. To start it takes a system call, and to be
called some three microseconds.
"""

from collections.abc import Callable

class FineTimer:
    """A timer that is started again for each call.

    Belongs to the loop that runs when it is started first, until it is closed.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        """Have ``call`` called."""
    def start(self, ns: int) -> None:
        """Have it called once in ``ns`` nanoseconds; only when it is not due already.

        Raises: OSError where the system refuses that.
        """
    def close(self) -> None:
        """Give back the descriptor; nothing is called any more."""
