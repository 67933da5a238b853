"""What the commands that measure have in common: sizes that a run may change, its end by a signal, its last lines."""

import argparse
import signal
import sys
from collections.abc import Iterable, Mapping


def exit_at_sigterm() -> None:
    """Have a signal end the run by an exception, so that it still stops what it has started on the way out."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def take_sizes(arguments: argparse.Namespace, parser: argparse.ArgumentParser, defaults: Mapping[str, int]) -> None:
    """Fill in the sizes that were not given, and refuse those below 1."""
    for key, value in defaults.items():
        if getattr(arguments, key) is None:
            setattr(arguments, key, value)
        elif getattr(arguments, key) < 1:
            parser.error(f"{_flag(key)} must be at least 1")


def changed_sizes(arguments: argparse.Namespace, defaults: Mapping[str, int]) -> list[str]:
    """Return the sizes that are not the default, as flags: for the command that repeats a run."""
    return [
        f"{_flag(key)} {getattr(arguments, key)}" for key, value in defaults.items() if getattr(arguments, key) != value
    ]


def tell_verdict(failures: Iterable[str], missed: Iterable[str]) -> None:
    """Name on standard error the samples that could not be taken, and the targets that were missed."""
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    for line in missed:
        print(f"MISSED {line}", file=sys.stderr)


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
