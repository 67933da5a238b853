"""RocketMQ's own brokers, and the null server of its protocol, as contestants."""

import json
import subprocess
from pathlib import Path

from bench.errors import BenchError
from bench.machine import REPOSITORY
from bench.programs import LOADGEN
from bench.servers import Headrace, Server
from tests.support.ports import free_port
from tests.support.rocketmq_programs import (
    BROKER,
    broker_properties,
    java_command,
    make_home,
    server_jars,
    write_properties,
)

VERSIONS = ("4.9.7", "5.5.0")
HEAP = "4g"
# The distribution's own, but for the heap and for AlwaysPreTouch: that would take all of it at the start.
JVM_OPTIONS = (
    "-server",
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
)
# By its defaults a broker refuses what waited for over 200 ms. While it warms up on one core, much does: it shall be
# slow then and not refuse.
PATIENCE = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": "10000"}


class RocketMq(Server):
    """The unmodified broker of ``version``, without a name server: the load knows its address."""

    def __init__(
        self, scratch: Path, core: int, *, version: str, is_synchronous: bool, filters_properties: bool
    ) -> None:
        super().__init__(scratch, core)
        self._version = version
        self._filters_properties = filters_properties
        self._is_synchronous = is_synchronous

    def _command(self, directory: Path) -> list[str]:
        home = directory / "home"
        port = free_port(below=2)
        self._address = f"127.0.0.1:{port}"
        properties = {
            **broker_properties(port, free_port(), directory / "store"),
            **PATIENCE,
            "enablePropertyFilter": str(self._filters_properties).lower(),
            "flushDiskType": "SYNC_FLUSH" if self._is_synchronous else "ASYNC_FLUSH",
        }
        environment = [f"{name}={value}" for name, value in make_home(home).items()]
        conf = write_properties(home / "broker.conf", properties)
        return ["env", *environment, *java_command(self._version, home, BROKER, "-c", str(conf), options=JVM_OPTIONS)]

    def _find_listeners(self) -> bool:
        if "boot success" not in self._log.read_text(errors="replace"):
            return False
        self.rocketmq_address = self._address
        return True


class RocketMqNullServer(Server):
    """The load generator's broker that stores nothing; each queue begins with ``backlog`` messages."""

    def __init__(self, scratch: Path, core: int, *, body_bytes: int, backlog: int) -> None:
        super().__init__(scratch, core)
        self._body_bytes = body_bytes
        self._backlog = backlog

    def _command(self, directory: Path) -> list[str]:
        return [
            *(str(LOADGEN), "rocket-null", "-json", "-address=127.0.0.1:0"),
            *(f"-body={self._body_bytes}", f"-backlog={self._backlog}"),
        ]

    def _find_listeners(self) -> bool:
        log = self._log.read_text()
        if not log.endswith("\n"):
            return False
        self.rocketmq_address = json.loads(log.splitlines()[0])["address"]
        return True


def make_rocketmq_server(
    contestant: str, scratch: Path, core: int, *, body_bytes: int, backlog: int, filters_properties: bool = False
) -> Server:
    """Return the server of a contestant's name in a RocketMQ case, not started yet.

    Args:
        body_bytes: Of each message that the null server makes up.
        backlog: How many it makes up for each queue.
        filters_properties: RocketMQ's brokers take SQL92 filters, which they do not by default.
    """
    if contestant == "null":
        return RocketMqNullServer(scratch, core, body_bytes=body_bytes, backlog=backlog)
    if contestant in {"headrace", "headrace-fsync"}:
        return Headrace(scratch, core, durability="fsync" if contestant == "headrace-fsync" else "async")
    version = contestant.removeprefix("rocketmq-").removesuffix("-sync")
    if version not in VERSIONS:
        raise ValueError(f"no server is called {contestant!r}")
    return RocketMq(
        scratch,
        core,
        version=version,
        is_synchronous=contestant.endswith("-sync"),
        filters_properties=filters_properties,
    )


def fetch_rocketmq() -> None:
    """Fetch the brokers if they are not there.

    Raises:
        BenchError: that did not work; what Maven and javac said is on stderr.
    """
    if all(server_jars(version).exists() for version in VERSIONS):
        return
    if subprocess.run([REPOSITORY / "tests" / "interop" / "java" / "build.sh"], check=False).returncode != 0:
        raise BenchError("RocketMQ could not be fetched: leave it out by --protocol nsq, or by --servers")


def java_version() -> str:
    """Return the version of the Java that runs RocketMQ."""
    result = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    return result.stderr.split('"')[1]
