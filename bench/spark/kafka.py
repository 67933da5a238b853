"""The peer: Kafka's broker and Spark with Kafka's source, as ``build.sh`` fetched them."""

import socket
import subprocess
from pathlib import Path

from bench.errors import BenchError
from bench.machine import REPOSITORY
from bench.programs import PEERS
from bench.servers import Server
from tests.support.ports import free_port
from tests.support.rocketmq_programs import write_properties

VERSION = "4.1.1"
HOME = PEERS / "kafka"
KAFKA_PYTHON = HOME / "venv" / "bin" / "python"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
# Those of Kafka's own start script.
JVM_OPTIONS = (
    "-server",
    "-Xms1g",
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
FORMAT_TIMEOUT_S = 60.0


def fetch_kafka() -> None:
    """Make what is missing.

    Raises:
        subprocess.CalledProcessError: something could not be fetched; its messages are on stderr.
    """
    subprocess.run([REPOSITORY / "bench" / "spark" / "build.sh"], check=True)


def source_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source."""
    return sorted((HOME / "source" / "lib").glob("*.jar"))


class Kafka(Server):
    """Kafka's broker, its own controller, with defaults but for what one node alone needs.

    Attributes:
        tcp_address: What clients call ``bootstrap.servers``.
        data: The folder of its log.
    """

    def __init__(self, scratch: Path, cores: str, *, partitions: int) -> None:
        super().__init__(scratch, cores)
        self._partitions = partitions

    @property
    def data(self) -> Path:
        """The folder of the log."""
        return self._directory / "data"

    def _command(self, directory: Path) -> list[str]:
        properties = directory / "server.properties"
        java = ["java", *JVM_OPTIONS, "-cp", f"{HOME / 'broker' / 'lib'}/*"]
        if not properties.exists():
            self._port, controller = free_port(), free_port()
            write_properties(properties, broker_properties(self._port, controller, self.data, self._partitions))
            made = subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c", str(properties)],
                capture_output=True,
                text=True,
                timeout=FORMAT_TIMEOUT_S,
                check=False,
            )
            if made.returncode != 0:
                raise BenchError(f"Kafka could not make its storage: {(made.stdout + made.stderr)[-500:]}")
        return [*java, "kafka.Kafka", str(properties)]

    def _find_listeners(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", self._port)) != 0:
                return False
        self.tcp_address = f"127.0.0.1:{self._port}"
        return True


def broker_properties(port: int, controller_port: int, data: Path, partitions: int) -> dict[str, str]:
    """Return the configuration of a node that is broker and controller."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
        "log.dirs": str(data),
        "num.partitions": str(partitions),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
