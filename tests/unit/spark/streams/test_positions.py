"""Where a stream has come to: numbers by queue."""

from __future__ import annotations

from headrace.spark.streams.positions import Position, QueueKey, Queues, each_queue, get_queue, put_queue


def test_queues_come_in_the_order_of_topic_broker_and_number() -> None:
    queues: Queues = {}
    keys = [QueueKey("a", "x", 2), QueueKey("a", "x", 10), QueueKey("a", "y", 0), QueueKey("b", "x", 0)]
    for number, key in enumerate(reversed(keys)):
        put_queue(queues, key, number)
    assert list(each_queue(queues)) == list(zip(keys, (3, 2, 1, 0), strict=True))
    assert queues["a"]["y"] == {0: 1}


def test_a_queue_that_is_not_there_has_no_number() -> None:
    """0 is a number: what has none begins anew."""
    position = Position()
    key = QueueKey("orders", "broker-a", 3)
    assert position.get(key) is None
    position.put(key, 0)
    assert position.get(key) == 0
    assert get_queue(position.queues, key._replace(broker="orders", topic="broker-a")) is None


def test_text_is_what_sentences_call_a_queue() -> None:
    assert f"{QueueKey('orders', 'broker-a', 3)}" == "topic 'orders' queue 3 of broker 'broker-a'"
