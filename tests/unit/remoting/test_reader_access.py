"""Bulk readers under access rules: which right each of their requests needs. Ref: docs/access.md."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace import testing
from headrace.broker.access import Action, Patterns, User
from headrace.errors import RemotingRefusedError
from headrace.remoting.blocking import BlockingClient, Cluster, read_log_request, read_queue_request
from tests.support.access_rules import write_rules
from tests.support.offsets import update_offset
from tests.support.remoting import send_fields

RULES = """
[[users]]
name = "app"
access_key = "app-key"
secret_key = "app-secret"
publish = ["T", "Other"]
subscribe = ["T"]
groups = ["G"]

[[users]]
name = "pipeline"
access_key = "lake-key"
secret_key = "lake-secret"
subscribe = ["*"]
groups = ["*"]

[[users]]
name = "half"
access_key = "half-key"
secret_key = "half-secret"
subscribe = ["*"]
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
    settings = {"access__rules_file": str(path), "access__broker_user": "operations", "broker__name": "broker-a"}
    with testing.broker(**settings) as running:
        with user(running, "ops") as client:
            for topic in ("T", "Other"):
                for queue_id in range(2):
                    ext = {name: str(value) for name, value in send_fields(topic, queue_id=queue_id).items()}
                    assert client.call(310, ext, b"hello").code == 0
        yield running


def user(broker: testing.RunningBroker, name: str) -> BlockingClient:
    return BlockingClient(broker.remoting, access_key=f"{name}-key", secret_key=f"{name}-secret")


@pytest.mark.parametrize(("name", "code"), [("app", 16), ("half", 16), ("lake", 0), ("ops", 0)])
def test_log_needs_the_right_to_everything(broker: testing.RunningBroker, name: str, code: int) -> None:
    with user(broker, name) as client:
        response = client.call(*read_log_request(0, 1 << 20, group="G"))
        assert response.code == code, response.remark
        assert (b"hello" in response.body) == (code == 0)
        assert code == 0 or "read the log of all topics" in response.remark
        state = client.call(27001, {"group": ""}, b'{"topics": [], "log": true}')
        assert state.code == code


def test_queue_needs_its_topic_and_group(broker: testing.RunningBroker) -> None:
    with user(broker, "app") as client:
        for topic, group, code in (("T", "G", 0), ("T", "", 0), ("T", "Foreign", 16), ("Other", "G", 16)):
            assert client.call(*read_queue_request(topic, 0, 0, 1, 1 << 20, group=group)).code == code


def test_state_shows_what_the_user_may_read(broker: testing.RunningBroker) -> None:
    """Named topics need their right; without names those that the user may read are listed."""

    def ask(client: BlockingClient, topics: list[str] | None, group: str = "") -> tuple[int, set[str]]:
        response = client.call(27001, {"group": group}, json.dumps({"topics": topics}).encode())
        return response.code, set(json.loads(response.body)["topics"]) if response.body else set()

    with user(broker, "app") as client:
        assert ask(client, ["T"], "G") == (0, {"T"})
        assert ask(client, ["T", "Other"]) == (16, set())
        assert ask(client, ["T"], "Foreign") == (16, set())
        assert ask(client, None) == (0, {"T"})
    with user(broker, "lake") as client:
        assert ask(client, None) == (0, {"T", "Other"})


@pytest.mark.parametrize(
    "odd",
    [
        b'"\xff"',
        b'{"$ref": "$.nowhere"}',
        pytest.param(b'[1e999, "%b"]' % (b"a" * 70_000), id="a large number in a long body"),
    ],
)
@pytest.mark.parametrize("asked", [b'"topics": ["Other"]', b'"topics": [], "log": true'])
def test_what_is_answered_is_what_is_judged(broker: testing.RunningBroker, odd: bytes, asked: bytes) -> None:
    """The fast decoder passes over members that nobody knows, in which a full one finds a fault."""
    body = b'{"x": %b, %b}' % (odd, asked)
    with user(broker, "app") as client, user(broker, "ops") as admin:
        response = client.call(27001, {"group": ""}, body)
        assert (response.code, response.body) == (16, b"")
        assert admin.call(27001, {"group": ""}, body).code == 0


def test_batches_with_an_identity_need_the_right_to_send(broker: testing.RunningBroker) -> None:
    ext = {"producerGroup": "P", "topic": "T", "queueId": "0", "semantics": "key", "txn": "x"}
    with user(broker, "lake") as client:
        assert client.call(27004, ext).code == 16
    with user(broker, "app") as client:
        assert client.call(27004, {**ext, "topic": "Foreign"}).code == 16
        assert client.call(27004, ext).code not in (0, 16)


def test_unsigned_and_wrongly_signed_readers_are_refused(broker: testing.RunningBroker) -> None:
    wrong = BlockingClient(broker.remoting, access_key="ops-key", secret_key="not the secret")
    with BlockingClient(broker.remoting) as unsigned, wrong:
        for client in (unsigned, wrong):
            for request in (read_log_request(0, 1 << 20), read_queue_request("T", 0, 0, 1, 1), (27001, {}, b"{}")):
                response = client.call(*request)
                assert (response.code, response.body) == (16, b"")


def test_everything_of_a_cluster_works_signed(broker: testing.RunningBroker) -> None:
    with Cluster(broker.registry, access_key="app-key", secret_key="app-secret") as cluster:
        assert "T" in cluster.topics()
        assert cluster.route("T").queues[0].broker == "broker-a"
        assert b"hello" in cluster.pull("broker-a", "G", "T", 0, 0).records
        assert cluster.max_offset("broker-a", "T", 0) == 1
        assert cluster.min_offset("broker-a", "T", 0) == 0
        assert cluster.search_offset("broker-a", "T", 0, 0) == 0
        update_offset(cluster, "broker-a", "G", "T", 0, 1, durable=True)
        assert cluster.query_offset("broker-a", "G", "T", 0) == 1
        assert cluster.topic_stats(broker.remoting, "T")[0].max_offset == 1
        with pytest.raises(RemotingRefusedError, match=r"code 16: user 'app' has no right to subscribe"):
            cluster.pull("broker-a", "G", "Other", 0, 0)


@pytest.mark.parametrize(
    ("subscribe", "groups", "may"),
    [(["*"], ["*"], True), (["*"], [], False), ([], ["*"], False), (["orders*"], ["*"], False)],
)
def test_right_to_the_log(subscribe: list[str], groups: list[str], may: bool) -> None:
    one = User(name="u", subscribe=Patterns(subscribe), groups=Patterns(groups))
    assert one.may(Action.READ_LOG) is may
    assert User(name="a", admin=True).may(Action.READ_LOG)
