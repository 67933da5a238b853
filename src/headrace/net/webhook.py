"""Alarms to an HTTP address: a JSON body for each, sent by a thread, never waited for.

What cannot be sent in time is dropped and counted: an alarm must not hold up what it is about, and the counters of
what happened do not depend on it. Ref: docs/running.md, "Being told of dead letters".
"""

from __future__ import annotations

import atexit
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from headrace.errors import NoThreadError
from headrace.log_pace import LogPace

if TYPE_CHECKING:
    from headrace.clock import Clock

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
MAX_WAITING: Final = 100
MAX_ANSWER_BYTES: Final = 64 << 10
"""Of what may come before the status of an answer: interim answers and their headers."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})\b")
_SAFE: Final = "%/:=&?~+!$,;'@()*[]"
"""What stays as it is in what follows the host; other characters than these, letters and digits are escaped."""


class Webhook:
    """One address that is told of something.

    Attributes:
        sent: Calls that were answered with success, a status of 2xx.
        failed: Calls that were not, or not in time.
        dropped: Calls that were not made because ``MAX_WAITING`` were waiting, or at a stop.
    """

    def __init__(self, url: str, clock: Clock) -> None:
        self.sent = 0
        self.failed = 0
        self.dropped = 0
        parts = urlsplit(url)
        self._connection_class = HTTPSConnection if parts.scheme.lower() == "https" else HTTPConnection
        self._address = parts.hostname or "", parts.port
        self._host = parts.netloc  # the log is not for what stands behind it: a token
        self._target = quote(f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/", _SAFE)
        self._pace = LogPace(clock)
        self._lock = threading.Lock()
        self._waiting = 0  # with the one that is being made
        self._is_calling = False
        self._bodies: SimpleQueue[bytes | None] = SimpleQueue()
        self._is_closed = False
        # A daemon: its host may be a name that nobody resolves, which has no time-out, and the process is to end.
        self._thread = threading.Thread(target=self._run, name="headrace-webhook", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise NoThreadError(self._thread.name) from error

    def post(self, content: Mapping[str, Any]) -> None:
        """Send ``content`` soon; returns at once."""
        with self._lock:
            is_taken = self._waiting < MAX_WAITING and not self._is_closed
            self._waiting += is_taken
        if is_taken:
            self._bodies.put(json.dumps(content).encode())
            return
        self.dropped += 1
        if not self._is_closed and self._pace.is_due("dropped"):
            logger.warning("webhook not called, too many calls wait host=%s dropped=%d", self._host, self.dropped)

    def _run(self) -> None:
        for body in iter(self._bodies.get, None):
            with self._lock:
                if self._is_closed:
                    return
                self._is_calling = True
            self._send(body)

    def _send(self, body: bytes) -> None:
        try:
            status = self._call(body)
        except (OSError, ValueError, HTTPException) as error:  # time-outs are OSErrors
            self._note_failed(error)
        else:
            if 200 <= status < 300:
                self.sent += 1
            else:  # also a redirection: who follows one turns the POST into a GET without a body
                self._note_failed(HTTPException(f"answered {status}"))
        finally:
            with self._lock:
                self._waiting -= 1
                self._is_calling = False

    def _call(self, body: bytes) -> int:
        """Return the status of the answer; nothing behind it is read."""
        deadline = time.monotonic() + TIMEOUT_S
        connection = self._connection_class(*self._address, timeout=TIMEOUT_S)
        with closing(connection):
            connection.request("POST", self._target, body, {"Content-Type": "application/json", "Connection": "close"})
            return _read_status(_read_lines(connection.sock, deadline))

    def _note_failed(self, error: Exception) -> None:
        self.failed += 1
        if self._pace.is_due("failed"):
            logger.warning("webhook failed host=%s error=%s failed=%d", self._host, error, self.failed)

    def close(self) -> None:
        """Make no more calls; one that is being made has ``TIMEOUT_S`` left when the process ends.

        Those that wait are dropped; what is posted from now on is only counted.
        """
        with self._lock:
            self._is_closed = True
            left = self._waiting - self._is_calling
            self._waiting -= left
        self._bodies.put(None)
        if left:
            self.dropped += left
            logger.warning(
                "webhook not called for what waited, the broker stops host=%s calls=%d dropped=%d",
                self._host,
                left,
                self.dropped,
            )
        atexit.register(self._thread.join, TIMEOUT_S)


def _read_status(lines: Iterator[bytes]) -> int:
    """Return the status of the answer, the first that is not interim."""
    for line in lines:
        status = _STATUS.match(line)
        if status is None:
            break
        if status[1] >= b"200":
            return int(status[1])
        for header in lines:  # of an interim answer
            if not header.strip():
                break
    raise HTTPException("the answer is no HTTP")


def _read_lines(sock: socket.socket, deadline: float) -> Iterator[bytes]:
    """Yield lines until a time. ``http.client`` would wait anew with each byte, as long as some trickle in."""
    rest = b""
    left = MAX_ANSWER_BYTES
    while left > 0:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(remaining_s)
        received = sock.recv(left)
        if not received:
            raise HTTPException("closed without an answer")
        left -= len(received)
        *lines, rest = (rest + received).split(b"\n")
        yield from lines
