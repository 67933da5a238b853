"""Whether a stream's position still fits what the brokers have (spark.md 5.4.5)."""

import pytest

pytest.importorskip("pyspark")

from headrace.spark.errors import DataLossError
from headrace.spark.remote import BrokerState, QueueState, TopicState
from headrace.spark.streams.continuity import Continuity
from headrace.spark.streams.positions import Position, QueueKey


def state(low, high, *, store_id="s1", epoch=1, creation=5, ends=()):
    topics = {"orders": TopicState(creation, {2: QueueState(low, high, ends=dict(ends))})}
    return BrokerState("b", topics, store_id, epoch, 1 << 20)


def position():
    return Position(stores={"b": ("s1", 1)}, creations={"orders": {"b": 5}})


def next_offset(found, offset, *, fail=True):
    continuity = Continuity(position(), fail)
    queue = found.topics["orders"].queues[2]
    return continuity.next_offset(QueueKey("orders", "b", 2), found, queue, offset), continuity.lost


def test_what_fits_goes_on():
    assert next_offset(state(3, 9), 3) == (3, 0)
    assert next_offset(state(3, 9), 9) == (9, 0)
    assert next_offset(state(3, 9, epoch=2), 9) == (9, 0)
    assert next_offset(state(3, 12, epoch=2, ends={2: 9}), 9) == (9, 0)
    assert next_offset(state(3, 12, epoch=1, ends={1: 9}), 11) == (11, 0)


@pytest.mark.parametrize(
    ("found", "offset", "says", "gone", "goes_on"),
    [
        (state(7, 9), 3, r"offsets 3 to 7 of topic 'orders' queue 2 of broker 'b' are gone: retention", (3, 7), (7, 4)),
        (
            state(3, 9, epoch=2),
            12,
            r"ends at offset 9, but was read up to 12: .*cut off.*epoch 1 became 2",
            (9, 12),
            (9, 0),
        ),
        (
            state(3, 40, epoch=3, ends={2: 9, 3: 20}),
            12,
            r"ended at offset 9, but was read up to 12: .*others have their offsets",
            (9, 12),
            (9, 0),
        ),
        (state(15, 40, epoch=2, ends={2: 9}), 12, r"ended at offset 9", (9, 12), (15, 0)),
        (state(3, 9, store_id="s2"), 12, r"another store than then \(s2, not s1\)", (9, 12), (3, 3)),
        (state(3, 9), 12, r"emptied, or the broker lost", (9, 12), (9, 0)),
        (state(9, 12, creation=6), 8, r"deleted and made again .* offset 8 and now has 9 to 12", (8, 9), (9, 1)),
    ],
)
def test_what_does_not_fit_is_an_error_or_counted(found, offset, says, gone, goes_on):
    with pytest.raises(DataLossError, match=says) as caught:
        next_offset(found, offset)
    assert "failOnDataLoss=false" in str(caught.value)
    assert (caught.value.broker, caught.value.topic, caught.value.queue_id) == ("b", "orders", 2)
    assert (caught.value.first_offset, caught.value.end_offset) == gone
    assert next_offset(found, offset, fail=False) == goes_on


def test_a_broker_that_tells_no_identity_may_have_made_the_topic_again(caplog):
    """RocketMQ: it begins at 0 then, and nobody can tell that from a lost end; what is not read is said."""
    found = state(0, 3, store_id="", epoch=0, creation=0)
    with pytest.raises(DataLossError, match="or the topic was deleted and made again, and what it has below 3 is not"):
        next_offset(found, 12)
    assert next_offset(found, 12, fail=False) == (3, 0)
    assert "what it has below 3 is not read" in caplog.text


def test_logs():
    def next_offset(fail, found, offset):
        continuity = Continuity(position(), fail)
        return continuity.next_offset(QueueKey.of_log("b"), found, found.topics["orders"].queues[2], offset)

    assert next_offset(True, state(3, 9), 5) == 5
    for found, offset, says, on in (
        (state(3, 9), 1, "physical offsets 1 to 3", 3),
        (state(3, 9, epoch=2), 11, "ends at 9", 9),
    ):
        with pytest.raises(DataLossError, match=says):
            next_offset(True, found, offset)
        assert next_offset(False, found, offset) == on


def test_another_store():
    with pytest.raises(DataLossError, match="folder was replaced"):
        Continuity(position(), True).check_store(state(0, 1, store_id="s2"))
    Continuity(position(), False).check_store(state(0, 1, store_id="s2"))
    Continuity(position(), True).check_store(state(0, 1))
