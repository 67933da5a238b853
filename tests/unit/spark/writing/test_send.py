"""What the sender does with answers that are none, late, or refusals: a broker played by a script."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConnectionLostError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codec import Command
from headrace.remoting.codes import ResponseCode
from headrace.spark.errors import ExtensionMissingError, WriteFailedError
from headrace.spark.writing.send import FIRST_PAUSE_S, LONGEST_PAUSE_S, Batch, Sender

Answer = Callable[["Broker", int], Command | None]


class Broker:
    """One broker and the connection to it. It numbers rows as SEND_SEQUENCED does, unless a script says otherwise.

    Attributes:
        script: For each request that arrives: what to do instead; None for the ordinary.
        stored: First rows and rows, in the order in which they were stored.
    """

    def __init__(self) -> None:
        self.script: deque[str | None] = deque()
        self.stored: list[tuple[int, int]] = []
        self.end = 0
        self.most_under_way = 0
        self.closed = 0
        self.address = "a:1"
        self._answers: deque[Command | str] = deque()
        self._numbers = itertools.count(1)

    def post(self, code: int, ext: dict[str, str], body: bytes, *, fresh: bool) -> int:
        opaque = next(self._numbers)
        order = self.script.popleft() if self.script else None
        if order == "refuse connection":
            raise ConnectionLostError(self.address, "refused")
        seq, rows = int(ext["seq"]), int(ext["count"])
        if order == "lose":
            self._answers.append("lost")
        elif order == "store and lose":
            self._store(seq, rows)
            self._answers.append("lost")
        elif order is not None:
            self._answers.append(Command(int(order), remark="as scripted", opaque=opaque, flag=1))
        elif seq > self.end:
            self._answers.append(Command(ResponseCode.MESSAGE_ILLEGAL, remark="a gap", opaque=opaque, flag=1))
        else:
            duplicates = self._store(seq, rows)
            found = {"stored": str(rows - duplicates), "duplicates": str(duplicates)}
            self._answers.append(Command(0, found, opaque=opaque, flag=1))
        self.most_under_way = max(self.most_under_way, len(self._answers))
        return opaque

    def _store(self, seq: int, rows: int) -> int:
        duplicates = min(max(self.end - seq, 0), rows)
        if rows > duplicates:
            self.stored.append((seq + duplicates, rows - duplicates))
            self.end = seq + rows
        return duplicates

    def take(self, code: int) -> Command:
        answer = self._answers.popleft()
        if isinstance(answer, str):
            self._answers.clear()
            raise ConnectionLostError(self.address, "reset")
        return answer

    def close(self) -> None:
        self.closed += 1
        self._answers.clear()


class Brokers(Cluster):
    """A cluster of scripted brokers, and a registry that knows them.

    Attributes:
        registered: What the registry says, address by name; None: it does not answer.
    """

    def __init__(self, *names: str) -> None:
        super().__init__("registry:1")
        self.registered: dict[str, str] | None = {name: f"{name}:1" for name in names}
        self.by_address = {f"{name}:1": Broker() for name in names}

    def __getitem__(self, name: str) -> Broker:
        return self.by_address[f"{name}:1"]

    def client(self, address: str) -> Any:
        return self if address == "registry:1" else self.by_address[address]

    def call(self, code: int, ext: dict[str, str]) -> Command:
        if self.registered is None:
            raise ConnectionLostError("registry:1", "refused")
        table = {name: {"brokerAddrs": {"0": address}} for name, address in self.registered.items()}
        return Command(0, body=json.dumps({"brokerAddrTable": table}).encode(), flag=1)


def sender(
    brokers: Brokers, *, retries: int = 3, window: int = 4, rows: int | None = None, accept_unsure: bool = True
) -> tuple[Sender, list[float]]:
    pauses: list[float] = []
    made = Sender(
        brokers,
        dict(brokers.registered or {}),
        semantics="idempotent",
        window=window,
        retries=retries,
        rows_in_flight=rows,
        accept_unsure=accept_unsure,
        sleep=pauses.append,
    )
    return made, pauses


def batch(number: int, *, broker: str = "a", rows: int = 10) -> Batch:
    ext = {"seq": str(number * rows), "count": str(rows)}
    return Batch(broker, "orders", 3, rows, 27004, ext, b"", first_row=number * rows)


def send_all(made: Sender, count: int, broker: str = "a") -> None:
    for number in range(count):
        made.push(batch(number, broker=broker))
    made.drain()


def test_batches_go_in_a_window() -> None:
    brokers = Brokers("a")
    made, pauses = sender(brokers)
    send_all(made, 20)
    assert brokers["a"].stored == [(number * 10, 10) for number in range(20)]
    assert brokers["a"].most_under_way == 4
    assert (made.counters.stored, made.counters.duplicates, made.counters.retries) == (200, 0, 0)
    assert pauses == []


def test_rows_under_way_are_bounded() -> None:
    """For brokers that answer with an id for each row; one batch is always under way."""
    brokers = Brokers("a")
    made, _ = sender(brokers, rows=25)
    send_all(made, 10)
    assert brokers["a"].most_under_way == 2
    huge, _ = sender(brokers, rows=5)
    huge.push(batch(10))
    huge.drain()


def test_brokers_have_windows_of_their_own() -> None:
    brokers = Brokers("a", "b")
    made, _ = sender(brokers)
    for number in range(6):
        made.push(batch(number, broker="a"))
        made.push(batch(number, broker="b"))
    made.drain()
    assert brokers["a"].stored == brokers["b"].stored
    assert made.counters.stored == 120


@pytest.mark.parametrize("fault", ["lose", "store and lose"])
@pytest.mark.parametrize("at", [0, 1, 3, 7])
def test_a_lost_connection_costs_no_row_and_repeats_none(fault: str, at: int) -> None:
    """spark.md 5.4.6: whether the batch was stored is not known, so it is sent again, with all behind it."""
    brokers = Brokers("a")
    brokers["a"].script.extend([None] * at + [fault])
    made, pauses = sender(brokers)
    send_all(made, 12)
    assert sum(rows for _, rows in brokers["a"].stored) == 120
    assert brokers["a"].end == 120
    assert made.counters.stored + made.counters.duplicates == 120
    assert pauses == [FIRST_PAUSE_S]
    assert made.counters.retries >= 1


def test_a_busy_broker_is_asked_again_with_all_that_it_refused_for_the_gap() -> None:
    brokers = Brokers("a")
    brokers["a"].script.extend([None, str(int(ResponseCode.SYSTEM_BUSY))])
    made, pauses = sender(brokers)
    send_all(made, 10)
    assert brokers["a"].stored == [(number * 10, 10) for number in range(10)]
    assert brokers["a"].closed == 0
    assert pauses == [FIRST_PAUSE_S]


def test_a_broker_that_comes_back_in_time_is_waited_for() -> None:
    """The pauses grow; success begins them anew."""
    brokers = Brokers("a")
    brokers["a"].script.extend(["lose", None, None, None, "refuse connection", "refuse connection"])
    made, pauses = sender(brokers)
    send_all(made, 5)
    assert brokers["a"].end == 50
    assert pauses == [0.5, 1.0, 2.0]


def test_pauses_are_bounded() -> None:
    brokers = Brokers("a")
    brokers["a"].script.extend(["refuse connection"] * 7)
    made, pauses = sender(brokers, retries=7)
    send_all(made, 1)
    assert pauses == [0.5, 1.0, 2.0, 4.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_after_the_last_try_the_error_names_broker_and_queue() -> None:
    brokers = Brokers("a")
    brokers["a"].script.extend([None, *["refuse connection"] * 9])
    made, _ = sender(brokers, retries=2)
    with pytest.raises(
        WriteFailedError, match=r"broker 'a', topic 'orders', queue 3: .* tried 3 times: .*refused"
    ) as caught:
        send_all(made, 9)
    assert (caught.value.broker, caught.value.topic, caught.value.queue_id, caught.value.attempts) == (
        "a",
        "orders",
        3,
        3,
    )
    assert "rows 0 and following" in str(caught.value)


def test_a_refusal_that_stays_is_not_tried_again() -> None:
    brokers = Brokers("a")
    brokers["a"].script.extend([None, str(int(ResponseCode.NO_PERMISSION))])
    made, pauses = sender(brokers)
    with pytest.raises(WriteFailedError, match=r"tried once: NO_PERMISSION as scripted"):
        send_all(made, 3)
    assert pauses == []


def test_a_gap_that_nobody_caused_is_an_error() -> None:
    """The broker has lost its place: going on would lose rows."""
    brokers = Brokers("a")
    made, _ = sender(brokers)
    made.push(batch(5))
    with pytest.raises(WriteFailedError, match="a gap"):
        made.drain()


def test_a_broker_without_the_extension_is_named() -> None:
    brokers = Brokers("a")
    brokers["a"].script.append(str(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)))
    made, _ = sender(brokers)
    with pytest.raises(ExtensionMissingError, match="semantics=idempotent: write with semantics=at-least-once"):
        send_all(made, 1)


def test_stored_but_not_flushed_is_a_success_or_not() -> None:
    """RocketMQ says so; ack=flushed does not take it for an answer."""
    code = str(int(ResponseCode.FLUSH_DISK_TIMEOUT))
    brokers = Brokers("a")
    brokers["a"].script.append(code)
    made, pauses = sender(brokers)
    send_all(made, 1)
    assert (made.counters.unsure, pauses) == (10, [])
    brokers["a"].script.extend([code] * 2)
    strict, pauses = sender(brokers, retries=1, accept_unsure=False)
    with pytest.raises(WriteFailedError, match="FLUSH_DISK_TIMEOUT"):
        send_all(strict, 1)


def test_a_broker_that_moved_is_found_at_its_new_address() -> None:
    brokers = Brokers("a")
    made, _ = sender(brokers)
    made.addresses["a"] = "x:1"
    brokers.by_address["x:1"] = gone = Broker()
    gone.script.extend(["refuse connection"] * 9)
    send_all(made, 2)
    assert brokers["a"].end == 20


@pytest.mark.parametrize("registered", [None, {}], ids=["registry away", "broker not known"])
def test_a_broker_is_looked_for_where_it_was_while_the_registry_does_not_know(
    registered: dict[str, str] | None,
) -> None:
    brokers = Brokers("a")
    brokers["a"].script.append("lose")
    made, pauses = sender(brokers)
    brokers.registered = registered
    send_all(made, 2)
    assert (brokers["a"].end, pauses) == (20, [0.5])


def test_no_rows_go_to_another_broker_that_has_the_address_now() -> None:
    """Containers that start again get each other's addresses: its topic has a queue of that number, too."""
    brokers = Brokers("a")
    brokers["a"].script.extend(["lose"])
    made, pauses = sender(brokers, retries=2)
    brokers.registered = {"b": "a:1"}
    with pytest.raises(WriteFailedError, match=r"broker 'a'.* tried 3 times: no route to 'a'"):
        send_all(made, 1)
    assert brokers["a"].stored == []
    assert pauses == [0.5, 1.0]


def test_a_broker_that_nobody_knows_is_an_error() -> None:
    brokers = Brokers("a")
    made, _ = sender(brokers, retries=1)
    with pytest.raises(WriteFailedError, match="no route to 'z'"):
        made.push(batch(0, broker="z"))


def test_closing_forgets_what_is_under_way() -> None:
    brokers = Brokers("a")
    made, _ = sender(brokers)
    made.push(batch(0))
    made.close()
    assert brokers["a"].closed == 1
    made.drain()
