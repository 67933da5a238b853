"""What can go wrong with reading that is no mistake in an option: data that is gone, brokers that stay away."""

from __future__ import annotations

from typing import Final

from headrace.errors import ClientError

REGISTRY: Final = "(registry)"
"""What stands for the registries where else a broker is named."""
REMOVED: Final = "retention has removed them, or the topic was deleted and made again"
"""Why a queue begins behind an offset that it had."""


class DataLossError(ClientError):
    """What a reader was to read next is not there any more, or is not what it was.

    Attributes:
        broker, topic: Whose; topic empty for a whole log.
        queue_id: -1 for a whole log.
        first_offset, end_offset: What is missing: queue offsets, or physical offsets of a log; end exclusive.
    """

    def __init__(
        self, message: str, *, broker: str, topic: str = "", queue_id: int = -1, first_offset: int, end_offset: int
    ) -> None:
        super().__init__(message)
        self.broker = broker
        self.topic = topic
        self.queue_id = queue_id
        self.first_offset = first_offset
        self.end_offset = end_offset


class BrokerGoneError(ClientError):
    """A broker, or with ``REGISTRY`` every registry, did not answer a reader, however often it was asked."""

    def __init__(self, broker: str, what: str, attempts: int, reason: str) -> None:
        if broker == REGISTRY:
            text = f"no registry served {what} in {attempts} attempts: {reason}; servers names registries, host:9876"
        else:
            text = f"broker {broker!r} did not serve {what} in {attempts} attempts: {reason}"
        super().__init__(text)
        self.broker = broker
        self.attempts = attempts


class WriteFailedError(ClientError):
    """A broker did not take a batch of rows; ``attempts`` is how often it was asked."""

    def __init__(self, broker: str, topic: str, queue_id: int, attempts: int, reason: str) -> None:
        times = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(
            f"broker {broker!r}, topic {topic!r}, queue {queue_id}: rows are not written, tried {times}: {reason}"
        )
        self.broker = broker
        self.topic = topic
        self.queue_id = queue_id
        self.attempts = attempts


class UnsendableError(ClientError):
    """A message that a job is to send can be none."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(
            f"message {message} cannot be sent: {reason}; --skip-unsendable leaves such messages out and lists them"
        )


class ExtensionMissingError(ClientError):
    """A broker does not know what a mode of writing is built on."""

    def __init__(self, semantics: str, address: str) -> None:
        super().__init__(
            f"the broker at {address} is none of Headrace or an older one and cannot take semantics={semantics}: write "
            "with semantics=at-least-once"
        )
        self.address = address
