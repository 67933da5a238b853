"""Access rules and the signatures of unmodified RocketMQ clients and tools.

Ref: remoting.md 7.1; docs/access.md.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import rocketmq_peers as peers
from tests.interop.rocketmq_cluster import registry
from tests.support.access_rules import write_rules
from tests.support.ports import free_port
from tests.support.waiting import until

RULES = """
[[users]]
name = "operations"
access_key = "ops-key"
secret_key = "ops-secret"
admin = true

[[users]]
name = "orders"
access_key = "orders-key"
secret_key = "orders-secret"
publish = ["Orders"]
"""


def mqadmin(version: str, folder: Path, access_key: str, secret_key: str, *arguments: str) -> str:
    """Run mqadmin as somebody and return what it printed."""
    command = peers.mqadmin_command(version, folder, *arguments)
    (command.home / "conf" / "tools.yml").write_text(f"accessKey: {access_key}\nsecretKey: {secret_key}\n")
    done = subprocess.run(
        command.words,
        env=command.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=command.home,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", ["4.9.7", pytest.param("5.5.0", marks=pytest.mark.slow)])
def test_tools_are_known_by_their_signature(tmp_path: Path, version: str) -> None:
    """An admin may all, a user what the rules say, whoever guesses a secret nothing; at registry and broker."""
    rules = write_rules(tmp_path, RULES)
    flags = (f"--access.rules-file={rules}", "--access.broker-user=operations", "--broker.name=broker-a")
    with peers.headrace(tmp_path / "headrace", *flags) as cluster:
        operations, orders = ("ops-key", "ops-secret"), ("orders-key", "orders-secret")
        where = ("-n", cluster.namesrv)
        guessed = mqadmin(version, tmp_path, "ops-key", "guessed", "clusterList", *where)
        assert "CODE: 16" in guessed
        assert "the signature is not the one of access key 'ops-key'" in guessed
        assert cluster.broker in mqadmin(version, tmp_path, *operations, "clusterList", *where)
        make = ("updateTopic", *where, "-b", cluster.broker, "-r", "1", "-w", "1", "-t")
        assert "user 'orders' has no right to administer" in mqadmin(version, tmp_path, *orders, *make, "Orders")
        for topic in ("Orders", "Secret"):
            assert "success" in mqadmin(version, tmp_path, *operations, *make, topic)
        send = ("sendMessage", *where, "-p", "body", "-t")
        assert "SEND_OK" in mqadmin(version, tmp_path, *orders, *send, "Orders")
        assert "no right to publish with topic 'Secret'" in mqadmin(version, tmp_path, *orders, *send, "Secret")


CLIENT_RULES = (
    RULES
    + """subscribe = ["Orders"]
groups = ["GID-orders*"]

[[users]]
name = "local"
addresses = ["127.0.0.0/8"]
publish = ["Open"]
"""
)
RIGHT = {"accessKey": "orders-key", "secretKey": "orders-secret"}
GUESSED = {"accessKey": "orders-key", "secretKey": "guessed"}
UNKNOWN = {"accessKey": "nobody", "secretKey": "orders-secret"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A broker with rules, known to its own registry, which has them too, and to an open one; their addresses."""
    folder = tmp_path_factory.mktemp("access")
    rules = write_rules(folder, CLIENT_RULES)
    with registry(folder / "registry") as names:
        own = f"127.0.0.1:{free_port()}"
        ports = [f"--{name}=127.0.0.1:0" for name in ("nsq.tcp-address", "nsq.http-address", "admin.address")]
        with peers.headrace(
            folder / "broker", f"--access.rules-file={rules}", "--access.broker-user=operations", "--broker.name=a",
            f"--registry.address={own}", f"--broker.registries={own},{names.address}", "--remoting.address=127.0.0.1:0",
            *ports, "--store.durability=async", free_ports=False,
        ):  # fmt: skip
            agent = peers.Agent("4.9.8", own, folder)
            agent.ask("producer", id="p", group="PID-ops", accessKey="ops-key", secretKey="ops-secret")
            for topic in ("Orders", "Secret", "Open"):
                agent.ask("create-topic", id="p", topic=topic)
            agent.close()
            yield own, names.address


def refusal(agent: peers.Agent, namesrv: str, topic: str, **keys: str) -> peers.AgentError:
    """Return what a client says when it may not send."""
    agent.ask("producer", id="x", group="PID-orders", namesrv=namesrv, retries=0, **keys)
    try:
        with pytest.raises(peers.AgentError) as raised:
            agent.ask("send", id="x", topic=topic)
    finally:
        agent.ask("shutdown", id="x")
    return raised.value


def wait_for(agent: peers.Agent, consumer: str, body: str) -> None:
    """Return when a consumer was given a message; it may get what other versions sent before."""
    got: list[str] = []

    def is_there() -> bool:
        got.extend(message["body"] for message in agent.ask("received", id=consumer))
        return body in got

    until(is_there, 40)


def require_16(agent: peers.Agent, refused: peers.AgentError, text: str) -> None:
    """Require what each client shows of a refusal: Java the code, Go the remark."""
    if agent.version == "go":
        assert text in refused.text
    else:
        assert refused.code == 16


@pytest.mark.parametrize("version", ["4.9.8", "5.5.0", "go"])
def test_clients_are_known_by_their_signature(tmp_path: Path, guarded: tuple[str, str], version: str) -> None:
    """Right key, wrong secret, unknown key, missing right, white list: remoting.md 7.1, at broker and registry."""
    own, unguarded = guarded
    agent = peers.Agent(version, own, tmp_path)
    try:
        group = f"GID-orders-{version.replace('.', '')}"
        agent.ask("producer", id="p", group="PID-orders", **RIGHT)
        agent.ask("consumer", id="c", group=group, topic="Orders", **RIGHT)
        body = f"signed-{version}-"
        agent.ask("send", id="p", topic="Orders", body=body)
        agent.ask("send", id="p", topic="Orders", body=body, mode="batch", count=2)
        wait_for(agent, "c", f"{body}0")
        # The open registry tells anybody where the broker is; the broker refuses who proves nothing.
        for keys, text in ((GUESSED, "the signature is not the one of"), (UNKNOWN, "no user has the access key")):
            require_16(agent, refusal(agent, unguarded, "Orders", **keys), text)
            assert "route" in refusal(agent, own, "Orders", **keys).text  # its own does not
        refused = refusal(agent, own, "Secret", **RIGHT)
        require_16(agent, refused, "user 'orders' has no right to publish with topic 'Secret'")
        # From a listed address without a signature: what its user may, and nothing else.
        agent.ask("producer", id="o", group="PID-open")
        agent.ask("send", id="o", topic="Open")
        refused = refusal(agent, own, "Orders")
        require_16(agent, refused, "user 'local' has no right to publish with topic 'Orders'")
        # Groups and subscriptions: a consumer that may not gets nothing, and the others go on.
        agent.ask("consumer", id="thief", group="GID-other", topic="Orders", **RIGHT)
        agent.ask("send", id="p", topic="Orders", body="again-")
        wait_for(agent, "c", "again-0")
        assert agent.stays_at("thief", 1.0) == []
    finally:
        agent.close()
