"""Access control of RocketMQ requests."""

import json
import logging

import pytest

from headrace.broker.access import AccessRules, parse_rules
from headrace.clock import ManualClock
from headrace.errors import AccessDeniedError
from headrace.log_pace import INTERVAL_MS
from headrace.remoting.bodies import MAX_SLOW_BYTES, read_outline
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode
from headrace.remoting.guard import BROKER_NEEDS, REGISTRY_NEEDS, Guard
from headrace.remoting.handlers.clients import read_consumers
from headrace.remoting.handlers.table import GATHERED, HANDLERS
from headrace.remoting.registry.handlers import HANDLERS as REGISTRY_HANDLERS
from headrace.remoting.signature import signed_ext
from tests.support.steps import all_of

RULES = parse_rules(
    {
        "users": [
            {
                "name": "app",
                "access_key": "app-key",
                "secret_key": "app-secret",
                "publish": ["T"],
                "subscribe": ["T"],
                "groups": ["G"],
            },
            {"name": "root", "access_key": "root-key", "secret_key": "root-secret", "admin": True},
            {"name": "near", "addresses": ["127.0.0.0/8"], "publish": ["N"]},
        ]
    },
    "test",
)
FAR = "192.0.2.1"
NEAR = "127.0.0.1"


def signed(code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, user: str = "app") -> Command:
    return Command(code, signed_ext(ext, body, f"{user}-key", f"{user}-secret"), body)


def broker_guard(rules: AccessRules = RULES, clock: ManualClock | None = None) -> Guard:
    return Guard(rules, BROKER_NEEDS, clock or ManualClock())


HEARTBEAT = {"consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]}]}


@pytest.mark.parametrize(
    ("code", "good", "bad"),
    [
        (RequestCode.SEND_MESSAGE, {"topic": "T"}, {"topic": "U", "b": "T"}),
        (RequestCode.SEND_MESSAGE, {"topic": "%RETRY%G"}, {"topic": "%RETRY%H"}),
        (RequestCode.SEND_MESSAGE_V2, {"b": "T"}, {"b": "U", "topic": "T"}),
        (RequestCode.SEND_BATCH_MESSAGE, {"b": "T"}, {"b": "U"}),
        (RequestCode.SEND_REPLY_MESSAGE, {"topic": "T"}, {"topic": "U"}),
        (RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "T"}, {"b": "U"}),
        (RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "G"}, {"group": "H"}),
        (RequestCode.PULL_MESSAGE, {"topic": "T", "consumerGroup": "G"}, {"topic": "T", "consumerGroup": "H"}),
        (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%G", "consumerGroup": "G"}, {"topic": "U", "consumerGroup": "G"}),
        (RequestCode.LITE_PULL_MESSAGE, {"topic": "T", "consumerGroup": "G"}, {"topic": "U", "consumerGroup": "G"}),
        (RequestCode.QUERY_MESSAGE, {"topic": "T"}, {"topic": "U"}),
        (RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "T", "consumerGroup": "G"}, {"topic": "U", "consumerGroup": "G"}),
        (
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"topic": "T", "consumerGroup": "G"},
            {"topic": "T", "consumerGroup": "H"},
        ),
        (RequestCode.UNREGISTER_CLIENT, {"consumerGroup": "G"}, {"consumerGroup": "H"}),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}, {"consumerGroup": "H"}),
    ],
)
def test_resource_of_each_request(code: RequestCode, good: dict[str, str], bad: dict[str, str]) -> None:
    """remoting.md 7.1, the table of resources, with 320, 324, 325 like 310 and 14 like 15."""
    guard = broker_guard()
    assert guard.admit(signed(code, good), FAR).name == "app"
    with pytest.raises(AccessDeniedError, match="user 'app' has no right to"):
        guard.admit(signed(code, bad), FAR)
    assert guard.refusals == {"no_right": 1}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data["consumerDataSet"][0].update(groupName="H"),
        lambda data: data["consumerDataSet"][0]["subscriptionDataSet"].append({"topic": "U"}),
        lambda data: data["consumerDataSet"].append({"groupName": "H"}),
    ],
)
def test_heartbeat_needs_every_group_and_topic_it_names(spoil) -> None:
    """remoting.md 7.1, code 34."""
    data = json.loads(json.dumps(HEARTBEAT))
    assert broker_guard().admit(signed(34, {}, json.dumps(data).encode()), FAR).name == "app"
    spoil(data)
    with pytest.raises(AccessDeniedError):
        broker_guard().admit(signed(34, {}, json.dumps(data).encode()), FAR)


@pytest.mark.parametrize("replaced", [b'"\xff"', b"1e999"])
def test_a_large_heartbeat_needs_what_its_handler_reads(replaced: bytes) -> None:
    """It is read in parts, which pass over what a later member of the same name replaces, however that is written."""
    data = [{"groupName": "H", "subscriptionDataSet": []}]
    body = b'{"x":%b,"x":1,%b"consumerDataSet":%b}' % (replaced, b" " * MAX_SLOW_BYTES, json.dumps(data).encode())
    assert [given.group for given in all_of(read_consumers(read_outline(body, "consumerDataSet"), 1))] == ["H"]
    with pytest.raises(AccessDeniedError):
        broker_guard().admit(signed(34, {}, body), FAR)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"consumerDataSet":3}', b'{"consumerDataSet":[3,{"groupName":null}]}']
)
def test_malformed_heartbeat_is_left_to_its_handler(body: bytes) -> None:
    """The guard refuses what is not allowed, not what is malformed."""
    assert broker_guard().admit(signed(34, {}, body), FAR).name == "app"


def test_queue_locks_need_their_group() -> None:
    """Codes 41 and 42 name it in the body."""
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert broker_guard().admit(signed(code, {}, b'{"consumerGroup":"G"}'), FAR).name == "app"
        with pytest.raises(AccessDeniedError):
            broker_guard().admit(signed(code, {}, b'{"consumerGroup":"H"}'), FAR)
        many = b'{"mqSet":[%b],"consumerGroup":"H"}' % b",".join([b'{"topic":"T"}'] * 10_000)
        with pytest.raises(AccessDeniedError):
            broker_guard().admit(signed(code, {}, many), FAR)


@pytest.mark.parametrize("code", [17, 25, 200, 207, 215, 222])
def test_administration_needs_an_admin(code: int) -> None:
    """remoting.md 7.1: admin codes, admin account only; the refusal names the request."""
    named = rf"user 'app' has no right to administer: that takes admin = true \([A-Z_]+, code {code}\)"
    with pytest.raises(AccessDeniedError, match=named):
        broker_guard().admit(signed(code), FAR)
    assert broker_guard().admit(signed(code, user="root"), FAR).name == "root"


@pytest.mark.parametrize("code", [100, 102, 103, 104, 205, 216, 217, 318, 322, 327])
def test_changing_a_registry_needs_an_admin(code: int) -> None:
    """Registry included; asking it needs a known user only."""
    guard = Guard(RULES, REGISTRY_NEEDS, ManualClock())
    with pytest.raises(AccessDeniedError, match="administer"):
        guard.admit(signed(code), FAR)
    assert guard.admit(signed(code, user="root"), FAR).name == "root"
    assert guard.admit(signed(105), FAR).name == "app"


@pytest.mark.parametrize(("code", "name"), [(RequestCode.SEND_MESSAGE, "topic"), (RequestCode.SEND_MESSAGE_V2, "b")])
def test_traces_are_sent_by_every_user_and_read_by_right(code: RequestCode, name: str) -> None:
    guard, topic = broker_guard(), "RMQ_SYS_TRACE_TOPIC"
    assert guard.admit(signed(code, {name: topic}), FAR).name == "app"
    for request in (
        Command(code, {name: topic}),
        signed(RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": "G"}),
        signed(RequestCode.QUERY_MESSAGE, {"topic": topic}),
    ):
        with pytest.raises(AccessDeniedError):
            guard.admit(request, FAR)


def test_other_requests_need_a_valid_signature_only() -> None:
    """remoting.md 7.1: codes not listed."""
    assert broker_guard().admit(signed(30, {"topic": "U"}), FAR).name == "app"


def test_whoever_adds_a_request_says_what_it_needs() -> None:
    """One that is forgotten in the table of needs would be open to every user."""
    names = RequestCode
    open_to_users = {
        # what there is, how it is doing
        names.GET_ALL_TOPIC_CONFIG, names.GET_TOPIC_CONFIG, names.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        names.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, names.GET_SUBSCRIPTIONGROUP_CONFIG, names.CHECK_CLIENT_CONFIG,
        names.GET_BROKER_RUNTIME_INFO, names.VIEW_BROKER_STATS_DATA, names.GET_TOPIC_STATS_INFO,
        # who is connected, how far they are
        names.GET_CONSUMER_CONNECTION_LIST, names.GET_PRODUCER_CONNECTION_LIST, names.GET_ALL_PRODUCER_INFO,
        names.GET_CONSUMER_RUNNING_INFO, names.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, names.QUERY_TOPIC_CONSUME_BY_WHO,
        names.GET_CONSUME_STATS, names.GET_BROKER_CONSUME_STATS, names.QUERY_CONSUME_TIME_SPAN,
        names.GET_ALL_CONSUMER_OFFSET, names.GET_ALL_DELAY_OFFSET,
        # positions in queues
        names.SEARCH_OFFSET_BY_TIMESTAMP, names.GET_MAX_OFFSET, names.GET_MIN_OFFSET, names.GET_EARLIEST_MSG_STORETIME,
        # what names messages: whether their topics are the user's their handlers ask
        names.VIEW_MESSAGE_BY_ID, names.END_TRANSACTION, names.END_BATCH,
    }  # fmt: skip
    assert {*HANDLERS, *GATHERED} - set(BROKER_NEEDS) == open_to_users
    assert set(REGISTRY_HANDLERS) - set(REGISTRY_NEEDS) == {
        names.GET_ROUTEINFO_BY_TOPIC, names.GET_BROKER_CLUSTER_INFO, names.GET_KV_CONFIG, names.GET_KVLIST_BY_NAMESPACE,
        names.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, names.GET_TOPICS_BY_CLUSTER, names.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        names.GET_UNIT_TOPIC_LIST, names.GET_HAS_UNIT_SUB_TOPIC_LIST, names.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        names.GET_NAMESRV_CONFIG,
    }  # fmt: skip


def test_refusals_are_logged_once_a_minute_for_each_address(caplog: pytest.LogCaptureFixture) -> None:
    """A registry's refusal is "No route info of this topic" to a Java client: only the log says why."""
    clock = ManualClock()
    guard = broker_guard(clock=clock)

    def refused(host: str, topic: str = "U") -> None:
        with pytest.raises(AccessDeniedError):
            guard.admit(signed(310, {"b": topic}), host)

    for host in (FAR, FAR, "192.0.2.2"):
        refused(host)
    clock.advance_ms(INTERVAL_MS)
    refused(FAR, "U\n" * 100_000)
    first = "user 'app' has no right to publish with topic 'U' (SEND_MESSAGE_V2, code 310)"
    phrase = "request refused by the access rules"
    assert caplog.messages[:2] == [
        f"{phrase} address={FAR} refused=1: {first}", f"{phrase} address=192.0.2.2 refused=3: {first}",
    ]  # fmt: skip
    (last,) = caplog.messages[2:]
    assert last.startswith(f"{phrase} address={FAR} refused=4: ")
    assert len(last) < 600
    assert "\n" not in last


def test_request_without_a_valid_signature_is_refused() -> None:
    """Unknown key, wrong signature, none at all: each refused and counted by its cause; no secret in the text."""
    guard = broker_guard()
    good = signed(310, {"b": "T"})
    for ext in ({**good.ext, "AccessKey": "other"}, {**good.ext, "b": "U"}, {"b": "T"}, {"AccessKey": "app-key"}):
        with pytest.raises(AccessDeniedError) as caught:
            guard.admit(Command(310, ext), FAR)
        assert "app-secret" not in str(caught.value)
    assert guard.refusals == {"unknown_key": 1, "bad_signature": 2, "unsigned": 1}


def test_listed_address_stands_for_its_user_only_without_a_signature(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 4, item 6: a white list never bypasses signatures silently."""
    guard = broker_guard()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert guard.admit(Command(310, {"b": "N"}), NEAR).name == "near"
    assert caplog.text.count("without a signature") == 1
    assert guard.unsigned == {"near": 2}
    with pytest.raises(AccessDeniedError, match="no right"):
        guard.admit(Command(310, {"b": "T"}), NEAR)
    for ext in ({"b": "N", "AccessKey": "app-key"}, {"b": "N", "Signature": "x"}, {"b": "N", "Signature": ""}):
        with pytest.raises(AccessDeniedError, match=r"signature|access key"):
            guard.admit(Command(310, ext), NEAR)
