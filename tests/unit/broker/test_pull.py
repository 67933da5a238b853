"""Reading a queue at an offset: statuses, limits, the tag filter in the scan, search by time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.consumers.sql92 import compile_filter
from headrace.broker.consumers.sql92_evaluation import Filter
from headrace.broker.pull import Codes, PullResult, PullStatus, find_offset_by_time, read_queue, store_time
from headrace.format.record import tag_hash
from tests.support.channels import COLD, DAMAGED, GONE, scripted_log
from tests.support.layouts import encode_properties
from tests.support.stores import StoreBench, store_bench


class Topic:
    """One queue over a log in memory whose faults a test chooses."""

    def __init__(self) -> None:
        self.log = scripted_log.ScriptedLog()
        self.queue = scripted_log.ScriptedQueue("t", 0, self.log)
        self.now = 1000

    def append(self, *bodies: bytes, tag: str = "", at: int = 0, **properties: str) -> None:
        batch = PublishBatch()
        batch.destinations, batch.queues = ["t"], [self.queue]
        pairs = ({"TAGS": tag} if tag else {}) | properties
        for body in bodies:
            batch.append(body, properties=encode_properties(pairs) or None, tag_hash=tag_hash(tag) if tag else 0)
        self.log.append(batch, at or self.now)

    def read(
        self,
        offset: int = 0,
        most: int = 32,
        max_bytes: int = 1 << 20,
        codes: Codes | None = None,
        matcher: Filter | None = None,
    ) -> tuple[PullResult, list[bytes]]:
        records = RecordBatch()
        result = read_queue(self.queue, offset, most, max_bytes, codes, matcher, records)
        bodies = [records.body(index) for index in range(len(records))]
        assert records.record_bytes == sum(len(records.record(index)) for index in range(len(records)))
        records.clear()
        return result, bodies

    def outcome(self, offset: int, outcome: int) -> None:
        self.log.outcomes[self.queue.entry(offset)] = outcome


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    with store_bench(tmp_path / "store") as made:
        yield made


def facts(result: PullResult) -> tuple[PullStatus, int, int, int]:
    return result.status, result.next_offset, result.min_offset, result.max_offset


def test_unknown_queue() -> None:
    """remoting.md 3.10."""
    result = read_queue(None, 7, 1, 1, None, None, RecordBatch())
    assert facts(result) == (PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)


def test_empty_queue(topic: Topic) -> None:
    """remoting.md 3.10: max = 0 answers offset 0 whatever was asked."""
    assert facts(topic.read(5)[0]) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, PullStatus.OFFSET_TOO_SMALL, 2),
        (-1, PullStatus.OFFSET_TOO_SMALL, 2),
        (5, PullStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, PullStatus.OFFSET_OVERFLOW_BADLY, 5),
        (4, PullStatus.FOUND, 5),
    ],
)
def test_offsets_around_the_queue(topic: Topic, offset: int, status: PullStatus, next_offset: int) -> None:
    """A-STORE-28; remoting.md 3.10."""
    topic.append(*[b"m"] * 5)
    topic.queue.remove_below(2)
    assert facts(topic.read(offset)[0]) == (status, next_offset, 2, 5)


def test_what_is_not_visible_is_not_there(topic: Topic) -> None:
    """Command contract: at level fsync a message is read only once it is durable."""
    topic.append(b"1", b"2")
    topic.queue.hide(1)
    result, bodies = topic.read()
    assert (facts(result), bodies) == ((PullStatus.FOUND, 1, 0, 1), [b"1"])
    assert topic.read(1)[0].status is PullStatus.OFFSET_OVERFLOW_ONE


def test_message_limit_and_byte_limit(topic: Topic) -> None:
    """X-EQ-05; remoting.md 2.10: fewer than asked, at least one if there is one, never a part of one."""
    topic.append(*[b"x" * 100] * 10)
    assert topic.read(most=3)[0].next_offset == 3
    assert topic.read(most=0)[0].next_offset == 1
    size = topic.read(most=1)[0]
    assert size.status is PullStatus.FOUND
    result, bodies = topic.read(max_bytes=1)
    assert (len(bodies), result.next_offset) == (1, 1)
    record_bytes = topic.queue.entries(0, 1)[0][1]
    assert len(topic.read(max_bytes=3 * record_bytes)[1]) == 3
    assert len(topic.read(max_bytes=3 * record_bytes - 1)[1]) == 2


def test_tag_filter_reads_only_records_of_its_tags(topic: Topic) -> None:
    """A-STORE-26: the entries decide; only records of wanted tags are looked at."""
    for number in range(100):
        topic.append(b"%d" % number, tag=f"Tag{number % 10}")
    topic.append(b"none")
    result, bodies = topic.read(codes=Codes([tag_hash("Tag3"), tag_hash("Tag7")]))
    assert bodies == [b"%d" % number for number in range(100) if number % 10 in (3, 7)]
    assert result.next_offset == 101
    assert topic.log.views == 20


def test_tags_of_equal_hash_are_told_apart(topic: Topic) -> None:
    """A-STORE-26, remoting.md 2.7: "Aa" and "BB" collide in Java's hash."""
    assert tag_hash("Aa") == tag_hash("BB")
    topic.append(b"1", tag="Aa")
    topic.append(b"2", tag="BB")
    assert topic.read(codes=Codes([tag_hash("BB")]))[1] == [b"1", b"2"]
    result, bodies = topic.read(codes=Codes([tag_hash("BB")], ["BB"]))
    assert (bodies, result.next_offset) == ([b"2"], 2)


def test_a_pass_looks_at_a_bounded_number_of_tags_that_share_a_hash(topic: Topic) -> None:
    """Bad input: 4,000 messages whose tags stand behind thousands of properties held the loop for up to a second."""
    topic.append(*[b"m"] * 200, tag="Aa", a="\x02" * 30_000)
    assert tag_hash("Aa") == tag_hash("BB")
    result, bodies = topic.read(codes=Codes([tag_hash("BB")], ["BB"]))
    assert (result.status, bodies) == (PullStatus.NO_MATCHED_MESSAGE, [])
    assert 5 <= result.next_offset <= 20
    assert topic.read(codes=Codes([tag_hash("Aa")], ["Aa"]), most=200, max_bytes=1 << 30)[0].next_offset == 200


def test_codes_hold_negative_hashes_and_match_alone() -> None:
    """remoting.md 2.7: hashes are signed; a message without a tag has 0."""
    codes = Codes([tag_hash("order-created"), 5, 5], ["order-created"])
    assert len(codes) == 2
    assert tag_hash("order-created") < 0
    assert tag_hash("order-created") in codes
    assert 6 not in codes
    assert codes.matches(encode_properties({"TAGS": "order-created"}))
    assert not codes.matches(encode_properties({"TAGS": "order"}))
    assert codes.matches(b"TAGS\x01order\x02TAGS\x01order-created\x02")
    assert not codes.matches(b"TAGS\x01order-created\x02TAGS\x01order")
    assert not codes.matches(b"")


def test_property_filter_is_asked_after_the_codes(topic: Topic) -> None:
    """remoting.md 4.12."""
    topic.append(b"1", tag="A", price="5")
    topic.append(b"2", tag="A", price="50")
    topic.append(b"3", tag="B", price="50")
    assert topic.read(matcher=compile_filter("price > 10"))[1] == [b"2", b"3"]
    assert topic.read(codes=Codes([tag_hash("A")]), matcher=compile_filter("price > 10"))[1] == [b"2"]


def test_nothing_matched_moves_on(topic: Topic) -> None:
    """remoting.md 3.10: next = behind what was examined, 4,000 entries at most while nothing matches."""
    topic.append(*[b"m"] * 5000, tag="A")
    result, bodies = topic.read(codes=Codes([1]))
    assert bodies == []
    assert result.status is PullStatus.NO_MATCHED_MESSAGE
    assert 4000 <= result.next_offset <= 4128


def test_a_filtering_pass_ends_after_800_entries(topic: Topic) -> None:
    """remoting.md 3.10: 16,000 bytes of consume queue."""
    topic.append(b"first", tag="B")
    topic.append(*[b"m"] * 3000, tag="A")
    result, bodies = topic.read(codes=Codes([tag_hash("B")]))
    assert bodies == [b"first"]
    assert 800 <= result.next_offset <= 928


def test_a_pass_shows_a_bounded_number_of_records_to_a_property_filter(topic: Topic) -> None:
    """Work on the loop is bounded; the consumer asks again at once. Short expressions reach what any filter may."""
    topic.append(*[b"m"] * 5000, tag="A", a="2")
    result, _ = topic.read(matcher=compile_filter("a = 1 AND TAGS = 'A'"))
    assert result.status is PullStatus.NO_MATCHED_MESSAGE
    assert 3_000 <= result.next_offset <= 4_128


def test_a_long_expression_is_asked_about_fewer_records(topic: Topic) -> None:
    """Bad input: a filter of a thousand comparisons must not hold the loop, nor one that goes through long texts."""
    topic.append(*[b"m"] * 1000, tag="A")
    long = compile_filter(" OR ".join(f"a = {number}" for number in range(1000)))
    assert 1000 <= long.steps <= 1010
    assert 20 <= topic.read(matcher=long)[0].next_offset <= 60
    assert 40 <= topic.read(matcher=compile_filter(" OR ".join(["NULL"] * 1000)))[0].next_offset <= 100


def test_a_filter_is_asked_about_fewer_records_with_long_properties(topic: Topic) -> None:
    """Bad input: a text is gone through for each comparison."""
    topic.append(*[b"m"] * 1000, a="1" * 30_000)
    assert 10 <= topic.read(matcher=compile_filter("a < 5.5"))[0].next_offset <= 30
    tests = compile_filter(" OR ".join(f"a CONTAINS 'x{number}'" for number in range(150)))
    assert topic.read(matcher=tests)[0].next_offset == 1


def test_damaged_records_and_holes_are_passed_over_and_counted(topic: Topic) -> None:
    """Store rules: everything else is served."""
    topic.append(b"0", b"1", b"2", b"3", b"4")
    topic.outcome(1, DAMAGED)
    topic.queue.holes.add(3)
    result, bodies = topic.read()
    assert (bodies, result.next_offset, result.skipped) == ([b"0", b"2", b"4"], 5, 2)


def test_removed_records_are_passed_over(topic: Topic) -> None:
    """remoting.md 3.10: all deleted meanwhile."""
    topic.append(b"0", b"1")
    topic.outcome(0, GONE)
    topic.outcome(1, GONE)
    assert facts(topic.read()[0]) == (PullStatus.MESSAGE_WAS_REMOVING, 2, 0, 2)


def test_a_cold_record_ends_the_pass(topic: Topic) -> None:
    """The loop never waits for a disk: what was found is given, else the reader holds and tries again."""
    topic.append(b"0", b"1", b"2", tag="A")
    topic.outcome(1, COLD)
    result, bodies = topic.read()
    assert (result.status, bodies, result.next_offset) == (PullStatus.FOUND, [b"0"], 1)
    assert facts(topic.read(1)[0]) == (PullStatus.COLD, 1, 0, 3)
    topic.log.outcomes.clear()
    assert topic.read(1)[1] == [b"1", b"2"]


def test_records_added_before_stay(topic: Topic) -> None:
    """One batch may hold the answers of several reads."""
    topic.append(b"0", b"1")
    records = RecordBatch()
    read_queue(topic.queue, 0, 1, 1, None, None, records)
    read_queue(topic.queue, 1, 1, 1, None, None, records)
    assert [records.body(index) for index in range(2)] == [b"0", b"1"]


# -- by time --------------------------------------------------------------------------------------------------------

TIMES = [100, 200, 200, 200, 300]


@pytest.mark.parametrize(
    ("timestamp", "lower", "upper"),
    [(50, 0, 0), (100, 0, 0), (150, 1, 0), (200, 1, 3), (250, 4, 3), (300, 4, 4), (350, 5, 4)],
)
def test_search_by_time(topic: Topic, bench: StoreBench, timestamp: int, lower: int, upper: int) -> None:
    """remoting.md 4.5, columns "5.x": first of exact hits, right neighbour, end; and their mirror images."""
    bench.clock.advance_ms(100 - bench.clock.now_ms())
    for at in TIMES:
        topic.append(b"m", at=at)
        bench.clock.advance_ms(at - bench.clock.now_ms())
        bench.append("t", b"m")
    for queue in (topic.queue, bench.store.queue("t", 0)):
        assert find_offset_by_time(queue, timestamp, False) == lower
        assert find_offset_by_time(queue, timestamp, True) == upper
        assert [store_time(queue, offset) for offset in range(-1, 6)] == [-1, *TIMES, -1]


def test_search_by_time_in_a_queue_that_lost_its_beginning(bench: StoreBench) -> None:
    """remoting.md 4.5: nothing before the first message counts, and 0 stands for no message, not for that before it."""
    for at in TIMES:
        bench.clock.advance_ms(at - bench.clock.now_ms())
        bench.append("t", b"m")
    queue = bench.store.queue("t", 0)
    queue.hide_below(2)
    for at, lower, upper in ((50, 2, 0), (200, 2, 3), (250, 4, 3), (350, 5, 4)):
        assert find_offset_by_time(queue, at, False) == lower
        assert find_offset_by_time(queue, at, True) == upper


def test_search_by_time_in_an_empty_queue(topic: Topic) -> None:
    """remoting.md 4.5: 0."""
    assert find_offset_by_time(topic.queue, 5, False) == find_offset_by_time(topic.queue, 5, True) == 0


def test_search_by_time_steps_over_holes(topic: Topic) -> None:
    """A message that cannot be read has no time; the others still have."""
    for at in range(1, 300):
        topic.append(b"m", at=at * 10)
    for hole in (*range(20, 280), 0, 298):
        topic.queue.holes.add(hole)
    assert find_offset_by_time(topic.queue, 20, False) == 1
    assert find_offset_by_time(topic.queue, 200, False) == 19
    assert find_offset_by_time(topic.queue, 1500, False) == 280
    assert find_offset_by_time(topic.queue, 2810, False) == 280


def test_what_a_restart_finds_is_read(bench: StoreBench) -> None:
    """Reads go through the files too, and across segments. E-STORE-08."""
    published = [bench.append("t", b"%d" % number * 500)[0] for number in range(300)]
    bench.restart()
    records = RecordBatch()
    result = read_queue(bench.store.queue("t", 0), 0, 1000, 1 << 30, None, None, records)
    assert [records.body(index) for index in range(len(records))] == [body for *_, body in published]
    assert result.next_offset == 300
    records.clear()
