"""IDENTIFY: what a client says about itself and what it negotiates.

Checked in nsqd's order, because a client with two wrong values sees the first one's error. TLS, snappy, deflate and
AUTH are not offered: the answer says so, as an nsqd without a certificate, with both compressions switched off and
without an auth server does, and clients go on in plain.

Ref: nsq.md 1.5.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from headrace.nsq.refusal import RefusedError
from headrace.nsq.version import server_version

if TYPE_CHECKING:
    from headrace.settings import NsqSettings

MIN_INTERVAL_MS: Final = 1000  # of heartbeats and message timeouts
MIN_OUTPUT_BUFFER_BYTES: Final = 64
MAX_SAMPLE_RATE: Final = 99
DEFAULT_DEFLATE_LEVEL: Final = 6
MAX_TEXT: Final = 1024  # characters of a name that are kept for as long as the connection lives
MAX_REPAIRED: Final = 65_536  # characters of a body that is searched for lone surrogates; no client sends as many

# The numbers among the body's fields, with the bits that nsqd's Go types have for them.
_BITS: Final = {
    "heartbeat_interval": 64,
    "output_buffer_timeout": 64,
    "output_buffer_size": 64,
    "sample_rate": 32,
    "msg_timeout": 64,
    "deflate_level": 64,
}

# An escape of JSON that may stand is group 1 (a pair of surrogates, any other escape), a lone surrogate is not.
_SURROGATES: Final = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u]|\\u(?![dD][89a-fA-F]))|\\u[dD][0-9a-fA-F]{3}"
)

# nsqd refuses 30000.0 for an int; some JSON writers know no other numbers, so integral floats pass here.
Number = int | float | None
Text = str | None
Flag = bool | None


class _Request(msgspec.Struct):
    """The body. Missing, null and 0 all mean the default; unknown keys are ignored."""

    client_id: Text = None
    hostname: Text = None
    user_agent: Text = None
    feature_negotiation: Flag = None
    heartbeat_interval: Number = None
    output_buffer_size: Number = None
    output_buffer_timeout: Number = None
    tls_v1: Flag = None
    snappy: Flag = None
    deflate: Flag = None
    deflate_level: Number = None
    sample_rate: Number = None
    msg_timeout: Number = None


class _Answer(msgspec.Struct):
    """The reply's JSON, in nsqd's order of fields."""

    max_rdy_count: int
    version: str
    max_msg_timeout: int
    msg_timeout: int
    tls_v1: bool
    deflate: bool
    deflate_level: int
    max_deflate_level: int
    snappy: bool
    sample_rate: int
    auth_required: bool
    output_buffer_size: int
    output_buffer_timeout: int
    topology_region: str
    topology_zone: str


_request_decoder: Final[msgspec.json.Decoder[_Request | None]] = msgspec.json.Decoder(_Request | None)
_encode_answer = msgspec.json.Encoder().encode


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one connection. No dataclass: many clients connect for one message, and it is made anew for each.

    Attributes:
        heartbeat_interval_ms: 0 = the client wants none.
        output_buffer_bytes: Upper bound of what is gathered before it is sent; 1 = the client wants no buffer.
        output_buffer_timeout_ms: Upper bound of the wait in that buffer; 0 = the client wants none. There is no such
            buffer: whether messages may wait at all is what counts (``delivery_coalescing``).
        sample_rate: Percentage of messages to deliver; 0 = all.
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    heartbeat_interval_ms: int
    output_buffer_bytes: int
    output_buffer_timeout_ms: int
    sample_rate: int = 0
    msg_timeout_ms: int


def default_profile(settings: NsqSettings) -> Profile:
    """Return what holds for a client that never identifies itself."""
    return Profile(
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        output_buffer_bytes=settings.output_buffer_bytes,
        output_buffer_timeout_ms=settings.output_buffer_timeout_ms,
        msg_timeout_ms=settings.msg_timeout_ms,
    )


def identify(body: bytes, profile: Profile, settings: NsqSettings) -> tuple[Profile, bytes]:
    """Return the connection's new profile and the reply's data.

    Raises:
        RefusedError: a body that is no JSON object of these types, or a value out of range; fatal.
    """
    request = _decode(body)
    profile = replace(
        profile,
        client_id=(request.client_id or "")[:MAX_TEXT],
        hostname=(request.hostname or "")[:MAX_TEXT],
        user_agent=(request.user_agent or "")[:MAX_TEXT],
    )
    profile = replace(
        profile, heartbeat_interval_ms=_heartbeat_interval(request, profile.heartbeat_interval_ms, settings)
    )
    profile = _set_output_buffer(request, profile, settings)
    sample_rate = _integer(request.sample_rate)
    if not 0 <= sample_rate <= MAX_SAMPLE_RATE:
        raise _invalid("sample rate", sample_rate)
    msg_timeout_ms = _integer(request.msg_timeout) or profile.msg_timeout_ms
    # The default may be set outside the range that clients are held to.
    if request.msg_timeout and not MIN_INTERVAL_MS <= msg_timeout_ms <= settings.max_msg_timeout_ms:
        raise _invalid("msg timeout", msg_timeout_ms)
    profile = replace(profile, sample_rate=sample_rate, msg_timeout_ms=msg_timeout_ms)
    if not request.feature_negotiation:
        return profile, b"OK"
    return profile, _answer(profile, settings)


def _decode(body: bytes) -> _Request:
    try:
        # Bytes that are no UTF-8 become U+FFFD, as Go decodes them: a host name may be of any encoding. Python's
        # ``json`` writes such bytes as lone surrogates.
        text = body.decode("utf-8", "replace")
        may_be_repaired = "\\u" in text and len(text) <= MAX_REPAIRED
        request = _request_decoder.decode(_SURROGATES.sub(_replace_lone, text) if may_be_repaired else text)
        if request is None:
            return _Request()
        for name, bits in _BITS.items():
            _integer(getattr(request, name), bits)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RefusedError("E_BAD_BODY", b"IDENTIFY failed to decode JSON body") from error
    return request


def _replace_lone(escape: re.Match[str]) -> str:
    return escape[1] or "\\ufffd"


def _integer(number: Number, bits: int = 64) -> int:
    """Return a whole number; None counts as 0.

    Raises:
        ValueError: a fraction, or beyond ``bits``.
    """
    if number is None:
        return 0
    beyond = 1 << (bits - 1)
    whole = int(number) if -beyond <= number < beyond else None
    if whole is None or whole != number:
        raise ValueError(f"{number} is not a {bits}-bit integer")
    return whole


def _invalid(what: str, value: int) -> RefusedError:
    return RefusedError("E_BAD_BODY", f"IDENTIFY {what} ({value}) is invalid".encode())


def _heartbeat_interval(request: _Request, current_ms: int, settings: NsqSettings) -> int:
    wanted = _integer(request.heartbeat_interval)
    if wanted == -1:
        return 0
    if wanted == 0:
        return current_ms
    if not MIN_INTERVAL_MS <= wanted <= settings.max_heartbeat_interval_ms:
        raise _invalid("heartbeat interval", wanted)
    return wanted


def _set_output_buffer(request: _Request, profile: Profile, settings: NsqSettings) -> Profile:
    timeout_ms = _integer(request.output_buffer_timeout)
    size = _integer(request.output_buffer_size)
    shortest_ms, longest_ms = settings.min_output_buffer_timeout_ms, settings.max_output_buffer_timeout_ms
    if timeout_ms not in (-1, 0) and not shortest_ms <= timeout_ms <= longest_ms:
        raise _invalid("output buffer timeout", timeout_ms)
    effective_timeout_ms = {-1: 0, 0: profile.output_buffer_timeout_ms}.get(timeout_ms, timeout_ms)
    if size == -1:
        return replace(profile, output_buffer_bytes=1, output_buffer_timeout_ms=0)
    if size != 0 and not MIN_OUTPUT_BUFFER_BYTES <= size <= settings.max_output_buffer_bytes:
        raise _invalid("output buffer size", size)
    return replace(
        profile,
        output_buffer_bytes=size or profile.output_buffer_bytes,
        output_buffer_timeout_ms=effective_timeout_ms,
    )


def _answer(profile: Profile, settings: NsqSettings) -> bytes:
    return _encode_answer(
        _Answer(
            max_rdy_count=settings.max_rdy_count,
            version=server_version(),
            max_msg_timeout=settings.max_msg_timeout_ms,
            msg_timeout=profile.msg_timeout_ms,
            tls_v1=False,
            deflate=False,
            deflate_level=min(DEFAULT_DEFLATE_LEVEL, settings.max_deflate_level),
            max_deflate_level=settings.max_deflate_level,
            snappy=False,
            sample_rate=profile.sample_rate,
            auth_required=False,
            output_buffer_size=profile.output_buffer_bytes,
            output_buffer_timeout=profile.output_buffer_timeout_ms,
            topology_region="",
            topology_zone="",
        )
    )
