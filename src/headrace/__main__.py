"""``headrace``, also as ``python -m headrace``."""

import os
import signal
import sys
from typing import Final

SERVERS: Final = ("serve", "registry")
"""Commands that a signal stops in good order, with exit code 0."""
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the program and exit.

    A Ctrl-C while its modules are loaded ends it at once, without a traceback; one that is ignored, as in a shell's
    background, stays so. For a server any signal that stops it does, and is a stop.
    """
    if sys.argv[1:2] and sys.argv[1] in SERVERS:
        for number in STOPS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: os._exit(0))  # nothing is open yet
        from headrace.cli import main as serve  # noqa: PLC0415  # as below

        try:
            serve()
        finally:
            # The rest takes Python a moment. Signals in a row, as of a terminal and a supervisor in it, are one stop.
            for number in STOPS:
                signal.signal(number, signal.SIG_IGN)
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headrace.cli import main as run  # noqa: PLC0415  # what takes long

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
