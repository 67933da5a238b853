"""Delayed, timed and half messages that are taken together get what each would get alone.

Two brokers are given the same sends: one takes them by the read, the other hands each to its handler. The records,
where they stand, and the answers must be the same to the byte and field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestError, StoreError, StoreFullError
from headrace.format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from headrace.remoting.codec import Command, decode_command, encode_request
from headrace.remoting.handlers.table import HANDLERS
from headrace.remoting.reply import Reply, refuse
from tests.support.remoting import RecordingPeer, RemotingRig, commands_in, send_fields

LEVELS = "1s 5s 10s"
OPEN = 1_000_000
FAR_MS = 60_000
SEGMENT_BYTES = 1 << 20
"""Of the rigs' stores."""

Sent = tuple[int, dict[str, str], bytes, bool, int]
"""Code, fields, body, whether it is one-way, kind of its header."""


def handle(peer: RecordingPeer, command: Command, sent: list[bytes]) -> None:
    """Hand a request to its handler, and keep the answer."""
    try:
        reply = HANDLERS[command.code](peer, command)
    except (RequestError, StoreError) as error:
        reply = refuse(error)
    assert isinstance(reply, Reply)
    if not command.is_oneway:
        sent.append(reply.encode(command.serialize, command.opaque))


class Pair:
    """Both brokers."""

    def __init__(self, folder: Path) -> None:
        broker = {"delay_levels": LEVELS, "max_open_transactions": OPEN, "max_delay_ms": FAR_MS}
        self.together = RemotingRig(folder / "together", broker)
        self.alone = RemotingRig(folder / "alone", broker)
        self.link = self.together.link()
        self.peer = self.alone.peer()
        self.at = 0
        for topic in ("Held", "Quick"):
            # The first timed message makes a channel, of which the log has a record.
            self.check([(310, texts(send_fields(topic, properties={"TIMER_DELAY_SEC": "5"})), b"first", False, 0)])

    def check(self, sends: list[Sent]) -> dict[int, Command]:
        frames = [
            encode_request(kind, code, number, oneway=is_oneway, ext=ext, body=body)
            for number, (code, ext, body, is_oneway, kind) in enumerate(sends, 1)
        ]
        return self.check_frames(frames)

    def check_frames(self, frames: list[bytes]) -> dict[int, Command]:
        found = self.link.ask(*frames)
        sent: list[bytes] = []
        for frame in frames:
            handle(self.peer, decode_command(frame), sent)
        wanted = {answer.opaque: answer for answer in commands_in(b"".join(sent))}
        assert {number: plain(answer) for number, answer in found.items()} == {
            number: plain(answer) for number, answer in wanted.items()
        }
        ours, theirs = (rig.broker.store.log for rig in (self.together, self.alone))
        assert ours.end_offset == theirs.end_offset
        while self.at < ours.end_offset:
            raw = ours.read(self.at)
            assert raw == theirs.read(self.at)
            # Nothing is there between the last record of a segment and the next segment.
            self.at += len(raw) if raw is not None else SEGMENT_BYTES - self.at % SEGMENT_BYTES
        assert state_of(self.together) == state_of(self.alone)
        return found

    def close(self) -> None:
        self.together.close()
        self.alone.close()


def texts(ext: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in ext.items()}


def plain(answer: Command) -> tuple[int, int, dict[str, str], str]:
    return answer.code, answer.serialize, answer.ext, answer.remark


def state_of(rig: RemotingRig) -> Any:
    services = rig.services
    services.broker.store.flush()
    return (
        services.messages.delays.waiting,
        services.messages.timed.waiting,
        services.messages.transactions.open_count,
        services.messages.transactions.counters,
        sorted(services.messages.transactions._open._heap),
        {name: (topic.message_count, topic.message_bytes) for name, topic in services.broker.topics.items()},
        services.throughput.put,
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("held"))
    yield made
    made.close()


NOW_MS = 1_700_000_000_000
numbers = st.sampled_from(
    ["", "0", "00", "1", "2", "03", "4", "99", "-1", "-0", "-", "+2", "x", "1234567890", "10000000000000000"]
)
properties = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": st.sampled_from(["", "a", "b\x01c", "\u00e9"]),
        "UNIQ_KEY": st.sampled_from(["", "k" * 32, "k" * 300, 'say "k"', "a\\b", "\u00e9"]),
        "DELAY": numbers,
        "TIMER_DELIVER_MS": st.one_of(numbers, st.sampled_from(["now", "soon", "far", "too far"])),
        "TIMER_DELAY_SEC": st.one_of(numbers, st.just("61")),
        "TIMER_DELAY_MS": st.one_of(numbers, st.just("60001")),
        "TRAN_MSG": st.sampled_from(["true", "true", "TRUE", "false", ""]),
        "PGROUP": st.just("P1"),
        "REAL_TOPIC": st.just("Quick"),
        "REAL_QID": st.just("1"),
        "TRANSACTION_CHECK_TIMES": st.just("3"),
        "TRAN_PREPARED_QUEUE_OFFSET": st.just("0"),
        "CHECK_IMMUNITY_TIME_IN_SECONDS": st.sampled_from(["5", "x"]),
        "WAIT": st.just("true"),
        "CLUSTER": st.just("other"),
        "color": st.just("red"),
    },
)
# One property, or few, as clients have them; and anything with anything.
asks = st.one_of(
    st.builds(dict[str, str]),
    st.fixed_dictionaries({"DELAY": numbers}),
    st.fixed_dictionaries({"TIMER_DELIVER_MS": st.sampled_from(["now", "soon", "far", "too far"])}),
    st.fixed_dictionaries({"TIMER_DELAY_SEC": st.sampled_from(["0", "1", "60", "61"])}),
    st.fixed_dictionaries({"TIMER_DELAY_MS": st.sampled_from(["0", "1", "60000", "60001"]), "TAGS": st.just("a")}),
    st.fixed_dictionaries({"TRAN_MSG": st.just("true"), "PGROUP": st.just("P1"), "UNIQ_KEY": st.just("u" * 32)}),
    properties,
)


@st.composite
def sends(draw: st.DrawFn) -> Sent:
    given = dict(draw(asks))
    times = {"now": 0, "soon": 1, "far": FAR_MS, "too far": FAR_MS + 1}
    if (named := given.get("TIMER_DELIVER_MS")) in times:
        given["TIMER_DELIVER_MS"] = f"{times[named]:+}"  # from now on; ``placed_in_time`` knows the time
    fields = send_fields(
        draw(st.sampled_from(["Held", "Held", "Quick", "%RETRY%Nobody", SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC])),
        queue_id=draw(st.sampled_from([0, 0, 1, 3, 40])),
        f=draw(st.sampled_from([0, 0, 4, 8, 12, 1, 5])),
        h=draw(st.sampled_from([0, -5])),
        j=draw(st.sampled_from([0, 2])),
        properties=given,
    )
    body = draw(st.sampled_from([b"", b"x", b"y" * 500]))
    return 310, texts(fields), body, draw(st.booleans()) and draw(st.booleans()), draw(st.sampled_from([0, 1]))


def placed_in_time(sent: Sent, now_ms: int) -> Sent:
    code, ext, *rest = sent
    name = "TIMER_DELIVER_MS\x01"
    before, found, behind = ext["i"].partition(name)
    if found and behind[:1] in "+-":
        number, _, others = behind.partition("\x02")
        if len(number) > 2 or number in ("+0", "+1"):
            ext = {**ext, "i": f"{before}{name}{now_ms + int(number)}\x02{others}"}
    return (code, ext, *rest)  # type: ignore[return-value]


@given(batch=st.lists(sends(), min_size=1, max_size=12))
def test_together_as_alone(pair: Pair, batch: list[Sent]) -> None:
    """remoting.md 2.6, 3.9, 3.11, 4.3."""
    now_ms = pair.together.clock.now_ms()
    pair.check([placed_in_time(sent, now_ms) for sent in batch])


@pytest.mark.parametrize(
    "given",
    [
        {"DELAY": "2"},
        {"DELAY": "99"},
        {"TIMER_DELAY_SEC": "3"},
        {"TIMER_DELAY_MS": "3"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "u1"},
    ],
)
def test_what_clients_ask_for_needs_no_handler(pair: Pair, given: dict[str, str]) -> None:
    if "TIMER_DELIVER_MS" in given:
        given = {"TIMER_DELIVER_MS": str(pair.together.clock.now_ms() + 10)}
    pair.check([(310, texts(send_fields("Held", properties={"DELAY": "1"})), b"x", False, 0)])
    before = requests_handled(pair)
    for kind in (0, 1):
        answers = pair.check([(310, texts(send_fields("Held", queue_id=2, properties=given)), b"x", False, kind)] * 3)
        assert [answer.ext["queueId"] for answer in answers.values()] == ["2"] * 3
    assert requests_handled(pair) == before


@pytest.mark.parametrize("topic", ["Held", "H" * 127])
@pytest.mark.parametrize("what", ["properties", "body"])
def test_half_messages_near_a_limit(tmp_path: Path, topic: str, what: str) -> None:
    """What has no room for its newer copies is refused, the same way on both paths; what is accepted has it."""
    pair = Pair(tmp_path)
    limit = 32_767 if what == "properties" else SEGMENT_BYTES
    half = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "u1"}
    pair.check([(310, texts(send_fields(topic)), b"x", False, 0)])
    for left in range(0, 700, 13):
        given = half | ({"big": "p" * (limit - left)} if what == "properties" else {})
        body = b"b" * (limit - left) if what == "body" else b"x"
        pair.check([(310, texts(send_fields(topic, properties=given)), body, False, 0)])
    accepted = pair.together.services.messages.transactions.open_count
    assert 10 < accepted < 54
    for rig in (pair.together, pair.alone):
        producer = rig.peer()
        producer.heartbeat("c1", producer="P1")
        rig.clock.advance_ms(14_000)
        for _ in range(60):  # large ones, of which a tick looks at a few
            rig.broker.tick()
        counters = rig.services.messages.transactions.counters
        assert (counters.checks, counters.dropped) == (accepted, 0)
    pair.close()


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
def test_negative_delays_are_stored_at_once(pair: Pair, name: str) -> None:
    before = [rig.store.queue("Held", 3).next_offset for rig in (pair.together, pair.alone)]
    pair.check([(310, texts(send_fields("Held", queue_id=3, properties={name: "-5"})), b"x", False, 0)] * 2)
    assert [rig.store.queue("Held", 3).next_offset for rig in (pair.together, pair.alone)] == [at + 2 for at in before]


def requests_handled(pair: Pair) -> int:
    """Return how many sends went to their handler."""
    return pair.link.server.counters.requests[310]


def test_half_messages_above_the_limit_are_refused_one_by_one(tmp_path: Path) -> None:
    """``broker.max_open_transactions``: those that still fit are stored."""
    rig = RemotingRig(tmp_path, {"max_open_transactions": 3})
    link = rig.link()
    half = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "u1"}
    frames = [
        encode_request(
            0,
            310,
            number,
            ext=texts(send_fields("Held", f=4 * bool(number), properties=half if number else {})),
            body=b"x",
        )
        for number in range(6)
    ]
    link.ask(frames[0])  # makes the topic
    codes = {number: answer.code for number, answer in link.ask(*frames[1:]).items()}
    assert codes == {1: 0, 2: 0, 3: 0, 4: 2, 5: 2}
    assert rig.services.messages.transactions.open_count == 3
    assert rig.services.messages.transactions.counters.refused == 2
    rig.close()


@pytest.mark.parametrize(
    "given",
    [
        b"DELAY\x013\x02DELAY\x010\x02",
        b"DELAY\x010\x02DELAY\x013\x02",
        b"TAGS\x01a\x02TAGS\x01b\x02DELAY\x011\x02",
        b"TRAN_MSG\x01true\x02PGROUP\x01A\x02PGROUP\x01B\x02UNIQ_KEY\x01u\x02",
        b"TRAN_MSG\x01true\x02PGROUP\x01\xff\xfeP\x02UNIQ_KEY\x01u\x02",
        b"TIMER_DELAY_MS\x015\x02color\x01\xed\xa0\x80\x02",
        b"DELAY\x011\x02REAL_TOPIC\x01other\x02",
        b"REAL_QID\x013\x02DELAY\x011\x02",
        b"TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01u\x02TIMER_DELAY_MS\x01500\x02",
        b"DELAY\x011\x02" + b"".join(b"n%d\x01v\x02" % number for number in range(100)),
    ],
)
def test_properties_that_have_to_be_put_in_order(pair: Pair, given: bytes) -> None:
    """Those of one name of which the last counts, and those that are no UTF-8."""
    placeholder = "#" * len(given)
    frame = encode_request(1, 310, 1, ext={**texts(send_fields("Held")), "i": placeholder}, body=b"x")
    pair.check_frames([frame.replace(placeholder.encode(), given)])


def test_first_timed_message_that_cannot_wait_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel that keeps such messages is made with the first: on a full disk that fails, and nothing else does."""
    rig = RemotingRig(tmp_path)
    link = rig.link()
    frames = [
        encode_request(0, 310, number, ext=texts(send_fields("Held", properties=given)), body=b"x")
        for number, given in enumerate(({}, {}, {"TIMER_DELAY_SEC": "3"}, {}))
    ]
    link.ask(frames[0])  # makes the topic

    def refuse_channel(*given: object) -> None:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(rig.broker, "ensure_channel", refuse_channel)
    assert {number: answer.code for number, answer in link.ask(*frames[1:]).items()} == {1: 0, 2: 14, 3: 0}
    assert link.server.counters.refusals[14] == 1
    rig.close()
