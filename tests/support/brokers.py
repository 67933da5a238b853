"""A broker on a real store, driven by a manual clock and without an event loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.batch import PublishBatch, RecordBatch, SettleBatch
from headrace.broker.broker import Broker
from headrace.broker.channels.channel import Channel, Subscription
from headrace.broker.topic import TopicConfig
from headrace.clock import ManualClock
from headrace.settings import BrokerSettings, StoreSettings
from headrace.store.store import Store


class Consumer:
    """An owner of subscriptions that notes why the broker closed it."""

    def __init__(self) -> None:
        self.closed_because = ""

    def closed_by_broker(self, reason: str) -> None:
        self.closed_because = reason


class BrokerRig:
    """One broker and its store in a folder; ``restart`` and ``crash`` open them again."""

    def __init__(self, folder: Path, **broker_settings: Any) -> None:
        self.clock = ManualClock()
        self.store_settings = StoreSettings(data_dir=folder, segment_bytes=1 << 20)
        self.broker_settings = replace(BrokerSettings(node_id=7), **broker_settings)
        self.system_topics: dict[str, TopicConfig] = {}
        self._open()

    def _open(self) -> None:
        self.store = Store.open(self.store_settings, self.clock)
        self.broker = Broker.open(self.store, self.broker_settings, self.clock, system_topics=self.system_topics)

    def close(self) -> None:
        self.broker.close()
        self.store.close()

    def restart(self) -> None:
        """Stop and start again in good order."""
        self.close()
        self._open()

    def crash(self) -> None:
        """Leave everything as a kill -9 would, and start again."""
        self.store.abandon()
        self._open()

    def lose(self, first: int, end: int) -> None:
        """Cut the power, and start: the disk kept later pages of the log and not these, none of which was synced."""
        self.store.abandon()
        with (Path(self.store_settings.data_dir) / "commitlog" / f"{0:020}").open("r+b") as file:
            file.seek(first)
            file.write(bytes(end - first))
        self._open()

    def cut_power(self) -> None:
        """Leave what is durable by what the store promised; nothing behind it reached the disk."""
        self.lose_log(self.store.durable_offset)

    def lose_log(self, durable: int) -> None:
        """Crash and find a log of ``durable`` bytes, whatever was promised."""
        segment_bytes = self.store_settings.segment_bytes
        self.store.abandon()
        for path in sorted((Path(self.store_settings.data_dir) / "commitlog").iterdir()):
            keep = min(max(durable - int(path.name), 0), segment_bytes)
            with path.open("r+b") as file:
                file.truncate(keep)
                file.truncate(segment_bytes)
        self._open()

    def publish(self, topic: str, bodies: Sequence[bytes], *, due_ms: int = 0) -> int:
        """Publish one command per body and make it durable; return the offset the reply would have waited for."""
        batch = PublishBatch()
        batch.destinations = [topic]
        for body in bodies:
            batch.append(body, deliver_at_ms=due_ms)
        wait = self.broker.publish(batch)
        self.store.flush()
        return wait

    def subscribe(self, topic: str, channel: str, *, window: int = 100) -> tuple[Subscription, Channel]:
        found = self.broker.ensure_topic(topic)
        made = self.broker.ensure_channel(found, channel)
        self.store.flush()
        subscription = self.broker.subscribe(found, made, Consumer(), msg_timeout_ms=60_000)
        subscription.ready_count = window
        return subscription, made

    def take(self, subscription: Subscription, channel: Channel, most: int = 1000) -> list[tuple[bytes, int, int]]:
        """Deliver to a subscription; return (body, attempts, message id)."""
        records = RecordBatch()
        channel.deliver(subscription, self.clock.now_ms(), self.clock.monotonic_ms(), most, 1 << 30, records)
        taken = []
        for index in range(len(records)):
            _, _, physical_offset, attempts = records.position(index)
            taken.append((records.body(index), attempts, 7 << 48 | physical_offset))
        records.clear()
        self.broker.touch_channel(channel)
        return taken

    def finish(self, subscription: Subscription, channel: Channel, ids: Sequence[int]) -> int:
        settles = SettleBatch()
        for message_id in ids:
            settles.append(0, message_id)
        failed = channel.settle(subscription, settles, self.clock.now_ms(), self.clock.monotonic_ms())
        self.broker.touch_channel(channel)
        return failed

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass and run what falls due, journal included."""
        self.clock.advance_ms(milliseconds)
        self.broker.tick()
        self.broker.wait_for_journal()

    def control_records(self) -> list[dict[str, Any]]:
        """Return every control record of the log."""
        from headrace.format import record

        found = []
        for physical_offset, _, _ in self.store.queue("%SYS%CONTROL", 0).entries(0, 10_000):
            raw = self.store.log.read(physical_offset)
            assert raw is not None
            found.append(json.loads(record.decode(raw)["body"]))
        return found
