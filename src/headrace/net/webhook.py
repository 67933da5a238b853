"""Alarms to an HTTP address: a JSON body for each, sent by a thread, never waited for.

What cannot be sent in time is dropped and counted: an alarm must not hold up what it is about, and the counters of
what happened do not depend on it.
"""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit

from headrace.threads import Threads

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 5.0
MAX_WAITING: Final = 100


class Webhook:
    """One address that is told of something.

    Attributes:
        sent: Calls that were answered with success.
        failed: Calls that were not, or not in time.
        dropped: Calls that were not made because ``MAX_WAITING`` were waiting.
    """

    def __init__(self, url: str) -> None:
        self.sent = 0
        self.failed = 0
        self.dropped = 0
        self._url = url
        self._host = urlsplit(url).netloc  # the log is not for what stands behind it: a token
        self._lock = threading.Lock()
        self._waiting = 0
        self._executor = Threads("headrace-webhook")

    def post(self, content: Mapping[str, Any]) -> None:
        """Send ``content`` soon; returns at once."""
        with self._lock:
            if self._waiting >= MAX_WAITING:
                self.dropped += 1
                return
            self._waiting += 1
        self._executor.submit(self._send, json.dumps(content).encode())

    def _send(self, body: bytes) -> None:
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                self.sent += 1
        except HTTPError as error:
            error.close()  # it is the answer, too
            self._note_failed(error)
        except (OSError, ValueError, HTTPException) as error:  # URLError and time-outs are OSErrors
            self._note_failed(error)
        finally:
            with self._lock:
                self._waiting -= 1

    def _note_failed(self, error: Exception) -> None:
        self.failed += 1
        logger.warning("webhook failed host=%s error=%s", self._host, error)

    def close(self) -> None:
        """Make no more calls; one that is being made ends by itself within ``TIMEOUT_S``."""
        self._executor.shutdown(wait=False, cancel_futures=True)
