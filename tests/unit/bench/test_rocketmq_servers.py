"""How RocketMQ's brokers are started for a benchmark; none is started here."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases import CASES_OF
from bench.rocketmq_servers import RocketMq, RocketMqNullServer, make_rocketmq_server
from bench.servers import Headrace


def server(contestant: str, scratch: Path) -> object:
    return make_rocketmq_server(contestant, scratch, 0, body_bytes=100, backlog=25)


def test_every_contestant_of_the_cases_has_a_server(tmp_path: Path) -> None:
    kinds = {name: type(server(name, tmp_path)) for case in CASES_OF["rocketmq"] for name in case.contestants}
    assert kinds == {
        "headrace": Headrace,
        "headrace-fsync": Headrace,
        "rocketmq-4.9.7": RocketMq,
        "rocketmq-5.5.0": RocketMq,
        "rocketmq-4.9.7-sync": RocketMq,
        "rocketmq-5.5.0-sync": RocketMq,
        "null": RocketMqNullServer,
    }


def test_other_versions_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rocketmq-4\.9\.6"):
        server("rocketmq-4.9.6", tmp_path)


@pytest.mark.parametrize(
    ("contestant", "flush"), [("rocketmq-4.9.7", "ASYNC_FLUSH"), ("rocketmq-4.9.7-sync", "SYNC_FLUSH")]
)
def test_a_broker_flushes_as_its_name_says_in_a_folder_of_its_own(contestant: str, flush: str, tmp_path: Path) -> None:
    broker = server(contestant, tmp_path)
    assert isinstance(broker, RocketMq)
    command = broker._command(tmp_path)
    conf = Path(command[command.index("-c") + 1]).read_text().splitlines()
    assert f"flushDiskType={flush}" in conf
    assert f"storePathRootDir={tmp_path / 'store'}" in conf
    assert {"-Xms4g", "-Xmx4g"} <= set(command)
    assert command[:2] == ["env", f"ROCKETMQ_HOME={tmp_path / 'home'}"]
