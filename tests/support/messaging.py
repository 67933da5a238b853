"""A broker with what consumer groups need beside topics: delays, transactions, retries. No sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.broker import Broker
from headrace.broker.config_file import ConfigFile, FileWriter
from headrace.broker.consumers.offsets import FILE_NAME as OFFSETS_FILE
from headrace.broker.consumers.offsets import OffsetTable
from headrace.broker.copies import RecordCopy
from headrace.broker.gathering import Gathering
from headrace.broker.message import Message, put
from headrace.broker.pull import read_queue
from headrace.broker.topic import TopicConfig
from headrace.broker.withheld.retry import DeadLetters, Retries, RetryRules
from headrace.broker.withheld.schedule import FILE_NAME as DELAYS_FILE
from headrace.broker.withheld.schedule import DelayLevels
from headrace.broker.withheld.timed import TimedMessages
from headrace.broker.withheld.transaction_end import Decision
from headrace.broker.withheld.transactions import TransactionCheck, Transactions
from headrace.errors import StoreFullError
from headrace.store.check import check_store
from headrace.store.store import Store
from tests.support.brokers import BrokerRig
from tests.support.stored_message import StoredMessage

SENDER = 0x0A000005_00001B59
"""10.0.0.5:7001"""


def send_back(
    broker: Broker, retries: Retries, rules: RetryRules, physical_offset: int, level: int, *, most: int | None = None
) -> int | None:
    """Have a group send a message back; return the offset to wait for, None where it is dropped."""
    raw = broker.store.log.read(physical_offset)
    assert raw is not None
    gathering = Gathering(broker)
    work = retries.sending_back(gathering, rules, RecordCopy(raw), level, max_times=most)
    gathering.publish()
    return None if work is None else work.finish(broker.clock.now_ms())


class OffsetTicker:
    """The table of offsets on the broker's clock."""

    def __init__(self, table: OffsetTable) -> None:
        self.tick = table.tick
        self.close = table.close


class MessagingRig(BrokerRig):
    """One broker with its services; files are written at once, in this thread."""

    def __init__(self, folder: Path, **broker_settings: Any) -> None:
        self.checks: list[TransactionCheck] = []
        self.is_damaged = False
        self.has_producer: Callable[[str], bool] = lambda group: True
        super().__init__(folder, **broker_settings)

    def _open(self) -> None:
        self.store = Store.open(self.store_settings, self.clock, schedule_delays_ms=self.broker_settings.delays_ms)
        self.broker = Broker.open(self.store, self.broker_settings, self.clock)
        self.offsets = OffsetTable(self._writer(OFFSETS_FILE), self.broker_settings)
        self.offsets.load(self.store.next_offset)
        self.levels = DelayLevels(self.broker, self._writer(DELAYS_FILE))
        self.timed = TimedMessages(self.broker)
        self.transactions = Transactions(self.broker, self.offsets)
        self.transactions.on_check = self.checks.append
        self.transactions.has_producer = lambda group, topic: self.has_producer(group)
        self.letters = DeadLetters(self.clock)
        self.retries = Retries(self.broker, self.levels, self.letters)
        self.broker.tickers += [self.levels, self.timed, self.transactions, OffsetTicker(self.offsets)]

    def _writer(self, name: str) -> FileWriter:
        return FileWriter(ConfigFile(self.config, name), lambda job: job(), lambda call: call())

    @property
    def config(self) -> Path:
        return Path(self.store_settings.data_dir) / "config"

    def kill(self) -> None:
        """Leave everything as a kill -9 would; the checker must find a whole store."""
        self.store.abandon()
        self.require_whole()

    def crash(self) -> None:
        self.kill()
        self._open()

    def restart(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        super().close()
        self.require_whole()

    def require_whole(self) -> None:
        """Have the checker look, unless the test damaged the store itself."""
        report = check_store(Path(self.store_settings.data_dir))
        assert report.error is None
        assert report.damage == [] or self.is_damaged, report.to_json()

    def damage(self, physical_offset: int) -> None:
        """Change a byte of a record's body behind the store's back."""
        self.is_damaged = True
        path = Path(self.store_settings.data_dir) / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(physical_offset + 90)
            file.write(b"#")

    def message(self, topic: str, body: bytes, *, queue_id: int = 0, **properties: str) -> Message:
        """Return a message as a producer's request becomes one."""
        if topic not in self.broker.topics:
            self.broker.create_topic(topic, TopicConfig(4, 4))
        return Message(
            topic, queue_id, body, dict(properties), flag=7, born_ms=1_600_000_000_000, born_host=SENDER, sys_flag=1
        )

    def pass_time(self, milliseconds: int, *, step: int = 50, flush: bool = True) -> None:
        """Let time pass in the steps of the node's ticks."""
        left = milliseconds
        while left > 0:
            if flush:
                self.store.flush()
            self.clock.advance_ms(min(step, left))
            self.broker.tick()
            left -= step
        if flush:
            self.store.flush()

    def read(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Return every message that readers of a queue see; where one is not in memory, a thread reads it in."""
        queue = self.store.queue(topic, queue_id)
        records = RecordBatch()
        found: list[StoredMessage] = []
        offset = queue.min_offset
        while offset < queue.visible_offset:
            result = read_queue(queue, offset, 10_000, 1 << 30, None, None, records)
            found += [StoredMessage.from_record(records.record(index)) for index in range(len(records))]
            records.clear()
            if result.next_offset == offset:
                time.sleep(0.001)
            offset = result.next_offset
        return found

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        return [message.body for message in self.read(topic, queue_id)]

    def append(self, topic: str, body: bytes, *, queue_id: int = 0, **properties: str) -> StoredMessage:
        """Publish an ordinary message and return it as it is stored."""
        placed, _ = put(self.broker, self.message(topic, body, queue_id=queue_id, **properties))
        self.store.flush()
        raw = self.store.log.read(placed.physical_offset)
        assert raw is not None
        return StoredMessage.from_record(raw)

    def send_back(
        self, rules: RetryRules, physical_offset: int, level: int = 0, *, most: int | None = None
    ) -> int | None:
        """As the function."""
        return send_back(self.broker, self.retries, rules, physical_offset, level, most=most)

    def end(self, group: str, half_offset: int, physical_offset: int, decision: Decision) -> bool:
        """Decide a transaction as its producer does; return whether that decided it."""
        gathering = Gathering(self.broker)
        ending = self.transactions.ending(gathering, group, half_offset, physical_offset, decision)
        if ending is None:
            return False
        gathering.publish()
        ending.finish()
        return True

    def fill_disk(self) -> None:
        """Refuse every append from now on, as a full disk does."""

        def refuse(batch: PublishBatch) -> int:
            raise StoreFullError("no room")

        self.store.append = refuse  # type: ignore[method-assign]

    def free_disk(self) -> None:
        del self.store.append
