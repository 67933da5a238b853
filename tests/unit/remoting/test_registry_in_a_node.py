"""Registry, registration and access control as parts of a whole broker."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import testing
from headrace.errors import ConfigError, SideFileError
from headrace.remoting.client import RemotingClient
from headrace.remoting.codec import Command
from headrace.remoting.signature import signed_ext
from tests.support.access_rules import write_rules

ROUTE, CLUSTERS, SEND, PULL, HEARTBEAT, CREATE = 105, 106, 310, 11, 34, 17


def ask(address: str, *commands: Command) -> list[Command]:
    """Send requests one after the other over one connection; return the responses."""

    async def run() -> list[Command]:
        client = RemotingClient()
        try:
            return [await client.call(address, command) for command in commands]
        finally:
            await client.close()

    return asyncio.run(run())


def route(topic: str) -> Command:
    return Command(ROUTE, {"topic": topic})


def send(topic: str) -> dict[str, str]:
    names = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return {**names, "i": "", "j": "0", "k": "false", "m": "false"}


def pull(topic: str, group: str) -> dict[str, str]:
    numbers = ("queueId", "queueOffset", "sysFlag", "commitOffset", "suspendTimeoutMillis", "subVersion")
    return {"topic": topic, "consumerGroup": group, "maxMsgNums": "1", **dict.fromkeys(numbers, "0")}


def test_broker_is_registered_when_it_is_ready() -> None:
    """Issue 4, item 4: inside `headrace serve`; a client that starts at once finds the template's route."""
    with testing.broker(broker__name="broker-a", remoting__cluster="C1") as broker:
        found, clusters = ask(broker.listeners["registry"], route("TBW102"), Command(CLUSTERS))
        assert json.loads(found.body)["brokerDatas"] == [
            {
                "brokerAddrs": {"0": broker.remoting},
                "brokerName": "broker-a",
                "cluster": "C1",
                "enableActingMaster": False,
            }
        ]
        assert json.loads(clusters.body)["clusterAddrTable"] == {"C1": ["broker-a"]}


def test_new_topic_has_a_route_at_once() -> None:
    """A-BROKER-22, issue 4, item 3: auto-creation with immediate registration."""
    with testing.broker() as broker:
        (sent,) = ask(broker.remoting, Command(SEND, send("New"), b"body"))
        assert sent.code == 0, sent.remark
        deadline = time.monotonic() + 20
        (found,) = ask(broker.listeners["registry"], route("New"))
        while found.code and time.monotonic() < deadline:
            (found,) = ask(broker.listeners["registry"], route("New"))
        assert [queue["writeQueueNums"] for queue in json.loads(found.body)["queueDatas"]] == [4]


def test_registry_may_be_elsewhere() -> None:
    """broker.registries; a broker without a registry of its own."""
    with testing.broker() as first:
        registry = first.listeners["registry"]
        with testing.broker(registry__enabled=False, broker__registries=registry, broker__name="second") as second:
            assert "registry" not in second.listeners
            (clusters,) = ask(registry, Command(CLUSTERS))
            assert json.loads(clusters.body)["brokerAddrTable"]["second"]["brokerAddrs"] == {"0": second.remoting}
        (clusters,) = ask(registry, Command(CLUSTERS))
        assert "second" not in json.loads(clusters.body)["brokerAddrTable"]


def test_store_is_made_beside_a_registry_s_file(tmp_path: Path) -> None:
    """`headrace registry` may have run in this folder before."""
    file = tmp_path / "namesrv" / "kvConfig.json"
    file.parent.mkdir()
    file.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"TBW102":"broker-a:4"}}}')
    with testing.broker(store__data_dir=tmp_path) as broker:
        (found,) = ask(broker.listeners["registry"], route("TBW102"))
        assert json.loads(found.body)["orderTopicConf"] == "broker-a:4"


def test_damaged_configuration_refuses_the_start_and_leaves_the_store_closed(tmp_path: Path) -> None:
    """Names file and remedy."""
    with testing.broker(store__data_dir=tmp_path):
        pass
    file = tmp_path / "namesrv" / "kvConfig.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text("{")
    with pytest.raises(SideFileError, match=r"kvConfig\.json"), testing.broker(store__data_dir=tmp_path):
        pass
    file.unlink()
    with testing.broker(store__data_dir=tmp_path):
        pass


RULES = """
[[users]]
name = "app"
access_key = "app-key"
secret_key = "app-secret"
publish = ["T"]
subscribe = ["T"]
groups = ["G"]

[[users]]
name = "root"
access_key = "root-key"
secret_key = "root-secret"
admin = true
"""


def signed(code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, user: str = "app") -> Command:
    return Command(code, signed_ext(ext, body, f"{user}-key", f"{user}-secret"), body)


def codes(responses: list[Command]) -> list[int]:
    return [response.code for response in responses]


def guarded(tmp_path: Path, rules: str = RULES) -> dict[str, Any]:
    return {"access__rules_file": str(write_rules(tmp_path, rules)), "access__broker_user": "root"}


def test_rules_hold_at_broker_and_registry(tmp_path: Path) -> None:
    """Issue 4, item 6: the plain sends and pulls of the fast path too."""
    heartbeat = json.dumps(
        {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "H", "subscriptionDataSet": []}],
            "producerDataSet": [],
        }
    ).encode()
    with testing.broker(**guarded(tmp_path)) as broker:
        registry = broker.listeners["registry"]
        assert codes(ask(registry, route("TBW102"), signed(ROUTE, {"topic": "TBW102"}))) == [16, 0]
        made = {"topic": "T", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102"}
        made |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        assert codes(ask(broker.remoting, signed(CREATE, made), signed(CREATE, made, user="root"))) == [16, 0]
        plain, allowed = Command(SEND, send("T"), b"body"), signed(SEND, send("T"), b"body")
        forged = Command(SEND, signed_ext(send("T"), b"body", "app-key", "guessed"), b"body")
        elsewhere = signed(SEND, send("BenchmarkTest"), b"body")
        assert codes(ask(broker.remoting, plain, allowed, forged, elsewhere, plain, allowed)) == [16, 0, 16, 16, 16, 0]
        pulls = [Command(PULL, pull("T", "G")), signed(PULL, pull("T", "G")), signed(PULL, pull("T", "H"))]
        refused, taken, other = ask(broker.remoting, *pulls)
        assert (refused.code, other.code) == (16, 16)
        assert taken.code != 16, taken.remark
        (beat,) = ask(broker.remoting, signed(HEARTBEAT, {}, heartbeat))
        assert (beat.code, "group 'H'" in beat.remark) == (16, True)


@pytest.mark.parametrize("registries", ["", "127.0.0.1:1"])
def test_rules_without_a_broker_user_refuse_the_start_or_warn(
    tmp_path: Path, registries: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own registry would refuse the broker, and clients would get no route; of others the rules are not known."""
    options = {"access__rules_file": guarded(tmp_path)["access__rules_file"], "broker__registries": registries}
    if registries:
        with testing.broker(**options):
            assert "setting=access.broker_user" in caplog.text
    else:
        with pytest.raises(ConfigError, match=r"access\.broker_user"), testing.broker(**options):
            pass
    with testing.broker(**options | {"registry__enabled": False}):
        pass


def test_a_broker_user_who_is_no_admin_is_refused_by_the_own_registry_only(tmp_path: Path) -> None:
    """Another registry may have this user as an admin, or no rules at all."""
    options = guarded(tmp_path) | {"access__broker_user": "app"}
    with pytest.raises(ConfigError, match=r'access\.broker_user = "app"'), testing.broker(**options):
        pass
    for elsewhere in ({"registry__enabled": False}, {"broker__registries": "127.0.0.1:1"}):
        with testing.broker(**options | elsewhere):
            pass


@pytest.mark.parametrize("key", ["registry.expiry_ms", "registry.idle_timeout_ms"])
def test_a_registry_that_drops_its_own_broker_between_registrations_is_refused(key: str) -> None:
    """Clients would find no topic most of the time; a registry elsewhere may have other settings."""
    options = {key.replace(".", "__"): 5_000, "broker__registration_interval_ms": 5_000}
    with (
        pytest.raises(ConfigError, match=rf"{key} = 5s .*registration_interval_ms = 5s") as caught,
        testing.broker(**options),
    ):
        pass
    assert caught.value.key == key
    for allowed in (
        {"registry__enabled": False},
        {"broker__registries": "127.0.0.1:1"},
        {key.replace(".", "__"): 5_001},
    ):
        with testing.broker(**options | allowed):
            pass


def test_an_admin_s_address_stands_in_for_a_broker_user(tmp_path: Path) -> None:
    """docs/access.md: without a signature, a request from there is this user's."""
    rules = write_rules(tmp_path, RULES + 'addresses = ["127.0.0.1"]\n')
    with testing.broker(access__rules_file=str(rules)) as broker:
        assert codes(ask(broker.listeners["registry"], signed(ROUTE, {"topic": "TBW102"}))) == [0]


def test_listed_address_needs_no_signature(tmp_path: Path) -> None:
    """Issue 4, item 6: with its user's rights, and not when a signature is sent that is wrong."""
    rules = RULES + '\n[[users]]\nname = "near"\naddresses = ["127.0.0.0/8"]\npublish = ["SELF*", "Near"]\n'
    with testing.broker(**guarded(tmp_path, rules)) as broker:
        wrong = Command(SEND, {**send("Near"), "AccessKey": "app-key", "Signature": "x"}, b"body")
        sends = [Command(SEND, send("Near"), b"body"), Command(SEND, send("T"), b"body"), wrong]
        assert codes(ask(broker.remoting, *sends)) == [0, 16, 16]
