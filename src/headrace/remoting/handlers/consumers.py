"""What a tool asks a consumer through the broker: how it is doing, and to consume one message now.

Ref: remoting.md 4.7.4, 4.7.6.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.remoting import fields
from headrace.remoting.calls import on_behalf_of
from headrace.remoting.codes import FIRST_VERSION_WITH_RUNNING_INFO, ResponseCode
from headrace.remoting.members import peer_of
from headrace.remoting.reading.single_records import answer_when_read, find_visible
from headrace.remoting.reply import Reply, RequestRefusedError
from headrace.remoting.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

_OFFSET_DIGITS: Final = 16
_ID_LENGTHS: Final = (32, 56)


def get_running_info(peer: Peer, command: Command) -> None:
    """Pass GET_CONSUMER_RUNNING_INFO on to the consumer it names, and its answer back (307)."""
    forward(peer, command, fields.text(command.ext, "clientId"), dict(command.ext), command.body)


def consume_directly(peer: Peer, command: Command) -> None:
    """Have a consumer consume one message now (309)."""
    services = peer.services
    ext = dict(command.ext)
    offset = physical_offset_of(fields.text(ext, "msgId"))

    def pass_on() -> None:
        body = find_visible(services, offset).raw
        ext["brokerName"] = services.broker.name
        clients = services.clients.client_ids(fields.text(ext, "consumerGroup"))
        forward(peer, command, ext.get("clientId") or next(iter(clients), ""), ext, body)

    answer_when_read(peer, command, [offset], pass_on)


def physical_offset_of(message_id: str) -> int:
    """Return the physical offset that an offset id holds.

    Raises:
        RequestRefusedError: it is none.
    """
    try:
        if len(message_id) not in _ID_LENGTHS:
            raise ValueError("wrong length")
        (offset,) = struct.unpack(">q", bytes.fromhex(message_id[-_OFFSET_DIGITS:]))
    except ValueError as error:
        raise RequestRefusedError(f"<msgId> {message_id[:64]!r} is no offset id of 32 or 56 hex digits") from error
    return int(offset)


def forward(peer: Peer, command: Command, client_id: str, ext: dict[str, str], body: bytes) -> None:
    """Ask a consumer, and answer with what it says.

    Raises:
        RequestRefusedError: it is not there, or too old.
    """
    services = peer.services
    group = fields.text(ext, "consumerGroup")
    member = services.clients.find_member(group, client_id)
    if member is None:
        raise RequestRefusedError(f"The Consumer <{group}> <{client_id}> not online")
    if member.client.version < FIRST_VERSION_WITH_RUNNING_INFO:
        raise RequestRefusedError(
            f"The Consumer <{client_id}> Version too low to finish, please upgrade it: {member.client.version}"
        )

    def answered(response: Command | None) -> None:
        if response is None:
            text = f"consumer <{group}> <{client_id}> did not answer in time (remoting.request_timeout_ms)"
            peer.answer(command, Reply(ResponseCode.CONSUME_MSG_TIMEOUT, text))
        else:
            peer.answer(command, Reply(response.code, response.remark, dict(response.ext), response.body))

    for proof in (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN):
        ext.pop(proof, None)
    peer_of(member).call(command.code, ext, body, on_behalf_of(peer, command, answered))
