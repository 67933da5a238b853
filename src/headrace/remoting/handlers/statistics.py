"""How the broker is doing, in the words of RocketMQ's tools: runtime figures, counters, configuration.

Ref: remoting.md 4.7.3.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.withheld.schedule import encode_cursors
from headrace.errors import UnreadableError
from headrace.format import record
from headrace.remoting import bodies, fields
from headrace.remoting.broker_config import MAX_BYTES, ConfigRefusedError
from headrace.remoting.codes import VERSION, ResponseCode
from headrace.remoting.reply import Reply, RequestRefusedError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.broker.statistics import Window
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer
    from headrace.remoting.services import Services

VERSION_NAME: Final = "V4_9_8"
_DAY_S: Final = 86_400
_HOUR_S: Final = 3_600
_MINUTE_S: Final = 60

_BYTES_PER_UNIT: Final = 1024
# RocketMQ's buckets for how long puts took; rocketmq-exporter wants each.
_PUT_TIMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
# What tools read and Headrace, which has no thread pools and does not time each put, has nothing to say about.
_UNKNOWN_FIGURES: Final = {
    "sendThreadPoolQueueSize": "0",
    "sendThreadPoolQueueCapacity": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "dispatchBehindBytes": "0",
    "dispatchMaxBuffer": "0",
    "startAcceptSendRequestTimeStamp": "0",
    "getMessageEntireTimeMax": "0",
    "putMessageEntireTimeMax": "0",
    "putMessageDistributeTime": "".join(f"[{span}]:0 " for span in _PUT_TIMES),
}


def get_runtime_info(peer: Peer, command: Command) -> Reply:
    """Return the broker's figures (28)."""
    return Reply(body=bodies.encode({"table": runtime_table(peer.services)}))


def runtime_table(services: Services) -> dict[str, str]:
    """Return every figure by RocketMQ's name for it."""
    log = services.broker.store.log
    throughput = services.throughput
    now_ms = services.clock.now_ms()
    put, got = throughput.totals("put"), throughput.totals("transferred")
    found, missed = throughput.rates("found"), throughput.rates("missed")
    transferred = _rates(throughput.rates("transferred"))
    capacity, ratio = describe_disk(services.broker.store.directory.root)
    table = {
        **_UNKNOWN_FIGURES,
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": str(VERSION),
        "brokerActive": "true",
        "bootTimestamp": str(services.started_ms),
        "runtime": describe_span((now_ms - services.started_ms) // 1000),
        "putTps": _rates(throughput.rates("put")),
        "getTransferedTps": transferred,
        "getTransferredTps": transferred,
        "getFoundTps": _rates(found),
        "getMissTps": _rates(missed),
        "getTotalTps": _rates(tuple(one + other for one, other in zip(found, missed, strict=True))),
        "msgPutTotalYesterdayMorning": str(put.yesterday),
        "msgPutTotalTodayMorning": str(put.today),
        "msgPutTotalTodayNow": str(put.now),
        "msgGetTotalYesterdayMorning": str(got.yesterday),
        "msgGetTotalTodayMorning": str(got.today),
        "msgGetTotalTodayNow": str(got.now),
        "putMessageTimesTotal": str(log.appended_records),
        "putMessageSizeTotal": str(log.appended_bytes),
        "putMessageAverageSize": f"{log.appended_bytes / max(log.appended_records, 1):.1f}",
        "earliestMessageTimeStamp": str(earliest_stored_ms(services)),
        "commitLogMinOffset": str(log.first_offset),
        "commitLogMaxOffset": str(log.end_offset),
        "commitLogDirCapacity": capacity,
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "remainHowManyDataToFlush": f"{log.end_offset - log.durable_offset} B",
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": str(services.messages.timed.waiting),
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }
    ends = services.messages.delays.ends
    for level, cursor in services.messages.delays.cursors.items():
        table[f"scheduleMessageOffset_{level}"] = f"{cursor},{ends[level]}"
    return table


def earliest_stored_ms(services: Services) -> int:
    """Return when the oldest record of the log was stored, -1 without any, and while it cannot be read."""
    log = services.broker.store.log
    try:
        raw = log.read(log.first_offset)
    except UnreadableError:
        return -1
    return -1 if raw is None else record.decode(raw)["store_timestamp_ms"]


def describe_disk(folder: Path) -> tuple[str, str]:
    """Return the room of a disk as RocketMQ writes it, and which share of it is used: 0 and -1 where nobody knows."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # the folder was moved away, or the disk is gone: all other figures are told
        return "Total : 0.0 KiB, Free : 0.0 KiB.", "-1"
    # What is kept for root or by a quota is nobody's room: as df and RocketMQ count.
    room = usage.used + usage.free
    capacity = f"Total : {describe_size(usage.total)}, Free : {describe_size(usage.free)}."
    return capacity, f"{usage.used / room:.4f}" if room else "-1"


def describe_span(seconds: int) -> str:
    """Write a span of time as RocketMQ does."""
    days, rest = divmod(seconds, _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest} seconds ]"


def describe_size(size: int) -> str:
    """Write a number of bytes as RocketMQ does: ``512 B``, ``252.0 GiB``."""
    if size < _BYTES_PER_UNIT:
        return f"{size} B"
    exponent = (size.bit_length() - 1) // 10
    return f"{size / _BYTES_PER_UNIT**exponent:.1f} {'KMGTPE'[exponent - 1]}iB"


def _rates(rates: tuple[float, ...]) -> str:
    return " ".join(f"{rate:.4f}" for rate in rates)


def view_stats(peer: Peer, command: Command) -> Reply:
    """Return one counter over the last minute, hour and day (315)."""
    name, key = fields.text(command.ext, "statsName"), fields.text(command.ext, "statsKey")
    found = peer.services.statistics.snapshot(name, key)
    if found is None:
        raise RequestRefusedError(f"The stats <{name}> <{key}> not exist")
    body = {
        "statsMinute": _window(found.minute),
        "statsHour": _window(found.hour),
        "statsDay": _window(found.day),
    }
    return Reply(body=bodies.encode(body))


def _window(window: Window) -> dict[str, Any]:
    return {"avgpt": window.per_call, "sum": window.sum, "tps": window.per_second}


def get_config(peer: Peer, command: Command) -> Reply:
    """Return the broker's configuration (26)."""
    config = peer.services.config
    text = "".join(f"{key}={value}\n" for key, value in config.read().items())
    version = bodies.encode(config.version.to_fields()).decode()
    return Reply(ext={"version": version}, body=text.encode())


def update_config(peer: Peer, command: Command) -> Reply:
    """Change what may be changed while the broker runs (25)."""
    if not command.body or len(command.body) > MAX_BYTES:
        raise RequestRefusedError(f"the body is missing or longer than {MAX_BYTES} bytes")
    try:
        peer.services.config.change(command.body.decode())
    except UnicodeDecodeError as error:
        raise RequestRefusedError(f"the body is not UTF-8: {error}") from error
    except ConfigRefusedError as error:
        raise RequestRefusedError(str(error), ResponseCode.NO_PERMISSION) from error
    return Reply()


def get_all_delay_offsets(peer: Peer, command: Command) -> Reply:
    """Return how far each delay level is delivered (45), for slaves."""
    return Reply(body=encode_cursors(peer.services.messages.delays.cursors))
