"""Pulls that were checked before get what they would get after another check, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Thread
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import testing
from headrace.remoting.codec import PullRequest, Reader, encode_request
from headrace.remoting.reading import known_pulls
from headrace.remoting.reading.known_pulls import KnownPulls
from headrace.remoting.reply import INTERNAL_ERROR
from headrace.remoting.server import RemotingServer
from tests.support.records import decode_messages
from tests.support.remoting import RemotingSocket, as_json, commands_in, consumer_data, send_fields, subscription
from tests.support.waiting import until
from tests.support.weights import weighted

Step = tuple[str, dict[str, Any]]

_names = count()
_RUNNING: Final[dict[str, testing.RunningBroker]] = {}


class _Forgetful(KnownPulls):
    """Knows nothing, so that every pull is checked."""

    def answer(self, request: PullRequest, host: str) -> bytes | None:
        return None

    def answer_run(self, reader: Reader, host: str) -> bytes | None:
        return None


class _Counted(KnownPulls):
    calls = 0
    answered = 0

    def answer(self, request: PullRequest, host: str) -> bytes | None:
        return self._count(super().answer(request, host))

    def answer_run(self, reader: Reader, host: str) -> bytes | None:
        return self._count(super().answer_run(reader, host))

    def _count(self, frames: bytes | None) -> bytes | None:
        _Counted.calls += 1
        _Counted.answered += len(list(commands_in(frames or b"")))
        return frames


@pytest.fixture(scope="module", autouse=True)
def _brokers() -> Iterator[None]:
    options = {"store__durability": "async", "broker__name": "broker-a", "registry__enabled": False}
    with testing.broker(**options) as known, testing.broker(**options) as checked:
        for running, kind in ((known, _Counted), (checked, _Forgetful)):
            server = running._node.remoting.server
            server.known_pulls = kind(server.services, server.counters, server.records)
            server._forget_pulls_ms = 1 << 62  # not amid a test that counts what is known
        _RUNNING.update(known=known, checked=checked)
        yield
    _RUNNING.clear()


pull_fields: Final[dict[str, st.SearchStrategy[Any]]] = {
    "queueOffset": st.integers(0, 12),
    "maxMsgNums": st.sampled_from([0, 1, 2, 32]),
    "maxMsgBytes": st.sampled_from([0, 300]),
    "sysFlag": st.sampled_from([0, 1, 4, 5]),
    "commitOffset": st.integers(0, 12),
    "subVersion": st.sampled_from([1, 3]),
    "subscription": st.sampled_from(["*", "a", "a || b", "TAGS = 'a' OR TAGS IS NULL"]),
    "expressionType": st.sampled_from(["TAG", "SQL92"]),
    "queueId": st.sampled_from([0, 1, 7]),
}
pulls = st.fixed_dictionaries({}, optional=pull_fields)
steps = st.one_of(
    st.tuples(st.just("pull"), pulls),
    st.tuples(st.just("again"), pulls),
    st.tuples(
        st.just("burst"),
        st.fixed_dictionaries({"asked": st.lists(weighted((3, pulls), (1, st.none())), min_size=2, max_size=20)}),
    ),
    st.tuples(st.just("publish"), st.fixed_dictionaries({"tag": st.sampled_from(["", "a", "b"])})),
    st.tuples(
        st.just("heartbeat"),
        st.fixed_dictionaries(
            {
                "expression": st.sampled_from(["*", "a", "b", "TAGS = 'a'"]),
                "kind": st.sampled_from(["TAG", "SQL92"]),
                "version": st.integers(1, 4),
                "model": st.sampled_from(["CLUSTERING", "CLUSTERING", "BROADCASTING"]),
            }
        ),
    ),
    st.tuples(
        st.just("topic"),
        st.fixed_dictionaries({"perm": st.sampled_from([2, 4, 6]), "queues": st.sampled_from([1, 2])}),
    ),
    st.tuples(
        st.just("group"),
        st.fixed_dictionaries({"consumes": st.booleans(), "broadcasts": st.sampled_from([True, True, False])}),
    ),
    st.tuples(st.just("broker"), st.fixed_dictionaries({"perm": st.sampled_from([2, 4, 6, 6])})),
    st.tuples(st.just("reset"), st.fixed_dictionaries({"offset": st.integers(0, 3)})),
    st.tuples(st.just("delete topic"), st.just({})),
    st.tuples(st.just("leave"), st.just({})),
)


class _Script:
    """One client of one broker that takes the steps of an example."""

    def __init__(self, running: testing.RunningBroker, name: str) -> None:
        self.socket = RemotingSocket(running.remoting)
        self._services = running._node.remoting.services
        self._topic, self._group = name, f"{name}-group"
        self._sent = 0
        self._last: dict[str, Any] = {}

    def run(self, steps: list[Step]) -> list[tuple[Any, ...]]:
        with self.socket:
            begin: list[Step] = [
                ("topic", {"perm": 6, "queues": 2}),
                *[("publish", {"tag": tag}) for tag in ("", "a", "b", "a", "")],
                ("heartbeat", {"expression": "*", "version": 1, "model": "CLUSTERING"}),
            ]
            # After each step the pull that was made last, twice: known the second time, if it is answered at all.
            again: Step = ("again", {"queueOffset": 0})
            taken = [*begin, *(each for step in steps for each in (step, again, again))]
            outcomes = [self.take(*step) for step in taken]
            self.take("broker", {"perm": 6})
        return outcomes

    def pull_as(self, language: str) -> dict[str, Any]:
        """Pull as the last time, in another language; return the header of the answer."""
        texts = {name: str(value) for name, value in self._last.items()}
        header = {"code": 11, "language": language, "version": 409, "opaque": 0, "flag": 0, "extFields": texts}
        self.socket.send_frame(header)
        return self.socket.receive()[0]

    def _pull_fields(self, *given: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {"consumerGroup": self._group, "topic": self._topic, "queueId": 0, "queueOffset": 0}
        fields |= {"suspendTimeoutMillis": 0, "maxMsgNums": 32, "sysFlag": 1, "commitOffset": 1}
        fields |= {"subVersion": 1, "expressionType": "TAG"}
        for more in given:
            fields |= more
        return fields

    def _outcome(self, header: dict[str, Any], body: bytes) -> tuple[Any, ...]:
        """Return what an answer says, and what is committed by then."""
        bodies = [message["body"] for message in decode_messages(body)]
        offsets = self._services.offsets.queues(self._group, self._topic)
        remark = header.get("remark", "").replace(self._services.address, "ADDRESS")
        return header["code"], remark, header.get("extFields"), bodies, offsets

    def frame(self, code: int, fields: dict[str, Any], number: int) -> bytes:
        """Encode a request, with the fields of a pull for those that are not given."""
        texts = {name: str(value) for name, value in self._pull_fields(fields).items()}
        return encode_request(0, code, number, ext=texts)

    def _burst(self, asked: list[dict[str, Any] | None]) -> tuple[Any, ...]:
        """Make pulls, and for None another request, in one write."""
        frames = [self.frame(30 if fields is None else 11, fields or {}, number) for number, fields in enumerate(asked)]
        self.socket.send_bytes(b"".join(frames))
        answers = sorted((self.socket.receive() for _ in frames), key=lambda answer: answer[0]["opaque"])
        return tuple(self._outcome(*answer)[:4] for answer in answers), self._services.offsets.queues(
            self._group, self._topic
        )

    def take(self, name: str, given: dict[str, Any]) -> tuple[Any, ...]:
        socket, topic, group = self.socket, self._topic, self._group
        if name in ("pull", "again"):
            self._last = self._pull_fields(self._last if name == "again" else {}, given)
            header, body = socket.call(11, self._last)
            return self._outcome(header, body)
        if name == "burst":
            return self._burst(given["asked"])
        if name == "publish":
            self._sent += 1
            properties = {"TAGS": given["tag"]} if given["tag"] else {}
            return (socket.call(310, send_fields(topic, properties=properties), b"%d" % self._sent)[0]["code"],)
        if name == "heartbeat":
            kind = given.get("kind", "TAG")
            wanted = subscription(topic, given["expression"], kind=kind, version=given["version"])
            data = consumer_data(group, wanted, model=given["model"])
            member = {"clientID": "c", "producerDataSet": [], "consumerDataSet": [data]}
            return (socket.call(34, None, as_json(member))[0]["code"],)
        if name == "leave":
            return (socket.call(35, {"clientID": "c", "consumerGroup": group})[0]["code"],)
        if name == "topic":
            queues = {"readQueueNums": given["queues"], "writeQueueNums": 2}
            fields = {"topic": topic, "defaultTopic": "TBW102", "perm": given["perm"], "topicFilterType": "SINGLE_TAG"}
            return (socket.call(17, fields | queues | {"topicSysFlag": 0, "order": "false"})[0]["code"],)
        if name == "group":
            config = {
                "groupName": group,
                "consumeEnable": given["consumes"],
                "consumeBroadcastEnable": given["broadcasts"],
            }
            return (socket.call(200, None, as_json(config))[0]["code"],)
        if name == "broker":
            return (socket.call(25, None, f"brokerPermission={given['perm']}".encode())[0]["code"],)
        if name == "reset":
            fields = {"topic": topic, "group": group, "timestamp": -1, "isForce": "true"}
            return (socket.call(222, fields | {"queueId": 0, "offset": given["offset"]})[0]["code"],)
        return (socket.call(215, {"topic": topic})[0]["code"],)


@given(st.lists(steps, min_size=1, max_size=25))
@settings(deadline=None)
def test_what_is_known_is_what_a_check_would_find(taken: list[Step]) -> None:
    """A-BROKER-41; remoting.md 4.4: a broker that checks every pull gives the same answers, and commits the same."""
    name = f"known-{next(_names)}"
    known, checked = (_Script(_RUNNING[kind], name).run(taken) for kind in ("known", "checked"))
    assert known == checked


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"sysFlag": 5, "subscription": "*"}, {"subscription": "a"}),
        ({"sysFlag": 5, "subscription": "b"}, {"sysFlag": 1}),
        ({"sysFlag": 5, "subscription": "a"}, {"expressionType": "SQL92"}),
        (
            {"sysFlag": 5, "subscription": "TAGS = 'a'", "expressionType": "SQL92"},
            {"subscription": "TAGS IS NULL"},
        ),
        ({"subVersion": 2}, {"subVersion": 3}),
        ({"subVersion": 3, "subscription": "b"}, {"subscription": "a"}),
    ],
)
def test_pull_that_says_something_else_is_checked(first: dict[str, Any], second: dict[str, Any]) -> None:
    """remoting.md 4.4: what a pull says it wants counts, not what the one before it said."""
    name = f"known-{next(_names)}"
    taken: list[Step] = [
        ("heartbeat", {"expression": "a", "version": 2, "model": "CLUSTERING"}), ("pull", first), ("again", second)
    ]  # fmt: skip
    known, checked = (_Script(_RUNNING[kind], name).run(taken) for kind in ("known", "checked"))
    assert known == checked
    assert known[-4] != known[-3]


FILTERED: Final = {"sysFlag": 5, "subscription": "TAGS = 'a' OR TAGS IS NULL", "expressionType": "SQL92"}


@pytest.mark.parametrize("wants", [{}, FILTERED])
def test_pulls_are_known(wants: dict[str, Any]) -> None:
    """The test above would say nothing if none of them were; what they count is the same too."""
    before = _Counted.answered
    name = f"known-{next(_names)}"
    pulls: list[Step] = [("pull", {"queueOffset": offset % 4} | wants) for offset in range(10)]
    for kind in ("known", "checked"):
        assert all(outcome[0] == 0 for outcome in _Script(_RUNNING[kind], name).run(pulls)[-30:])
    assert _Counted.answered - before == 29
    # Counters that are forgotten with those of another topic are found again.
    for running in _RUNNING.values():
        running._node.remoting.services.statistics.remove_topic("another")
    for kind in ("known", "checked"):
        _Script(_RUNNING[kind], name).run(pulls)
    assert _Counted.answered - before == 29 * 2
    counted = []
    for running in _RUNNING.values():
        server = running._node.remoting.server
        snapshots = [
            server.services.statistics.snapshot(counter, f"{name}@{name}-group")
            for counter in ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
        ]
        counted.append([snapshot.day.sum for snapshot in snapshots if snapshot is not None])
    assert counted[0] == counted[1]
    assert counted[0][0] >= 2 * sum(5 - offset % 4 + 5 + 5 for offset in range(10))


def _figures(server: RemotingServer | None) -> list[int]:
    assert server is not None
    throughput = server.services.throughput
    return [server.counters.requests[11], server.counters.messages_out, throughput.found, throughput.transferred]


def test_pulls_of_one_read_are_answered_together_and_counted_each() -> None:
    """A client has a pull in flight for each of its queues; what is counted is what single ones would count."""
    name = f"known-{next(_names)}"
    before = _Counted.answered, _Counted.calls
    burst: Step = ("burst", {"asked": [{"queueOffset": number % 5, "maxMsgNums": number} for number in range(40)]})
    counted = []
    for kind in ("known", "checked"):
        server = _RUNNING[kind]._node.remoting.server
        first = _figures(server)
        outcomes = _Script(_RUNNING[kind], name).run([burst, burst])
        figures = [now - then for now, then in zip(_figures(server), first, strict=True)]
        key, statistics = f"{name}@{name}-group", _RUNNING[kind]._node.remoting.services.statistics
        snapshots = [statistics.snapshot(each, key) for each in ("GROUP_GET_NUMS", "GROUP_GET_SIZE")]
        windows = [(each.day.sum, each.day.per_call) for each in snapshots if each is not None]
        counted.append((outcomes, figures, windows))
    assert counted[0] == counted[1]
    assert _Counted.answered - before[0] == 39 + 2 + 40 + 2
    assert _Counted.calls - before[1] < 40 + 2 + 10 + 2  # the read with the first, which is checked, has one for each


def test_pulls_with_a_filter_of_properties_are_answered_in_pairs() -> None:
    """Each may take some milliseconds of the event loop, and others are served in between."""
    script = _Script(_RUNNING["known"], f"known-{next(_names)}")
    before = _Counted.answered, _Counted.calls
    asked = [{"queueOffset": number % 5} | FILTERED for number in range(40)]
    script.run([("pull", FILTERED), ("burst", {"asked": asked})])
    assert _Counted.answered - before[0] >= 40
    assert _Counted.calls - before[1] >= 20


def test_filters_are_not_kept_while_too_many_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input: each takes kilobytes, and clients may have one for each of their pulls."""
    monkeypatch.setattr(known_pulls, "is_crowded", lambda: True)
    before = _Counted.answered
    pulls: list[Step] = [("pull", FILTERED)] * 10
    _Script(_RUNNING["known"], f"known-{next(_names)}").run(pulls)
    assert _Counted.answered == before


def test_pull_in_two_reads_leaves_nothing_behind() -> None:
    """A-NET: a request shorter than what was missed of the pull before it is done at once."""
    script = _Script(_RUNNING["known"], f"known-{next(_names)}")
    with script.socket as socket:
        for step in (*_first_steps("*"), ("pull", {}), ("pull", {})):
            script.take(*step)
        pull = script.frame(11, {}, 7)
        for cut in (1, 6, 100, len(pull) - 1):
            before = _Counted.answered
            socket.send_bytes(pull + pull[:cut])
            assert socket.receive()[0]["opaque"] == 7
            socket.send_bytes(pull[cut:])
            assert socket.receive()[0]["opaque"] == 7
            assert _Counted.answered == before + 2
            socket.send_bytes(encode_request(0, 29, 8))
            assert socket.receive()[0]["opaque"] == 8


def test_pulls_of_a_client_that_reads_late_are_all_answered() -> None:
    """A-NET: what is known waits while the client is behind, and goes on when it has caught up."""
    script = _Script(_RUNNING["known"], f"known-{next(_names)}")
    server = _RUNNING["known"]._node.remoting.server
    with script.socket as socket:
        for step in (*_first_steps("*"), ("pull", {}), ("pull", {})):
            script.take(*step)
        socket.call(310, send_fields(script._topic), bytes(100_000))
        paused, most = server.counters.write_pauses, 300
        sender = Thread(target=socket.send_bytes, args=[b"".join(script.frame(11, {}, each) for each in range(most))])
        sender.start()
        until(lambda: server.counters.write_pauses > paused)
        answers = [socket.receive() for _ in range(most)]
        sender.join()
        assert sorted(header["opaque"] for header, _ in answers) == list(range(most))
        assert {len(decode_messages(body)) for _, body in answers} == {2}


def _first_steps(expression: str) -> list[Step]:
    return [
        ("topic", {"perm": 6, "queues": 2}),
        ("publish", {"tag": "a"}),
        ("heartbeat", {"expression": expression, "version": 1, "model": "CLUSTERING"}),
    ]


@pytest.mark.parametrize("is_said", [True, False])
def test_long_subscriptions_are_not_kept(is_said: bool) -> None:
    """With what is made of them they take a quarter of a megabyte each: as many as are kept would be gigabytes."""
    expression = " || ".join(["a", *map(str, range(200))])
    said = {"sysFlag": 5, "subscription": expression} if is_said else {}
    pull: Step = ("pull", {"queueOffset": 0, **said})
    script = _Script(_RUNNING["known"], f"known-{next(_names)}")
    before = _Counted.answered
    with script.socket:
        outcomes = [script.take(*step) for step in (*_first_steps("*" if is_said else expression), pull, pull)]
    assert [outcome[0] for outcome in outcomes] == [0] * 5
    assert _Counted.answered == before


def test_pull_whose_language_is_too_long_is_refused_though_the_rest_is_known() -> None:
    """docs/protocols/remoting.md, "Bounds": the same pull gets the same answer, known or not."""
    script = _Script(_RUNNING["known"], f"known-{next(_names)}")
    pull: Step = ("pull", {"queueOffset": 0})
    with script.socket:
        assert [script.take(*step)[0] for step in (*_first_steps("*"), pull, pull)] == [0] * 5
        assert script.pull_as("L" * 65)["code"] == 1
        assert script.pull_as("L" * 64)["code"] == 0


@pytest.mark.provokes_bugs
def test_bug_is_told_and_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of every request: the client is told, and the next one is served."""

    class Broken(KnownPulls):
        def answer(self, request: PullRequest, host: str) -> bytes | None:
            raise ZeroDivisionError

    server = _RUNNING["known"]._node.remoting.server
    monkeypatch.setattr(server, "known_pulls", Broken(server.services, server.counters, server.records))
    pull: Step = ("pull", {"queueOffset": 0})
    outcomes = _Script(_RUNNING["known"], f"known-{next(_names)}").run([pull])
    assert [outcome[:2] for outcome in outcomes[-3:]] == [(1, INTERNAL_ERROR)] * 3
