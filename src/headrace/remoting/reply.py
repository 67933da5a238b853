"""What a request is answered with: the result of a handler, and the refusal that takes its place.

Every refused request has a response code and a remark that names the field, the limit or the setting. The one table
from the core's exceptions to response codes is here.

Ref: remoting.md 4.1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import (
    AccessDeniedError,
    ChannelNotFoundError,
    ClosingError,
    HeadraceError,
    InvalidDelayError,
    InvalidFilterError,
    InvalidNameError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotInFlightError,
    OffsetOutOfRangeError,
    QuotaExceededError,
    RequestError,
    StoreError,
    TooManyConsumersError,
    TopicNotFoundError,
    row_of,
)
from headrace.remoting.codec import encode_response
from headrace.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from headrace.broker.config_file import Saved

logger = logging.getLogger(__name__)

WaitSaved = Callable[["Saved"], None]
"""Calls back when a file is written, or could not be."""

LONGEST_REMARK: Final = 1024
"""Characters of a remark; it may repeat what a request said, which may be as long as a frame."""


@dataclass(slots=True)
class Reply:
    """One response; it leaves when ``wait_offset`` is durable (0: at once)."""

    code: int = 0
    remark: str = ""
    ext: dict[str, str] | None = None
    body: bytes | None = None
    wait_offset: int = 0
    wait_saved: WaitSaved | None = None
    """It waits for a file that the response promises."""
    may_be_late: bool = False
    """It answers a send: it leaves after ``remoting.flush_timeout_ms`` at the latest, as FLUSH_DISK_TIMEOUT, unless it
    waits for a file besides."""
    untold: int = 0
    """Code of a part of the request that was refused although the answer's is 0: clients look no further than that."""

    def __post_init__(self) -> None:
        self.remark = self.remark[:LONGEST_REMARK]

    def encode(self, serialize: int, opaque: int) -> bytes:
        """Return the response as a frame; where none can hold it, a refusal that says so."""
        try:
            return encode_response(serialize, opaque, int(self.code), self.remark or None, self.ext, self.body)
        except ValueError as error:
            logger.error("response does not fit into a frame code=%d error=%s", self.code, error)
            return encode_response(serialize, opaque, int(ResponseCode.SYSTEM_ERROR), str(error))


def saved_in_turn(first: WaitSaved, then: WaitSaved) -> WaitSaved:
    """Return what calls back when ``then`` does, which begins when ``first`` has; an error of ``first`` is the end."""
    return lambda saved: first(lambda error: saved(error) if error else then(saved))


Parts = Generator[None, None, Reply]
"""Each ``yield`` ends a turn of the loop; returns the answer."""


class RequestRefusedError(RequestError):
    """A request that is answered with ``code`` and the error's text as its remark."""

    def __init__(self, remark: str, code: int = ResponseCode.SYSTEM_ERROR, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.ext = ext


INTERNAL_ERROR: Final = "internal error"

# What the core's refusals mean on the wire. Every RequestError and StoreError has its row or that of its base.
RESPONSE_CODES: Final[Mapping[type[HeadraceError], ResponseCode]] = {
    AccessDeniedError: ResponseCode.NO_PERMISSION,
    TopicNotFoundError: ResponseCode.TOPIC_NOT_EXIST,
    ChannelNotFoundError: ResponseCode.TOPIC_NOT_EXIST,
    InvalidNameError: ResponseCode.SYSTEM_ERROR,
    MessageTooLargeError: ResponseCode.MESSAGE_ILLEGAL,
    NotInFlightError: ResponseCode.SYSTEM_ERROR,
    TooManyConsumersError: ResponseCode.SYSTEM_BUSY,
    QuotaExceededError: ResponseCode.SYSTEM_BUSY,
    ClosingError: ResponseCode.SERVICE_NOT_AVAILABLE,
    InvalidFilterError: ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    InvalidDelayError: ResponseCode.MESSAGE_ILLEGAL,
    MessageNotFoundError: ResponseCode.SYSTEM_ERROR,
    OffsetOutOfRangeError: ResponseCode.SYSTEM_ERROR,
    RequestError: ResponseCode.SYSTEM_ERROR,
    StoreError: ResponseCode.SERVICE_NOT_AVAILABLE,
}


def code_of(error: RequestError | StoreError) -> int:
    """Return the response code of a refusal of the core."""
    if isinstance(error, RequestRefusedError):
        return error.code
    return int(row_of(RESPONSE_CODES, error))


def refuse(error: RequestError | StoreError) -> Reply:
    """Return the response that says what the core refused and why."""
    return Reply(code_of(error), str(error), error.ext if isinstance(error, RequestRefusedError) else None)
