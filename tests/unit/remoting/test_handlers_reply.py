"""Replies to requests. Ref: remoting.md 4.6."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.remoting.codec import Command
from tests.support.remoting import (
    RemotingRig,
    long_send_fields,
    send_fields,
)

REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "id1", "REPLY_TO_CLIENT": "c1", "TTL": "3000"}


@pytest.mark.parametrize("code", [324, 325])
def test_reply_is_pushed_and_stored(rig: RemotingRig, code: int) -> None:
    """remoting.md 4.6, trap 26: to the producer of that client id; the answer is that of the store."""
    requester, responder = rig.peer(1), rig.peer(2)
    requester.heartbeat("c1", producer="P1")
    given = "".join(f"{name}\x01{value}\x02" for name, value in REPLY.items())
    fields = (
        long_send_fields("C1_REPLY_TOPIC", properties=given)
        if code == 324
        else send_fields("C1_REPLY_TOPIC", properties=REPLY)
    )
    reply = responder.ask(code, fields, b"answer")
    assert reply.ext is not None
    assert reply.ext["queueOffset"] == "0"
    pushed, ext, body, _ = requester.calls.pop()
    assert (pushed, body, ext["bornHost"], ext["storeHost"]) == (326, b"answer", "10.0.0.5:2", "127.0.0.1:10911")
    assert "CORRELATION_ID\x01id1\x02" in ext["properties"]
    pushed_names = [text.partition("\x01")[0] for text in ext["properties"].rstrip("\x02").split("\x02")]
    assert pushed_names == [*REPLY, "PUSH_REPLY_TIME"]
    assert [message.body for message in rig.messages("C1_REPLY_TOPIC")] == [b"answer"]


def test_a_time_that_a_reply_asks_for_keeps_it_from_nobody(rig: RemotingRig) -> None:
    """Its requester has it at once; NSQ channels of the reply topic waited for that time."""
    subscription, channel = rig.subscribe("C1_REPLY_TOPIC", "c")
    properties = {**REPLY, "TIMER_DELIVER_MS": str(rig.clock.now_ms() + 3_600_000)}
    assert rig.peer().ask(325, send_fields("C1_REPLY_TOPIC", properties=properties), b"answer").code == 0
    assert [body for body, _, _ in rig.take(subscription, channel)] == [b"answer"]


def test_reply_topic_is_made_like_any_other(rig: RemotingRig) -> None:
    """A responder of another cluster's name: RocketMQ makes the topic too."""
    assert rig.peer().ask(325, send_fields("Other_REPLY_TOPIC", properties=REPLY), b"answer").code == 0
    assert rig.broker.topics["Other_REPLY_TOPIC"].config.write_queues == 4


def test_reply_that_is_not_stored_waits_for_its_requester(tmp_path: Path) -> None:
    """remoting.md 4.6: msgId 0 when it arrived, code 1 when it did not."""
    rig = RemotingRig(tmp_path, store_replies=False)
    requester, responder = rig.peer(1), rig.peer(2)
    fields = send_fields("C1_REPLY_TOPIC", properties=REPLY)
    assert responder.try_ask(325, fields, b"answer") is None
    assert responder.answers[-1].code == 1
    assert "not found" in responder.answers[-1].remark
    requester.heartbeat("c1", producer="P1")
    responder.try_ask(325, fields, b"answer")
    requester.calls.pop()[3](Command(0, {}, b""))
    assert responder.answers[-1].ext is not None
    assert responder.answers[-1].ext["msgId"] == "0"
    responder.try_ask(325, fields, b"answer")
    requester.calls.pop()[3](None)
    assert responder.answers[-1].code == 1
    assert rig.messages("C1_REPLY_TOPIC") == []
    rig.close()
