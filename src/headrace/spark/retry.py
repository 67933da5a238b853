"""Asking a broker again while it is away or busy: a limited number of times in a row, with growing pauses.

Rows on their way have a loop of their own (``writing.send``): what goes again there is a window of requests, in order.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from headrace.errors import (
    ClientError,
    ConnectionLostError,
    RemotingRefusedError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import ResponseCode
from headrace.spark.errors import REGISTRY, BrokerGoneError

logger = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 5.0
_MOST_DOUBLINGS: Final = 10
"""No more are needed; of a thousand the pause would be no ``float`` any more."""
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLOW_CONTROL))
"""Refusals that pass."""
MAY_PASS: Final = (ConnectionLostError, RequestTimeoutError, RouteNotFoundError, RemotingRefusedError)
"""What ``Retry.failed`` is told of; it decides which refusals do."""
T = TypeVar("T")


class Retry:
    """Counts failures in a row of one broker and waits between attempts.

    A broker that was lost may come back at another address, and what was asked for a moment ago is not asked again: so
    the registries are, after each loss.
    """

    def __init__(self, cluster: Cluster, broker: str, what: str, retries: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.what = what
        self.retries = retries
        self.failures = 0
        self._may_have_moved = broker != REGISTRY

    def succeeded(self) -> None:
        """Begin to count anew."""
        self.failures = 0
        self._may_have_moved = self.broker != REGISTRY

    def failed(self, error: ClientError) -> None:
        """Wait before the next attempt.

        Raises:
            RemotingRefusedError: ``error`` is one and will not pass.
            BrokerGoneError: there have been as many as may be.
        """
        if isinstance(error, RemotingRefusedError) and error.code not in _BUSY:
            raise error
        self.failures += 1
        if self.failures > self.retries and not self._has_moved(error):
            # The text has the cause; chained, Spark would show its traces, a page of them, before the sentence.
            raise BrokerGoneError(self.broker, self.what, self.failures, str(error)) from None
        wait_s = min(_FIRST_BACKOFF_S * 2 ** min(self.failures - 1, _MOST_DOUBLINGS), _LONGEST_BACKOFF_S)
        logger.warning(
            "not served, trying again broker=%s what=%s attempt=%d wait_s=%.1f error=%s",
            self.broker, self.what, self.failures, wait_s, error,
        )  # fmt: skip
        time.sleep(wait_s)
        if self.broker != REGISTRY and not isinstance(error, RequestTimeoutError):
            with contextlib.suppress(ClientError):  # the next attempt says what is wrong
                self.cluster.brokers()

    def _has_moved(self, error: ClientError) -> bool:
        """Return whether the broker is elsewhere by now than where it was lost, as far as nobody has asked yet.

        Its address may have been known for some seconds: then not the broker failed. Once in a row, whatever registries
        say.
        """
        if not self._may_have_moved or not isinstance(error, ConnectionLostError):
            return False
        before = self.cluster.known_addresses().get(self.broker)
        with contextlib.suppress(ClientError):
            self.cluster.brokers()
        self._may_have_moved = self.cluster.known_addresses().get(self.broker) == before
        return not self._may_have_moved


def insist(cluster: Cluster, broker: str, what: str, retries: int, ask: Callable[[], T]) -> T:
    """Return what ``ask`` returns, asking again while the broker is away or busy. Raises: as ``Retry.failed``."""
    retry = Retry(cluster, broker, what, retries)
    while True:
        try:
            return ask()
        except MAY_PASS as error:
            retry.failed(error)
