"""What goes into an error frame, and how Go prints the names inside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    ProtocolError,
    QuotaExceededError,
    RequestError,
    StoreError,
    TooManyConsumersError,
    TopicNotFoundError,
    row_of,
)

_GO_ESCAPES = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


class RefusedError(ProtocolError):
    """A command that is answered with an error frame.

    Attributes:
        code: The first word of the frame; clients look at nothing else. Empty: close without a frame.
        data: The frame's data, code and text. Bytes, because a refused command is repeated as it came.
        fatal: Whether the connection is closed behind the frame.
    """

    def __init__(self, code: str, text: bytes = b"", *, fatal: bool = True, start: bytes = b"") -> None:
        self.code = code
        self.data = code.encode() + (b" " + text if text else b"")
        super().__init__(self.data.decode("utf-8", "backslashreplace"), fatal=fatal, start=start)


class UnheldError(RefusedError):
    """A command whose body is longer than there is memory for."""

    def __init__(self, name: str, size_bytes: int) -> None:
        super().__init__(f"E_{name}_FAILED", f"{name} failed no memory for a command of {size_bytes} bytes".encode())


def go_quote(name: bytes) -> bytes:
    """Return ``name`` as Go's ``%q`` prints it: clients' tests and log filters know these texts."""
    quoted: list[str] = []
    # Bytes that are not UTF-8 arrive as lone surrogates, U+DC80 to U+DCFF, and leave as \xNN.
    for character in name.decode("utf-8", "surrogateescape"):
        point = ord(character)
        if character in _GO_ESCAPES:
            quoted.append(_GO_ESCAPES[character])
        elif 0xDC80 <= point <= 0xDCFF:
            quoted.append(f"\\x{point - 0xDC00:02x}")
        elif character.isprintable():
            quoted.append(character)
        elif point < 0x20 or point == 0x7F:
            quoted.append(f"\\x{point:02x}")
        elif point < 0x10000:
            quoted.append(f"\\u{point:04x}")
        else:
            quoted.append(f"\\U{point:08x}")
    return ('"' + "".join(quoted) + '"').encode()


# What a refused request means on the wire: {cmd} stands for the command. Every RequestError has its row or its base's.
TCP_REFUSALS: Final[Mapping[type[HeadraceError], tuple[str, str]]] = {
    AccessDeniedError: ("E_UNAUTHORIZED", "{cmd} {error}"),
    ClosingError: ("E_{cmd}_FAILED", "{cmd} failed exiting"),
    InvalidDelayError: ("E_INVALID", "{cmd} {error}"),
    InvalidFilterError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    MessageNotFoundError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    InvalidNameError: ("E_BAD_TOPIC", "{cmd} {error}"),
    MessageTooLargeError: ("E_BAD_MESSAGE", "{cmd} {error}"),
    TooManyConsumersError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    TopicNotFoundError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    ChannelNotFoundError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    NotInFlightError: ("E_{cmd}_FAILED", "{cmd} failed ID not in flight"),
    OffsetOutOfRangeError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    QuotaExceededError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    RequestError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
    StoreError: ("E_{cmd}_FAILED", "{cmd} failed {error}"),
}


def refusal_of(command: str, error: RequestError | StoreError) -> RefusedError:
    """Return what a client sees when the broker refuses ``command``. Fatal, as in nsqd."""
    code, text = row_of(TCP_REFUSALS, error)
    return RefusedError(code.format(cmd=command), text.format(cmd=command, error=error).encode())
