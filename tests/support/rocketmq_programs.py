"""How RocketMQ's Java programs start without their distribution: what the interop tests and the benchmarks share.

``tests/interop/java/build.sh`` fetches them into ``JAVA_PEERS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

JAVA_PEERS = Path(__file__).resolve().parents[2] / ".cache" / "peers" / "java"
NAMESRV = "org.apache.rocketmq.namesrv.NamesrvStartup"
BROKER = "org.apache.rocketmq.broker.BrokerStartup"

# What RocketMQ reaches into; a JDK from 17 on does not let it by itself.
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
_LOGGING = '<configuration><root level="ERROR"/></configuration>'


def server_jars(version: str) -> Path:
    """Return the folder of the jars of broker, name server and tools; it need not exist."""
    return JAVA_PEERS / f"server-{version}" / "lib"


def java_command(version: str, home: Path, main: str, *arguments: str, options: tuple[str, ...]) -> list[str]:
    """Return how a server program or tool of ``version`` is run with JVM options; ``home`` is its home directory."""
    command = ["java", *OPENED, *options, f"-Duser.home={home}", "-cp", f"{server_jars(version)}/*"]
    return [*command, main, *arguments]


def make_home(home: Path) -> dict[str, str]:
    """Write what every program expects in its home; return what it needs in its environment."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in ("namesrv", "broker", "tools", "controller", "proxy"):
        (conf / f"logback_{name}.xml").write_text(_LOGGING)
    (conf / "tools.yml").write_text("")
    return {"ROCKETMQ_HOME": str(home)}


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """Write a configuration file as the servers read it with ``-c``."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def broker_properties(port: int, ha_port: int, store: Path) -> dict[str, str]:
    """Return the configuration that every broker of ours has, real defaults apart."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": str(ha_port),
        "flushDiskType": "ASYNC_FLUSH",
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
        "autoCreateTopicEnable": "true",
        "diskMaxUsedSpaceRatio": "95",
    }
