"""A process in the foreground: it says when it is ready, in a file and on standard output, logs, and stops at signals.

Ref: docs/running.md.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import headrace
from headrace.errors import ConfigError, NoLoopError

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)

STANDARD_ERROR: Final = 2
READER_WAIT_MS: Final = 1_000
PIECE_BYTES: Final = 4_096
"""What a pipe takes at once when it is ready: a page. A longer write would wait for the reader."""

_came_in_start: list[int] = []
"""Signals that were to end this process before it had a loop."""


class ReadyFile:
    """The file in which a process says who serves, where, for as long as it is ready; none if nobody asked for one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = -1  # what we wrote, open: no other file has its number meanwhile

    def require_writable(self) -> None:
        """Refuse a file that could not be written; better said now than when the store is open.

        Raises:
            ConfigError: names the folder and the remedy.
        """
        path = self._path
        if path is None:
            return
        if not path.parent.is_dir():
            raise ConfigError(f"the folder of --ready-file {path} does not exist; make it first")
        if path.is_dir():
            raise ConfigError(f"--ready-file {path} is a directory; name a file in it")
        # Replaced and removed: neither a device such as /dev/null nor a link such as /dev/stdout may be.
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            raise ConfigError(f"--ready-file {path} is no ordinary file; name another, or one that is not there yet")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise ConfigError(
                f"--ready-file {path} cannot be written: the folder does not let this user make files; "
                "choose a folder this user can write to"
            )

    def clear(self) -> None:
        """Remove the file of an earlier run, so that nobody takes it for this one's.

        Only once no other process can be it: a second start by mistake must not take the first one's file away.

        Raises:
            ConfigError: it cannot be removed.
        """
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(
                f"--ready-file {self._path} cannot be written: {error.strerror}; choose a folder this user can write to"
            ) from error

    def put(self, data_dir: Path, listeners: Mapping[str, str]) -> None:
        """Write the file in one step.

        Raises:
            ConfigError: it cannot be written.
        """
        path = self._path
        if path is None:
            return
        content = {
            "pid": os.getpid(),
            "version": headrace.__version__,
            "data_dir": spell(data_dir.resolve()),
            "listeners": dict(listeners),
        }
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(json.dumps(content) + "\n", encoding="utf-8")
            self._written = os.open(beside, os.O_RDONLY | os.O_CLOEXEC)
            beside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                beside.unlink(missing_ok=True)
            raise ConfigError(f"--ready-file {path} cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Take the file away, unless another process has put its own there. Raises: OSError."""
        if self._path is None or self._written < 0:
            return
        try:
            if os.path.samestat(self._path.lstat(), os.fstat(self._written)):
                self._path.unlink()
        except FileNotFoundError:
            pass
        finally:
            os.close(self._written)
            self._written = -1


def spell(path: Path) -> str:
    """Return a path as JSON can have it, whatever the locale: bytes that are no UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class LogOutput:
    """Standard error, for whole lines, but for those that nobody takes.

    A full pipe and a stopped terminal let a writer wait for their reader, and the event loop with it: who pages through
    the log would stop the broker. A reader that is slow is waited for; behind one that takes nothing for
    ``READER_WAIT_MS``, lines are left out and counted until there is room, and so are those that a full disk refuses.
    Nothing is buffered: what a disk refused would be in it, in front of what it takes.

    Attributes:
        left_out_total: Lines that were left out since the process began.
    """

    left_out_total: ClassVar[int] = 0

    def __init__(self) -> None:
        self._encoding = sys.stderr.encoding if sys.stderr is not None else "utf-8"
        self._left_out = 0  # since a line was taken
        self._is_torn = False  # of the last line only a part was taken
        self._writable = select.poll()
        self._writable.register(STANDARD_ERROR, select.POLLOUT)

    def write(self, text: str) -> None:
        """Write a line, or count it."""
        left_out, self._left_out = self._left_out, 0
        if left_out:
            if self._writable.poll(0):
                logger.error("log lines left out, nobody took them lines=%d", left_out)
            else:
                self._leave_out()
            if self._left_out:  # this line, or the one about the others, which counts as this one
                self._left_out += left_out
                return
        try:
            self._put("\n" + text if self._is_torn else text)
        except OSError:
            self._leave_out()

    def _put(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        while data:
            taken = _write_piece(STANDARD_ERROR, self._writable, data)
            self._is_torn = data[taken - 1 : taken] != b"\n"
            data = data[taken:]

    def _leave_out(self) -> None:
        self._left_out += 1
        LogOutput.left_out_total += 1


def _write_piece(output: int, writable: select.poll, data: bytes) -> int:
    """Write what an output takes at once; return how many bytes that is.

    Raises:
        BlockingIOError: who reads it has taken nothing for READER_WAIT_MS.
        OSError: nobody reads it, or its disk takes nothing.
    """
    if not writable.poll(READER_WAIT_MS):
        raise BlockingIOError(errno.EAGAIN, "nobody takes it")
    return os.write(output, data[:PIECE_BYTES])


def announce(text: str) -> None:
    """Print that the process is ready. Whoever was to read it may be gone, or take nothing, which ends nothing."""
    try:
        output, writable = sys.stdout.fileno(), select.poll()
    except io.UnsupportedOperation:  # no file: who replaced it keeps the text
        sys.stdout.write(text + "\n")
        return
    try:
        writable.register(output, select.POLLOUT)
        data = f"{text}\n".encode(sys.stdout.encoding, "backslashreplace")
        while data:
            data = data[_write_piece(output, writable, data) :]
    except OSError as error:
        logger.warning("standard output cannot be written, going on without it error=%s", error.strerror)


def stop_signals() -> list[signal.Signals]:
    """Return the signals that end a process in good order: SIGINT, SIGTERM and, unless nohup has it ignored, SIGHUP."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if is_ignored else [signal.SIGHUP])]


def leave_at_signals() -> None:
    """Have these signals end a start, which takes a moment: what was opened is closed on the way out."""

    def leave(number: int, _frame: object) -> None:
        _came_in_start.append(number)
        raise SystemExit(0)

    for number in stop_signals():
        signal.signal(number, leave)


_REFUSALS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EAGAIN, errno.EPERM, errno.EACCES, errno.ENOSYS}
)


@contextlib.contextmanager
def loop_refusals() -> Iterator[None]:
    """Have what the system refuses the event loop, which names no file, said with its remedy.

    Raises:
        NoLoopError: it did.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        # uvloop takes a loop that could not begin for one that runs: closing it fails, and hides why it did not.
        refusal: BaseException | None = error
        while refusal is not None and not isinstance(refusal, OSError):
            refusal = refusal.__context__
        if refusal is None or refusal.filename is not None or refusal.errno not in _REFUSALS:
            raise
        raise NoLoopError(refusal) from error


def stop_at_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Have a loop call ``stop`` at these signals; at once where one came in the start and did not end it.

    An exception out of a signal's handler goes no further where it meets a destructor, of which imports run many.
    """
    for number in stop_signals():
        loop.add_signal_handler(number, stop)
    if _came_in_start:
        stop()
