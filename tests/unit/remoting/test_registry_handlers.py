"""What each request code does at a registry."""

import json
import logging
import zlib
from typing import Any

import pytest

from headrace.broker.access import parse_rules
from headrace.clock import ManualClock
from headrace.log_pace import INTERVAL_MS, LINES_A_MINUTE
from headrace.registry.routes import DataVersion, LiveBroker
from headrace.remoting.codes import RequestCode, ResponseCode
from headrace.remoting.registry.broker_log import BrokerLog
from headrace.remoting.registry.handlers import HANDLERS
from headrace.remoting.registry.rivals import MAX_KNOWN, Rivals
from headrace.remoting.signature import signed_ext
from tests.support.remoting import frame_with
from tests.unit.remoting.registry_bench import A_SLAVE, A, B, Bench, Link, broker_ext, topic


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def broker(bench: Bench) -> Link:
    return bench.link()


@pytest.fixture
def client(bench: Bench) -> Link:
    return bench.link()


def topics_of(body: bytes) -> list[str]:
    names: list[str] = json.loads(body)["topicList"]
    return names


@pytest.mark.parametrize("serialize", [0, 1])
def test_route_of_a_registered_topic(broker: Link, client: Link, serialize: int) -> None:
    """Codes 103 and 105; the answer in the serialize type of the request (remoting.md 1.3).

    Ref: X-NET-06, A-REG-01, A-REG-06, A-REG-17.
    """
    assert broker.register().code == 0
    response = client.call(105, {"topic": "T", "acceptStandardJsonOnly": "true"}, serialize=serialize)
    assert (response.code, response.version, response.language) == (0, 409, "PYTHON")
    assert response.body == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C1","enableActingMaster":false}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
        b'"topicSynFlag":0,"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_unknown_topic_has_no_route(client: Link) -> None:
    """remoting.md 4.8.2."""
    response = client.call(105, {"topic": "X"})
    assert (response.code, response.remark) == (17, "No topic route info in name server for the topic: X")
    assert not response.body


def test_slave_is_told_its_master(broker: Link) -> None:
    """remoting.md 4.8.1."""
    assert dict(broker.register(broker_id=1, address=A_SLAVE).ext) == {}
    broker.register()
    response = broker.register(broker_id=1, address=A_SLAVE)
    assert dict(response.ext) == {"haServerAddr": "10.0.0.1:10912", "masterAddr": A}


def test_brokers_that_name_one_address_are_told_of(
    broker: Link, client: Link, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that both advertise 127.0.0.1:10911, say: each registration takes the other's routes away."""
    broker.register("broker-a", topics={"T": topic()})
    client.register("broker-b", topics={"U": topic()})
    assert client.call(105, {"topic": "T"}).code == 17
    client.register("broker-b", 3, topics={"U": topic()})  # a role that changes is no surprise
    assert caplog.messages == [f"broker's address is taken by another address={A} old=broker-a id=0 new=broker-b id=0"]


def test_brokers_that_register_in_turn_are_told_of_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Two of one name, or under one address: four lines a round, every half minute, filled the log."""
    caplog.set_level("INFO", "headrace")
    one, other = bench.link(), bench.link()

    def register_in_turn(*brokers: tuple[str, str]) -> list[str]:
        caplog.clear()
        for _ in range(5):
            for link, (name, address) in zip((one, other), brokers, strict=True):
                link.register(name, address=address)
            bench.clock.advance_ms(30_000)
        return caplog.messages

    came = f"broker registered broker=broker-a id=0 address={A} cluster=C1"
    replaced = f"broker took the place of another broker=broker-a id=0 old={A} new={B}"
    in_turn = (
        "brokers of one name and id register in turn, clients find one of them at a time; give each a name of its own"
    )
    assert register_in_turn(("broker-a", A), ("broker-a", B)) == [
        came, replaced, f"{in_turn} broker=broker-a id=0 addresses={B},{A}"
    ]  # fmt: skip
    assert register_in_turn(("broker-a", A), ("broker-a", B)) == []
    bench.clock.advance_ms(bench.server.settings.expiry_ms)
    one.register("broker-a", address=A)
    assert caplog.messages == [f"broker took the place of another broker=broker-a id=0 old={B} new={A}"]
    said = register_in_turn(("broker-a", A_SLAVE), ("broker-b", A_SLAVE))
    assert [line.split(",")[0].split(" address=")[0] for line in said] == [
        f"broker took the place of another broker=broker-a id=0 old={A} new={A_SLAVE}",
        "broker's address is taken by another",
        "brokers of one address register in turn",
    ]


def test_brokers_that_come_and_go_do_not_fill_the_log(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reached the port had two or three lines written for each registration, under any names."""
    caplog.set_level("INFO", "headrace")
    link = bench.link()
    for number in range(10 * LINES_A_MINUTE):
        link.register(f"broker-{number}", address=A)
        link.call(205, {"brokerName": f"broker-{number}"})
        link.call(104, broker_ext(f"broker-{number}"))
    assert len(caplog.messages) == LINES_A_MINUTE + 1
    assert caplog.messages[:3] == [
        f"broker registered broker=broker-0 id=0 address={A} cluster=C1",
        f"write permission wiped broker=broker-0 topics=1 client={link.connection.remote_address}",
        f"broker left broker=broker-0 id=0 address={A}",
    ]
    assert caplog.messages[-1] == "more of brokers than is logged came=67 gone=67"
    bench.clock.advance_ms(INTERVAL_MS)
    link.register("broker-a")
    assert caplog.messages[-1] == f"broker registered broker=broker-a id=0 address={A} cluster=C1"


def live(name: str, broker_id: int, address: str) -> LiveBroker:
    return LiveBroker(name, broker_id, address, "", "connection", 0, DataVersion(1000, 1))


def test_each_broker_has_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """Those of one name are told apart by their id and address; what is not logged again is counted."""
    caplog.set_level("INFO", "headrace")
    log = BrokerLog(ManualClock(), 60_000)
    for _ in range(2):
        for broker in [("a", 0, A), ("a", 1, A), ("a", 0, B), ("b", 0, A)]:
            log.note_came(*broker, "C1")
            log.note_left(*broker)
            log.note_lost(live(*broker), "closed")
            log.note_silent(live(*broker), 120_000)
    assert len(caplog.messages) == len(set(caplog.messages)) == 4 * 4
    assert (log.came, log.went) == (8, 24)


def test_each_topic_that_is_removed_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that takes the same one out again and again has one a minute."""
    caplog.set_level("INFO", "headrace")
    log = BrokerLog(ManualClock(), 60_000)
    for name in "TUTU":
        log.note_topic_removed(name, "tool")
    assert caplog.messages == [f"topic removed from routes topic={name} client=tool" for name in "TU"]


def test_brokers_in_turn_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    """By name and id, or by address; and that it goes on is told though the same one took the place twice."""
    log = BrokerLog(ManualClock(), 60_000)
    for broker_id in (0, 1):
        for _ in range(3):
            log.note_place("a", broker_id, A, B)
    assert [message.split(" broker=")[1][:6] for message in caplog.messages] == ["a id=0"] * 2 + ["a id=1"] * 2
    caplog.clear()
    for address in (A, B):
        for _ in range(3):
            log.note_address(address, live("a", 0, address), "b", 0)
    assert [message.split(" address=")[1].split(" ")[0] for message in caplog.messages] == [A, A, B, B]


@pytest.mark.parametrize("by", ["place", "address"])
def test_brokers_that_put_each_other_out_do_not_fill_the_log(by: str, caplog: pytest.LogCaptureFixture) -> None:
    """Under ever new names each would have two lines of its own."""
    log = BrokerLog(ManualClock(), 60_000)
    log.note_came("a", 0, A, "C1")
    for number in range(2 * LINES_A_MINUTE):
        if by == "place":
            log.note_place(f"broker-{number}", 0, A, B)
        else:
            log.note_address(A, live("a", 0, A), f"broker-{number}", 0)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == LINES_A_MINUTE  # the first line was the one that came
    assert warnings[-1] == "more of brokers than is logged came=1 gone=0"


def test_brokers_that_were_quiet_for_long_enough_are_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    """As long as a broker may be silent is not long enough yet."""
    clock = ManualClock()
    log = BrokerLog(clock, 120_000)
    log.note_place("a", 0, A, B)
    clock.advance_ms(120_000)
    log.note_place("a", 0, B, A)
    clock.advance_ms(120_001)
    log.note_place("a", 0, A, B)
    assert [message.split(" ")[0] for message in caplog.messages] == ["broker", "brokers", "broker"]


def test_brokers_in_turn_are_forgotten_when_they_are_many() -> None:
    """Whoever comes under ever new names takes no memory."""
    rivals = Rivals(ManualClock(), 60_000)
    assert [rivals.count("first", A, B) for _ in range(2)] == [1, 2]
    for number in range(MAX_KNOWN):
        assert rivals.count(str(number), A, B) == 1
    assert rivals.count("first", A, B) == 1


def test_registration_with_a_wrong_checksum_is_refused(broker: Link, client: Link) -> None:
    """remoting.md 4.8.1: mismatch -> code 1 `crc32 not match`; 0 = not checked."""
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}'
    response = broker.call(103, {**broker_ext(), "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF ^ 1}, body)
    assert response.code == 1
    assert response.remark.startswith("crc32 not match")
    assert client.call(105, {"topic": "T"}).code == 17
    assert broker.call(103, {**broker_ext(), "bodyCrc32": zlib.crc32(body) & 0x7FFFFFFF}, body).code == 0
    assert client.call(105, {"topic": "T"}).code == 0


@pytest.mark.parametrize(
    "change",
    [
        {"brokerName": None},
        {"brokerName": "a\nb"},
        {"brokerName": "x" * 256},
        {"clusterName": ""},
        {"brokerAddr": "10.0.0.1"},
        {"brokerAddr": "10.0.0.1:0"},
        {"brokerAddr": ":10911"},
        {"brokerAddr": "10.0.0.1:99999"},
        {"brokerId": None},
        {"brokerId": "one"},
        {"brokerId": "-1"},
        {"brokerId": "9" * 40},
    ],
)
def test_registration_with_a_wrong_field_is_refused_and_names_it(broker: Link, change: dict[str, Any]) -> None:
    """Issue 4, bad input: the response code with a remark that names the field."""
    response = broker.call(103, {**broker_ext(), **change})
    assert response.code == 1
    assert f"<{next(iter(change))}>" in response.remark


def test_registration_beyond_a_limit_says_which(client: Link) -> None:
    """Issue 4, item 7: which limit and which setting."""
    bench = Bench(max_topics=1)
    response = bench.link().register(topics={"T": topic(), "U": topic()})
    assert response.code == 2
    assert "registry.max_topics" in response.remark
    assert bench.link().call(206).body == b'{"topicList":[]}'


def test_registration_of_too_many_routes_is_refused_with_the_setting() -> None:
    """And counted, as all refusals are."""
    bench = Bench(max_routes=1)
    link = bench.link()
    response = link.register(topics={"T": topic(), "U": topic()})
    assert (response.code, bench.server.counters.refusals[2]) == (2, 1)
    assert "registry.max_routes" in response.remark
    assert link.call(206).body == b'{"topicList":[]}'


def test_registration_answers_with_the_order_configuration(broker: Link, client: Link) -> None:
    """remoting.md 4.8.1."""
    assert not broker.register().body
    client.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"})
    assert json.loads(broker.register().body) == {"table": {"T": "broker-a:4"}}


def test_unregistered_broker_is_not_routed_to(broker: Link, client: Link) -> None:
    """Code 104."""
    broker.register()
    assert broker.call(104, broker_ext()).code == 0
    assert client.call(105, {"topic": "T"}).code == 17
    assert broker.call(104, broker_ext()).code == 0


def test_what_was_sent_over_an_older_connection_counts_no_more(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Behind an outage a system still delivers what was sent over a connection that was given up, and its end."""
    caplog.set_level(logging.INFO)
    old, new = bench.link(), bench.link()
    old.register()
    new.register(counter=2, topics={"T": topic(), "U": topic()}, headraceComplete="true")
    for _ in range(2):
        assert old.register(headraceComplete="true").code == 0
        assert old.call(104, broker_ext()).code == 0
        assert sorted(bench.server.routes.topics) == ["T", "U"]
    assert bench.server.counters.late_words == 4
    assert caplog.text.count("held back by the network") == 1  # a minute
    old.connection.eof_received()
    assert bench.server.routes.live[A].version.counter == 2
    new.connection.eof_received()
    assert bench.server.routes.live == {}
    bench.link().register()
    assert A in bench.server.routes.live


def test_data_version_is_compared(bench: Bench, broker: Link) -> None:
    """Code 322: an unchanged answer also refreshes the live time."""
    ask = (322, broker_ext(), b'{"counter":1,"timestamp":1000}')
    response = broker.call(*ask)
    assert (response.ext["changed"], response.body) == ("true", b"")
    broker.register()
    bench.pass_time(100_000)
    response = broker.call(*ask)
    assert (response.ext["changed"], response.body) == ("false", b'{"counter":1,"timestamp":1000}')
    bench.pass_time(100_000)
    assert A in bench.server.routes.live
    response = broker.call(322, broker_ext(), b'{"counter":2,"timestamp":1000}')
    assert (response.ext["changed"], response.body) == ("true", b'{"counter":1,"timestamp":1000}')


def test_topic_of_a_5x_broker_is_added(broker: Link, client: Link) -> None:
    """Code 217."""
    broker.register()
    body = json.dumps({"queueDatas": [{"brokerName": "broker-a", **topic(1, 1)}]}).encode()
    assert broker.call(217, {"topic": "U"}, body).code == 0
    assert client.call(105, {"topic": "U"}).code == 0


def test_clusters_and_lists(broker: Link, client: Link) -> None:
    """Codes 106, 206, 224, 304, 311 to 313. A-REG-01, A-REG-17."""
    broker.register(topics={"T": topic(), "U": topic(sys_flag=1)})
    broker.register("broker-b", 0, B, {"T": topic(), "V": topic(sys_flag=2)}, cluster="C2")
    assert json.loads(client.call(106).body) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": A},
                "brokerName": "broker-a",
                "cluster": "C1",
                "enableActingMaster": False,
            },
            "broker-b": {
                "brokerAddrs": {"0": B},
                "brokerName": "broker-b",
                "cluster": "C2",
                "enableActingMaster": False,
            },
        },
        "clusterAddrTable": {"C1": ["broker-a"], "C2": ["broker-b"]},
    }
    assert topics_of(client.call(206).body) == ["T", "U", "V"]
    assert topics_of(client.call(224, {"cluster": "C2"}).body) == ["T", "V"]
    assert json.loads(client.call(304).body) == {"brokerAddr": A, "topicList": ["C1", "broker-a", "C2", "broker-b"]}
    assert [topics_of(client.call(code).body) for code in (311, 312, 313)] == [["U"], ["V"], ["V"]]


def test_a_master_is_named_to_be_asked_for_system_topics(broker: Link, client: Link) -> None:
    """Code 304, whichever of them registered first."""
    broker.register("broker-a", 1, B)
    broker.register("broker-a", 0, A)
    assert json.loads(client.call(304).body)["brokerAddr"] == A


def test_lists_of_an_empty_registry(client: Link) -> None:
    """No broker is no error."""
    assert client.call(106).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    for code in (206, 304, 311, 312, 313):
        assert client.call(code).body == b'{"topicList":[]}'


def test_write_permission_is_wiped_and_given_back(broker: Link, client: Link) -> None:
    """Codes 205 and 327: the write bit alone, also of a template and of what nobody may read."""
    broker.register(topics={"T": topic(), "Template": topic(perm=7), "WriteOnly": topic(perm=2)})

    def permissions() -> list[int]:
        routes = (client.call(105, {"topic": name}) for name in ("T", "Template", "WriteOnly"))
        return [json.loads(route.body)["queueDatas"][0]["perm"] for route in routes]

    assert client.call(205, {"brokerName": "broker-a"}).ext["wipeTopicCount"] == "3"
    assert permissions() == [4, 5, 0]
    assert client.call(327, {"brokerName": "broker-a"}).ext["addTopicCount"] == "3"
    assert permissions() == [6, 7, 2]
    assert client.call(205, {"brokerName": "other"}).ext["wipeTopicCount"] == "0"


@pytest.mark.parametrize("code", [205, 327])
@pytest.mark.parametrize("name", ["broker-a\n2026-01-01 ERROR forged", "x" * 100_000])
def test_names_that_would_be_logged_are_short_and_printable(client: Link, code: int, name: str) -> None:
    """A line of the log is ours alone."""
    response = client.call(code, {"brokerName": name})
    assert (response.code, "<brokerName>" in response.remark) == (1, True)


def test_topic_is_deleted(broker: Link, client: Link) -> None:
    """Code 216."""
    broker.register()
    broker.register("broker-b", 0, B, cluster="C2")
    assert client.call(216, {"topic": "T", "clusterName": "C2"}).code == 0
    assert [q["brokerName"] for q in json.loads(client.call(105, {"topic": "T"}).body)["queueDatas"]] == ["broker-a"]
    assert client.call(216, {"topic": "T"}).code == 0
    assert client.call(105, {"topic": "T"}).code == 17


def test_deleted_topic_goes_with_a_complete_registration_only(broker: Link, client: Link) -> None:
    """Our own brokers say that they named all they have; others are merged (remoting.md, trap 20)."""
    broker.register(topics={"T": topic(), "U": topic()})
    broker.register(topics={"U": topic()}, counter=2)
    assert client.call(105, {"topic": "T"}).code == 0
    broker.register(topics={"U": topic()}, counter=3, headraceComplete="true")
    assert client.call(105, {"topic": "T"}).code == 17


@pytest.mark.parametrize(
    ("version", "ext", "codes"),
    [(412, {}, (0, 17)), (413, {}, (0, 0)), (413, {"headraceComplete": "true"}, (0, 17))],
    ids=["4.9", "5.x", "a later one of ours"],
)
def test_a_5x_broker_names_its_topics_in_parts(
    broker: Link, client: Link, version: int, ext: dict[str, str], codes: tuple[int, int]
) -> None:
    """With enableSplitRegistration one version comes in several registrations; 4.x means the same topics by it."""
    for name in "TU":
        wrapper = {"dataVersion": {"counter": 1, "timestamp": 1000}, "topicConfigTable": {name: topic()}}
        head = {"code": 103, "version": version, "opaque": 1, "extFields": {**broker_ext(), **ext}}
        (response,) = broker.send(frame_with(head, json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()))
        assert response.code == 0
    assert tuple(client.call(105, {"topic": name}).code for name in "TU") == codes


def test_order_configuration_stands_in_the_route(broker: Link, client: Link) -> None:
    """A-REG-21, remoting.md 4.8.2: always sent if present."""
    broker.register()
    assert client.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4;broker-b:4"}).code == 0
    assert json.loads(client.call(105, {"topic": "T"}).body)["orderTopicConf"] == "broker-a:4;broker-b:4"
    assert client.call(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}).code == 0
    assert "orderTopicConf" not in json.loads(client.call(105, {"topic": "T"}).body)


def test_key_value_configuration(client: Link) -> None:
    """Codes 100, 101, 102, 219; 22 if absent."""
    where = {"namespace": "NS", "key": "k"}
    assert client.call(101, where).code == 22
    assert client.call(219, where).code == 22
    for _ in range(2):
        assert client.call(100, {**where, "value": "v"}).code == 0
    assert client.call(101, where).ext["value"] == "v"
    assert client.call(219, where).body == b'{"table":{"k":"v"}}'
    for _ in range(2):
        assert client.call(102, where).code == 0
    assert client.call(101, where).code == 22
    assert client.call(100, where).code == 1


def test_configuration_of_the_registry(client: Link) -> None:
    """Codes 318 and 319: readable, and nothing in it changes while it runs."""
    assert b"orderMessageEnable=true\n" in client.call(319).body
    response = client.call(318, None, b"kvConfigPath=/etc/passwd\norderMessageEnable=false\n")
    assert response.code == 16
    assert "kvConfigPath, orderMessageEnable" in response.remark
    assert client.call(318).code == 16


def test_every_registry_code_of_the_specification_has_a_handler() -> None:
    """A-NET-12; remoting.md 4.2, direction C->N and B->N."""
    wanted = {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327}
    assert set(HANDLERS) == wanted


@pytest.mark.parametrize("code", [code for code in sorted(HANDLERS) if code not in (106, 206, 304, 311, 312, 313, 319)])
def test_request_without_its_fields_is_refused_with_a_remark(client: Link, code: int) -> None:
    """Issue 4, bad input: missing fields."""
    response = client.call(code)
    assert response.code in (1, 16)
    assert response.remark


@pytest.mark.parametrize("code", [10, 11, 34, 310, 361, 904, 32_000])
def test_other_codes_are_not_supported(bench: Bench, client: Link, code: int) -> None:
    """remoting.md 1.7, 4.2: answered with 3, never by closing the connection."""
    response = client.call(code)
    assert (response.code, response.remark) == (3, f" request type {code} not supported")
    assert bench.server.counters.unsupported == {code: 1}
    assert client.call(206).code == 0


RULES = parse_rules(
    {
        "users": [
            {"name": "app", "access_key": "app-key", "secret_key": "app-secret", "publish": ["T"]},
            {"name": "root", "access_key": "root-key", "secret_key": "root-secret", "admin": True},
            {"name": "near", "addresses": ["127.0.0.1"]},
        ]
    },
    "test",
)


def test_access_control_includes_the_registry() -> None:
    """Issue 4, item 6: brokers and tools need an admin, clients a key; refusals are code 16."""
    bench = Bench(rules=RULES)
    link = bench.link("192.0.2.1")
    assert link.register().code == 16
    assert link.call(105, {"topic": "T"}).code == 16
    body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{}}}}'
    ext = {name: str(value) for name, value in broker_ext().items()}
    assert link.call(103, signed_ext(ext, body, "app-key", "app-secret"), body).code == 16
    assert link.call(103, signed_ext(ext, body, "root-key", "root-secret"), body).code == 0
    assert link.call(105, signed_ext({"topic": "T"}, b"", "app-key", "app-secret")).code == 0
    near = bench.link("127.0.0.1")
    assert near.call(105, {"topic": "T"}).code == 0
    assert near.call(205, {"brokerName": "broker-a"}).code == 16
    assert bench.server.counters.refusals == {ResponseCode.NO_PERMISSION: 4}


def test_requests_are_counted_by_name(bench: Bench, broker: Link, client: Link) -> None:
    """Issue 4, item 3: a counter for what is refused too."""
    broker.register()
    client.call(105, {"topic": "X"})
    server = bench.server
    assert server.counters.requests == {RequestCode.REGISTER_BROKER: 1, RequestCode.GET_ROUTEINFO_BY_TOPIC: 1}
    assert server.counters.refusals == {ResponseCode.TOPIC_NOT_EXIST: 1}
    assert (server.counters.registrations, len(server.connections)) == (1, 2)
