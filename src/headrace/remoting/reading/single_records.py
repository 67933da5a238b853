"""Single records by their physical offset, as far as clients may see them, without waiting for the disk on the loop.

A record that was appended long ago may not be in memory, and reading it there would stop the whole broker for a disk
access. ``answer_when_read`` looks first: what is in memory is answered at once, for the rest a thread reads the records
in and the request is answered then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.copies import RecordCopy
from headrace.errors import MessageNotFoundError
from headrace.remoting.codes import ResponseCode
from headrace.remoting.reply import Reply, RequestRefusedError
from headrace.store.log_ranges import ColdRecord, find_cold

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1_000
"""Requests whose records are being read in."""


def find_visible(services: Services, physical_offset: int) -> RecordCopy:
    """Return the record at a physical offset.

    Raises:
        MessageNotFoundError: there is none, its topic is gone or the broker's own, or it is not durable yet.
    """
    raw = services.broker.store.log.read(physical_offset) if physical_offset >= 0 else None
    if raw is None:
        raise MessageNotFoundError(physical_offset)
    found = RecordCopy(raw)
    topic = services.broker.topics.get(found.topic)
    queue = None if topic is None else topic.queue(found.queue_id)
    if queue is None or not queue.min_offset <= found.queue_offset < queue.visible_offset:
        raise MessageNotFoundError(physical_offset)
    return found


def answer_when_read(
    peer: Peer, command: Command, offsets: Iterable[int], work: Callable[[], Reply | None]
) -> Reply | None:
    """Do ``work`` when the records at the physical offsets are in memory: now, or when a thread has read them in.

    Args:
        work: Returns the response, or None when it answers itself. ``peer.user`` may be another one by then.

    Returns:
        The response; None when it comes later.

    Raises:
        RequestRefusedError: SYSTEM_BUSY, too many requests wait for the disk.
        Whatever ``work`` raises when it is done at once.
    """
    services = peer.services
    log = services.broker.store.log
    cold = [found for offset in offsets if (found := find_cold(log, offset)) is not None]
    if not cold:
        return work()
    readers = services.readers
    if readers.waiting_records >= MAX_WAITING:
        readers.counters.refused += 1
        raise RequestRefusedError(
            f"{MAX_WAITING} requests wait for the disk, no more are taken at once", ResponseCode.SYSTEM_BUSY
        )
    readers.waiting_records += 1
    readers.counters.cold_records += len(cold)
    notify = services.broker.store.notify

    def go_on(done: Future[None]) -> None:
        readers.waiting_records -= 1
        try:
            if not done.cancelled():
                done.result()
            reply = work()
        except OSError as error:
            if services.read_pace.is_due("record"):
                logger.error("record not read error=%s", error)
            reply = Reply(ResponseCode.SYSTEM_ERROR, f"the log cannot be read: {error}")
        except Exception as error:  # noqa: BLE001  # a bug is logged with its traceback there
            reply = peer.reply_to(error, command.code)
        if reply is not None:
            peer.answer(command, reply)

    readers.submit(partial(_read_in, cold)).add_done_callback(lambda done: notify(lambda: go_on(done)))
    return None


def _read_in(cold: list[ColdRecord]) -> None:
    """Read records in, in a thread."""
    for one in cold:
        one.read_in()
