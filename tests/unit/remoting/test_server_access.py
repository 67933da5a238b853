"""Access control at the broker's listener, over real sockets. Ref: remoting.md 7.1; docs/access.md."""

from __future__ import annotations

import logging
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace import testing
from headrace.batch import PublishBatch
from headrace.net import turns
from headrace.remoting.signature import signed_ext
from tests.support.access_rules import write_rules
from tests.support.records import decode_messages
from tests.support.remoting import RemotingSocket, send_fields

RULES = """
[[users]]
name = "app"
access_key = "app-key"
secret_key = "app-secret"
publish = ["T"]
subscribe = ["T"]
groups = ["G"]

[[users]]
name = "operations"
access_key = "ops-key"
secret_key = "ops-secret"
admin = true
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.RunningBroker]:
    path = write_rules(tmp_path_factory.mktemp("rules"), RULES)
    settings = {"access__rules_file": str(path), "registry__enabled": False, "store__durability": "async"}
    with testing.broker(**settings) as running:
        yield running


def signed(fields: Mapping[str, object], body: bytes = b"", *, secret: str = "app-secret") -> dict[str, str]:
    return signed_ext({name: str(value) for name, value in fields.items()}, body, "app-key", secret)


def pull_fields(topic: str) -> dict[str, object]:
    fields: dict[str, object] = {"consumerGroup": "G", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32}
    fields |= {"sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 1}
    return fields | {"subscription": "*", "expressionType": "TAG"}


def test_signed_requests_are_served(broker: testing.RunningBroker) -> None:
    """The first send makes its topic, the second goes the common way; pulls too."""
    with RemotingSocket(broker.remoting) as client:
        for number in range(2):
            header, _ = client.call(310, signed(send_fields("T"), b"hello"), b"hello")
            assert (header["code"], header["extFields"]["queueOffset"]) == (0, str(number))
        header, content = client.call(11, signed(pull_fields("T")))
        assert header["code"] == 0
        assert content.count(b"hello") == 2


def metrics_of(running: testing.RunningBroker) -> str:
    with urllib.request.urlopen(f"http://{running.admin}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_broker_that_asks_itself_signs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """docs/access.md, access.broker_user: a start is no breach of the rules."""
    path = write_rules(tmp_path, RULES)
    with (
        caplog.at_level(logging.DEBUG, "headrace"),
        testing.broker(access__rules_file=str(path), access__broker_user="operations") as running,
    ):
        deadline = time.monotonic() + 10
        asked = 'headrace_remoting_requests_total{request="GET_BROKER_CONFIG"} 1.0'
        refused = 'headrace_remoting_denied_requests_total{reason="unsigned"} 1.0'
        while asked not in (text := metrics_of(running)) and refused not in text:
            assert time.monotonic() < deadline, "it did not ask itself"
            time.sleep(0.02)
        assert refused not in text
    assert "is not signed" not in caplog.text
    assert "without a signature" not in caplog.text


def test_the_log_holds_no_signature(broker: testing.RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    """docs/access.md: whoever can record a request can send it again; at level debug every reader of the log could."""
    caplog.set_level(logging.DEBUG, "headrace")
    fields = signed({"topic": "T", "queueId": 0, "SecurityToken": "a token"})
    with RemotingSocket(broker.remoting) as client:
        while "'AccessKey': 'app-key'" not in caplog.text:  # from the next tick on
            client.call(30, fields)
        client.call(30, {**fields, "queueId": "1"})
    assert fields["Signature"] not in caplog.text
    assert "a token" not in caplog.text


def test_unsigned_requests_are_refused(broker: testing.RunningBroker) -> None:
    """NO_PERMISSION for sends to existing topics and for pulls, which the fast path would otherwise take."""
    with RemotingSocket(broker.remoting) as client:
        client.call(310, signed(send_fields("T"), b"x"), b"x")
        before = client.call(30, signed({"topic": "T", "queueId": 0}))[0]["extFields"]["offset"]
        assert client.call(310, send_fields("T"), b"x")[0]["code"] == 16
        client.send(310, send_fields("T"), b"x", flag=2)
        assert client.call(11, pull_fields("T"))[0]["code"] == 16
        assert client.call(17, {"topic": "New"})[0]["code"] == 16
        assert client.call(30, signed({"topic": "T", "queueId": 0}))[0]["extFields"]["offset"] == before


def test_wrong_signature_and_missing_right_are_refused(broker: testing.RunningBroker) -> None:
    with RemotingSocket(broker.remoting) as client:
        assert client.call(310, signed(send_fields("T"), b"x", secret="wrong"), b"x")[0]["code"] == 16
        assert client.call(310, signed(send_fields("T"), b"x"), b"y")[0]["code"] == 16
        assert client.call(310, signed(send_fields("U"), b"x"), b"x")[0]["code"] == 16
        assert client.call(11, signed(pull_fields("TBW102")))[0]["code"] == 16
        assert client.call(215, signed({"topic": "T"}))[0]["code"] == 16


def test_signed_sends_of_one_read_go_together(broker: testing.RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused ones, and requests of other kinds, stand between them: each is answered as if it had come alone."""
    store = broker._node.store
    appends: list[int] = []
    append = store.append

    def count(batch: PublishBatch) -> int:
        appends.append(len(batch))
        return append(batch)

    monkeypatch.setattr(turns, "ROUND_MS", 60_000)
    monkeypatch.setattr(turns, "TURN_MS", 60_000)  # on a busy machine its end would cut runs short
    with RemotingSocket(broker.remoting) as client:
        assert client.call(310, signed(send_fields("T"), b"first"), b"first")[0]["code"] == 0  # makes the topic
        monkeypatch.setattr(store, "append", count)
        offset_of = signed({"topic": "T", "queueId": 0})
        begin = int(client.call(30, offset_of)[0]["extFields"]["offset"])
        expected: dict[int, tuple[int, int]] = {}  # opaque -> code, messages of the queue before it
        appended: list[bytes] = []
        with client.held():
            for number in range(200):
                body, kind = b"%d" % number, number % 9
                fields: Mapping[str, object] = signed(send_fields("T"), body)
                code = 0
                if kind == 3:
                    fields, code = signed(send_fields("T"), body, secret="wrong"), 16
                elif kind == 4:
                    fields, code = signed(send_fields("U"), body), 16
                elif kind == 5:
                    fields, code = send_fields("T"), 16
                elif kind == 6:
                    expected[client.send(30, offset_of)] = (0, len(appended))
                    continue
                elif kind == 7:
                    fields = signed(send_fields("T", properties={"\u00fc": "\u4e2d"}), body)
                expected[client.send(310, fields, body)] = (code, len(appended))
                if not code:
                    appended.append(body)
        for _ in range(len(expected)):
            header, _ = client.receive()
            code, messages = expected.pop(header["opaque"])
            assert header["code"] == code, (header, code, messages)
            if not code:
                told = header["extFields"]
                assert int(told.get("offset") or told["queueOffset"]) == begin + messages
        assert not expected
        found: list[bytes] = []
        while len(found) < len(appended):
            fields = signed(pull_fields("T") | {"queueOffset": begin + len(found), "maxMsgNums": 32})
            header, content = client.call(11, fields)
            assert header["code"] == 0
            found += [message["body"] for message in decode_messages(content)]
        assert found == appended
    # Another request ends a run of sends, of which every ninth is one; a read has most of all, or all.
    assert sum(appends) == len(appended)
    assert len(appends) < len(appended) // 2


def send_as_admin(client: RemotingSocket, topic: str, properties: dict[str, str] | None = None) -> dict[str, str]:
    """Publish what the user "app" may not read; return the ext fields of the answer."""
    fields = {name: str(value) for name, value in send_fields(topic, properties=properties).items()}
    header, _ = client.call(310, signed_ext(fields, b"secret", "ops-key", "ops-secret"), b"secret")
    assert header["code"] == 0
    return dict(header["extFields"])


def test_a_pull_that_is_known_is_judged_all_the_same(broker: testing.RunningBroker) -> None:
    """What others may read is no right of one's own, though the same was asked from the same host just now."""
    with RemotingSocket(broker.remoting) as client:
        send_as_admin(client, "Secret")
        fields = {name: str(value) for name, value in pull_fields("Secret").items()}
        for _ in range(3):
            assert client.call(11, signed_ext(fields, b"", "ops-key", "ops-secret"))[0]["code"] == 0
        assert len(broker._node.remoting.server.known_pulls) > 0
        assert client.call(11, signed(fields))[0]["code"] == 16
        assert client.call(11, fields)[0]["code"] == 16


def physical_offset(message_id: str) -> int:
    return int(message_id[-16:], 16)


def test_message_of_a_forbidden_topic_is_not_sent_back_to_the_own_group(broker: testing.RunningBroker) -> None:
    """Code 36 names a physical offset, which is easily guessed, and brings that message to the group."""
    with RemotingSocket(broker.remoting) as client:
        heartbeat = b'{"clientID":"a","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
        assert client.call(34, signed({}, heartbeat), heartbeat)[0]["code"] == 0
        offset = physical_offset(send_as_admin(client, "Secret")["msgId"])
        header, _ = client.call(36, signed({"group": "G", "offset": offset, "delayLevel": 0}))
        assert header["code"] == 16
        assert "'Secret'" in header["remark"]
        own = client.call(310, signed(send_fields("T"), b"x"), b"x")[0]["extFields"]["msgId"]
        header, _ = client.call(36, signed({"group": "G", "offset": physical_offset(own), "delayLevel": 0}))
        assert header["code"] == 0


def test_message_of_a_forbidden_topic_is_not_shown_by_its_id(broker: testing.RunningBroker) -> None:
    """Code 33 names a physical offset, too; of a topic that the user may read, it needs nothing more (7.1)."""
    with RemotingSocket(broker.remoting) as client:
        offset = physical_offset(send_as_admin(client, "Secret")["msgId"])
        header, content = client.call(33, signed({"offset": offset}))
        assert (header["code"], content) == (16, b"")
        assert "no right to subscribe with topic 'Secret'" in header["remark"]
        own = client.call(310, signed(send_fields("T"), b"mine"), b"mine")[0]["extFields"]["msgId"]
        header, content = client.call(33, signed({"offset": physical_offset(own)}))
        assert header["code"] == 0
        assert b"mine" in content


def test_transaction_of_a_forbidden_topic_is_not_ended(broker: testing.RunningBroker) -> None:
    with RemotingSocket(broker.remoting) as client:
        half = send_as_admin(client, "Secret", {"TRAN_MSG": "true", "PGROUP": "P1"})
        end = {"producerGroup": "P1", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": 12}
        end["commitLogOffset"] = str(physical_offset(half["msgId"]))
        assert client.call(37, signed(end))[0]["code"] == 16
        texts = {name: str(value) for name, value in end.items()}
        assert client.call(37, signed_ext(texts, b"", "ops-key", "ops-secret"))[0]["code"] == 0


def test_what_a_handler_refuses_is_counted_and_logged_like_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/access.md: a refusal is in the log; of these, only the handler knows which topic they are about."""
    path = write_rules(tmp_path, RULES)
    settings = {"access__rules_file": str(path), "registry__enabled": False, "store__durability": "async"}
    with testing.broker(**settings) as broker, RemotingSocket(broker.remoting) as client:
        offset = physical_offset(send_as_admin(client, "Secret")["msgId"])
        half = send_as_admin(client, "Secret", {"TRAN_MSG": "true", "PGROUP": "P1"})
        end = {"producerGroup": "P1", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": 12}
        end["commitLogOffset"] = str(physical_offset(half["msgId"]))
        heartbeat = b'{"clientID":"a","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
        assert client.call(34, signed({}, heartbeat), heartbeat)[0]["code"] == 0
        send_back = {"group": "G", "offset": offset, "delayLevel": 0}
        for code, fields in ((33, {"offset": offset}), (36, send_back), (37, end)):
            assert client.call(code, signed(fields))[0]["code"] == 16
        guard = broker._node.remoting.server.guard
        assert guard is not None
        assert guard.refusals == {"no_right": 3}
    (line,) = [line for line in caplog.messages if "refused by the access rules" in line]
    assert line.endswith("user 'app' has no right to subscribe with topic 'Secret' (VIEW_MESSAGE_BY_ID, code 33)")


def test_producer_without_the_right_is_not_asked_about_a_transaction(tmp_path: Path) -> None:
    """The question (39) holds the message: naming the group in a heartbeat must not be enough to get it."""
    path = write_rules(tmp_path, RULES)
    settings = {"access__rules_file": str(path), "registry__enabled": False, "store__durability": "async"}
    settings |= {"broker__transaction_timeout_ms": 1_000, "broker__transaction_check_interval_ms": 1_000}
    with testing.broker(**settings) as broker, RemotingSocket(broker.remoting) as app:
        heartbeat = b'{"clientID":"%b","producerDataSet":[{"groupName":"P1"}]}'
        assert app.call(34, signed({}, heartbeat % b"app"), heartbeat % b"app")[0]["code"] == 0
        with RemotingSocket(broker.remoting) as owner:
            mine = heartbeat % b"owner"
            assert owner.call(34, signed_ext({}, mine, "ops-key", "ops-secret"), mine)[0]["code"] == 0
            for _ in range(6):
                send_as_admin(owner, "Secret", {"TRAN_MSG": "true", "PGROUP": "P1"})
            for _ in range(6):
                assert owner.receive()[0]["code"] == 39
        app._socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            app.receive()
