"""The configuration that tools see and change. Ref: remoting.md 4.7.3."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.support.remoting import (
    RemotingRig,
    send_fields,
)


def test_configuration_is_shown_and_changed(rig: RemotingRig) -> None:
    """remoting.md 4.7.3: 26 and 25; what is changed takes effect."""
    peer = rig.peer()
    reply = peer.ask(26)
    assert reply.body is not None
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (lines["brokerName"], lines["brokerClusterName"], lines["listenPort"]) == ("broker-a", "C1", "10911")
    assert int(lines["defaultTopicQueueNums"]) == rig.broker.topics["TBW102"].config.write_queues == 8
    assert peer.ask(25, body=b"autoCreateTopicEnable=false\nunknownKey=1\n").code == 0
    assert peer.ask(310, send_fields("New"), b"x").code == 17
    assert peer.ask(25, body=b"longPollingEnable=false\nbrokerName=broker-a").code == 0
    assert not rig.services.long_polling
    assert peer.ask(25, body=b"brokerPermission=4").code == 0
    assert rig.services.permission == 4


def test_keys_that_nobody_knows_are_one_line_of_the_log(rig: RemotingRig, caplog: pytest.LogCaptureFixture) -> None:
    """Each had its own, thousands for one request; and those that changed something were named among them."""
    caplog.set_level("INFO", "headrace.remoting.broker_config")
    body = "".join(f"key{number}=1\n" for number in range(1_000)) + "longPollingEnable=false\n"
    assert rig.peer().ask(25, body=body.encode()).code == 0
    assert [record.getMessage() for record in caplog.records if record.name == "headrace.remoting.broker_config"] == [
        "unknown configuration keys ignored count=1000 first=key0",
        "configuration changed by a tool keys=longPollingEnable",
    ]


def test_sizes_of_files_are_those_of_the_store(rig: RemotingRig) -> None:
    """They are fixed for the life of a store, whatever the settings say by now; and files have whole entries."""
    rig.close()
    shutil.rmtree(rig.store_settings.data_dir)
    rig.store_settings = replace(rig.store_settings, queue_file_bytes=410)
    rig._open()
    rig.close()
    rig.store_settings = replace(rig.store_settings, queue_file_bytes=8_000, segment_bytes=1 << 21)
    rig._open()
    reply = rig.peer().ask(26)
    assert reply.body is not None
    lines = dict(line.split("=", 1) for line in reply.body.decode().splitlines())
    assert (lines["mappedFileSizeConsumeQueue"], lines["mappedFileSizeCommitLog"]) == ("420", str(1 << 20))


@pytest.mark.parametrize(
    "body",
    [
        b"storePathRootDir=/tmp",
        b"configBlackList=",
        b"rocketmqHome=/",
        b"brokerName=x",
        b"brokerPermission=0",
        b"brokerPermission=9",
        b"brokerPermission=00026666",
        b"brokerPermission=0002" + b"0" * 5_000,
        "brokerPermission=\uff16".encode(),
        b"autoCreateTopicEnable=x",
    ],
)
def test_configuration_that_must_not_change(rig: RemotingRig, body: bytes) -> None:
    """Issue item 3: an allow-list, never paths or commands."""
    assert rig.peer().ask(25, body=body).code == 16
