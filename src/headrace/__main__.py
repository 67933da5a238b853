"""``headrace``, also as ``python -m headrace``."""

import signal


def main() -> None:
    """Run the program and exit.

    A Ctrl-C while its modules are loaded ends it at once, without a traceback; one that is ignored, as in a shell's
    background, stays so.
    """
    is_handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headrace.cli import main as run  # noqa: PLC0415  # what takes long

    if is_handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
