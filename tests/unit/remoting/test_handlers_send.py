"""Sends that need more than the fast path. Ref: remoting.md 4.3."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StoreFullError
from headrace.format.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from headrace.format.record import tag_hash
from headrace.remoting.codec import encode_request
from tests.support.remoting import RemotingRig, long_send_fields, send_fields
from tests.support.stored_message import StoredMessage


def stored(rig: RemotingRig, topic: str, queue_id: int = 0, index: int = 0) -> StoredMessage:
    queue = rig.broker.topics[topic].queues[queue_id]
    ((physical_offset, _, _),) = queue.entries(index, 1)
    raw = rig.store.log.read(physical_offset)
    assert raw is not None
    return StoredMessage.from_record(raw)


def batch_body(*messages: tuple[bytes, bytes]) -> bytes:
    """Encode a batch; layout in remoting.md 2.9."""
    parts = b""
    for body, properties in messages:
        size = 22 + len(body) + len(properties)
        head = size.to_bytes(4, "big") + bytes(8) + (0).to_bytes(4, "big") + len(body).to_bytes(4, "big")
        parts += head + body + len(properties).to_bytes(2, "big") + properties
    return parts


def test_unknown_topic_is_made_with_the_smaller_number_of_queues(rig: RemotingRig) -> None:
    """X-BROKER-14, A-BROKER-19, A-BROKER-20; remoting.md 4.3 step 4."""
    peer = rig.peer()
    reply = peer.ask(310, send_fields("T1"), b"hello")
    assert reply.code == 0
    assert reply.ext is not None
    assert reply.ext["queueId"] == "0"
    assert reply.ext["queueOffset"] == "0"
    assert len(reply.ext["msgId"]) == 32
    assert reply.ext["MSG_REGION"] == "DefaultRegion"
    config = rig.broker.topics["T1"].config
    assert (config.read_queues, config.write_queues, config.perm) == (4, 4, 6)
    peer.ask(310, send_fields("T32", c="DEFAULT_TOPIC", d=32), b"x")
    assert rig.broker.topics["T32"].config.write_queues == 16
    assert stored(rig, "T1").properties == {"CLUSTER": "C1"}
    assert reply.wait_saved is not None  # it is registered before its producer is answered
    assert peer.ask(310, send_fields("T1"), b"hello").wait_saved is None


@pytest.mark.parametrize(
    ("topic", "mode", "flag"), [("T1", "true", 1), ("T1", "false", 0), ("%RETRY%G1", "true", 2), ("%RETRY%G1", "", 0)]
)
def test_a_topic_that_a_producer_in_unit_mode_makes_says_so(rig: RemotingRig, topic: str, mode: str, flag: int) -> None:
    """remoting.md 4.3 step 4: ``topicSysFlag``, by which name servers list such topics (311, 312)."""
    rig.services.ensure_group("G1")
    assert rig.peer().ask(310, send_fields(topic, k=mode, c="None" if "%" in topic else "TBW102"), b"x").code == 0
    assert rig.broker.topics[topic].config.sys_flag == flag


def test_new_topics_are_told_to_whoever_registers(rig: RemotingRig) -> None:
    """A-BROKER-21."""
    made: list[str] = []
    rig.broker.on_topics_changed = made.append
    rig.peer().ask(310, send_fields("T1"), b"hello")
    assert made == ["T1"]


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        (send_fields(""), 1, "topic|<b>"),
        (send_fields("a" * 128), 1, "longer than 127"),
        (send_fields("a.b"), 1, "illegal characters"),
        (send_fields("../x"), 1, "illegal characters"),
        (send_fields("%SYS%CONTROL"), 16, "reserved"),
        (send_fields("SCHEDULE_TOPIC_XXXX"), 16, "SCHEDULE_TOPIC_XXXX"),
        (send_fields("RMQ_SYS_TRANS_HALF_TOPIC"), 16, "not for sending"),
        (send_fields("rmq_sys_wheel_timer"), 16, "not for sending"),
        (send_fields("T1", c="NoSuchTemplate"), 17, "template"),
        (send_fields("TBW102", queue_id=8), 1, "queueId[8] is illegal, topic[TBW102] has 8 write queues"),
        (send_fields("%RETRY%G1"), 26, "G1"),
        (send_fields("T1", e="x"), 1, "<e>"),
        (send_fields("T1", e=" 1"), 1, "<e>"),
        (send_fields("T1", h="1_0"), 1, "<h>"),
        (send_fields("T1", d=""), 1, "<d>"),
        (send_fields("T1", g="9" * 30), 1, "<g>"),
    ],
)
def test_sends_are_refused(rig: RemotingRig, fields: dict[str, object], code: int, remark: str) -> None:
    """remoting.md 4.3 steps 2 to 8; the remark names the field or the rule, MSG_REGION is there on errors too.

    Ref: A-BROKER-08, E-STORE-04.
    """
    end = rig.store.log.end_offset
    reply = rig.peer().ask(310, fields, b"hello")
    assert reply.code == code
    assert any(part in reply.remark for part in remark.split("|"))
    assert reply.ext == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert rig.store.log.end_offset == end


@pytest.mark.parametrize("name", "abcdefgh")
def test_field_that_a_send_must_have(rig: RemotingRig, name: str) -> None:
    """remoting.md 4.3, the fields with an asterisk; issue "Bad input": the remark names it."""
    fields = {key: value for key, value in send_fields("T1").items() if key != name}
    reply = rig.peer().ask(310, fields, b"hello")
    assert (reply.code, f"<{name}>" in reply.remark) == (1, True)
    assert "T1" not in rig.broker.topics


def test_send_is_refused_above_the_size_that_the_setting_names(tmp_path: Path) -> None:
    """A-BROKER-37; issue "Flow control": the refusal names limit and setting."""
    rig = RemotingRig(tmp_path, max_message_bytes=10)
    reply = rig.peer().ask(310, send_fields("T1"), b"12345678901")
    assert (reply.code, "remoting.max_message_bytes = 10" in reply.remark) == (13, True)
    rig.close()


@pytest.mark.parametrize(("spare", "code"), [(0, 0), (1, 13)])
def test_properties_end_where_their_length_field_does(rig: RemotingRig, spare: int, code: int) -> None:
    """A-STORE-20, X-STORE-08: 32,767 bytes with what the broker adds; one more, and nothing is written."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"makes the topic")
    end = rig.store.log.end_offset
    added = len("CLUSTER\x01C1\x02") + len("__CRC32#\x01") + 10 + 1
    name = "P\x01"
    reply = peer.ask(310, send_fields("T1", i=name + "v" * (32_767 - added - len(name) - 1 + spare) + "\x02"), b"x")
    assert reply.code == code
    assert (rig.store.log.end_offset == end) == bool(code)
    if code:
        assert "32767" in reply.remark


@pytest.mark.parametrize(("size", "code"), [(32_724, 0), (32_725, 13)])
@pytest.mark.parametrize("topic", ["TBW102", "made with it"])
def test_properties_have_the_room_that_the_documents_say(tmp_path: Path, topic: str, size: int, code: int) -> None:
    """docs/protocols/remoting.md, "Bounds": the checksum takes 20 bytes that RocketMQ 4.9.7 leaves to the client."""
    rig = RemotingRig(tmp_path, cluster="DefaultCluster")
    own = "P\x01".ljust(size - 1, "v") + "\x02" + "WAIT\x01true\x02"
    fields = {name: str(value) for name, value in send_fields(topic.replace(" ", "-"), i=own).items()}
    answer = rig.link().ask(encode_request(0, 310, 1, ext=fields, body=b"x"))[1]
    assert (answer.code, "32767" in (answer.remark or "")) == (code, bool(code))
    rig.close()


def test_a_topic_of_type_multi_tag_leaves_the_flags_of_its_messages(rig: RemotingRig) -> None:
    """RocketMQ 4.9.7 sets bit 2 of their sysFlag, which no client reads."""
    rig.peer().ask(
        17, {"topic": "T1", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "MULTI_TAG"}
    )
    rig.link().ask(encode_request(0, 310, 1, ext={k: str(v) for k, v in send_fields("T1").items()}, body=b"x"))
    assert stored(rig, "T1").sys_flag == 0


def test_auto_creation_can_be_off(tmp_path: Path) -> None:
    """A-BROKER-19, X-BROKER-15."""
    rig = RemotingRig(tmp_path, auto_create_topics=False)
    reply = rig.peer().ask(310, send_fields("T1"), b"x")
    assert reply.code == 17
    assert "remoting.auto_create_topics is off" in reply.remark
    rig.close()


def test_a_template_that_was_made_makes_topics_also_where_auto_creation_is_off(tmp_path: Path) -> None:
    """As with RocketMQ 4.9.7; of those that every broker has, none does."""
    rig = RemotingRig(tmp_path, auto_create_topics=False)
    peer = rig.peer()
    for name, perm in (("Template", 7), ("Topic", 6)):
        peer.ask(17, {"topic": name, "readQueueNums": 3, "writeQueueNums": 3, "perm": perm})
    assert peer.ask(310, send_fields("Made", c="Template"), b"x").code == 0
    config = rig.broker.topics["Made"].config
    assert (config.read_queues, config.write_queues, config.perm) == (3, 3, 6)
    peer.ask(17, {"topic": "Template", "readQueueNums": 3, "writeQueueNums": 0, "perm": 7})
    assert peer.ask(310, send_fields("MadeToo", c="Template"), b"x").code == 0
    for template in ("Topic", "TBW102", "DEFAULT_TOPIC", "C1", "broker-a", "nowhere"):
        assert peer.ask(310, send_fields("Other", c=template), b"x").code == 17
    rig.close()


def test_topics_of_one_client_are_bounded(tmp_path: Path) -> None:
    """Issue "Bad input": ten thousand topics by one client."""
    rig = RemotingRig(tmp_path, {"max_topics": 3})
    peer = rig.peer()
    codes = [peer.ask(310, send_fields(f"T{number}"), b"x") for number in range(4)]
    assert [reply.code for reply in codes] == [0, 0, 0, 2]
    assert "broker.max_topics" in codes[-1].remark
    rig.close()


@pytest.mark.parametrize("is_plain", [True, False])
def test_broker_without_write_permission_refuses_sends_to_ordered_topics(rig: RemotingRig, is_plain: bool) -> None:
    """A-BROKER-37; remoting.md 4.3, check 1: from others producers leave by the routes, not by errors."""
    link = rig.link()
    topic = {"defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    topic |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    for name, order in (("Ordered", "true"), ("Other", "false")):
        (made,) = link.ask(encode_request(0, 17, 1, ext={**topic, "topic": name, "order": order})).values()
        assert made.code == 0
    rig.services.permission = 4
    more = {} if is_plain else {"DELAY": "1"}
    for name, code in (("Ordered", 16), ("Other", 0), ("New", 0)):
        fields = {key: str(value) for key, value in send_fields(name, properties=more).items()}
        (answer,) = link.ask(encode_request(0, 310, 2, ext=fields, body=b"x")).values()
        assert answer.code == code, name


def test_a_delay_level_comes_before_a_time_that_is_wrong(rig: RemotingRig) -> None:
    """docs/formats/delayed-messages.md; 5.x drops the time then."""
    for wrong in ({"TIMER_DELAY_SEC": "soon"}, {"TIMER_DELIVER_MS": "9" * 15}):
        assert rig.peer().ask(310, send_fields("T1", properties={"DELAY": "1", **wrong}), b"x").code == 0
        assert rig.peer().ask(310, send_fields("T1", properties=wrong), b"x").code == 13
    assert [message.body for message in rig.messages(SCHEDULE_TOPIC)] == [b"x", b"x"]


def test_a_time_beside_a_delay_level_keeps_nothing_back(rig: RemotingRig) -> None:
    """It counts for nothing: NSQ channels waited for it once the level was over."""
    subscription, channel = rig.subscribe("T1", "c")
    properties = {"DELAY": "1", "TIMER_DELIVER_MS": str(rig.clock.now_ms() + 3_600_000)}
    assert rig.peer().ask(310, send_fields("T1", properties=properties), b"x").code == 0
    assert rig.take(subscription, channel) == []
    rig.pass_time(5_000)
    assert [body for body, _, _ in rig.take(subscription, channel)] == [b"x"]


@pytest.mark.parametrize("code", [10, 310, 324, 325])
def test_properties_that_no_message_may_have_are_not_looked_at(rig: RemotingRig, code: int) -> None:
    """Parsed first, 14 MiB of them would hold the loop for a second."""
    properties = "a\x01b\x02" * 20_000
    fields = long_send_fields("T1", properties=properties) if code in (10, 324) else send_fields("T1", i=properties)
    reply = rig.peer().ask(code, fields, b"x")
    assert reply.code == 13
    assert "the properties have 80000 bytes" in reply.remark


def test_long_names_are_understood(rig: RemotingRig) -> None:
    """remoting.md 4.3: Go sends code 10 with long names."""
    assert rig.peer().ask(10, long_send_fields("T1"), b"hello").code == 0
    assert stored(rig, "T1").body == b"hello"


def test_negative_queue_id_chooses_one(rig: RemotingRig) -> None:
    """remoting.md 4.3 step 7."""
    reply = rig.peer().ask(310, send_fields("T1", queue_id=-1), b"x")
    assert reply.ext is not None
    assert 0 <= int(reply.ext["queueId"]) < 4


def test_born_data_flag_and_properties_are_kept(rig: RemotingRig) -> None:
    """remoting.md 2.1, 2.5: WAIT is dropped, CLUSTER added; names of the broker cannot be forged."""
    properties = {"TAGS": "A", "KEYS": "K1 K2", "WAIT": "true", "__CRC32#": "1", "CLUSTER": "other", "x": "y"}
    rig.peer(41_000).ask(310, send_fields("T1", properties=properties, h=7, f=13, j=2), b"zip")
    message = stored(rig, "T1")
    assert message.properties == {"TAGS": "A", "KEYS": "K1 K2", "x": "y", "CLUSTER": "C1"}
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, 1, 2)  # 4 and 8 are of transactions
    assert (message.born_ms, message.born_host) == (1_700_000_000_000, 0x0A000005 << 32 | 41_000)
    peer = rig.peer()
    peer.born_v6 = bytes(15) + b"\x01" + (41_000).to_bytes(4)
    peer.ask(310, send_fields("T2"), b"x")
    assert stored(rig, "T2").born_v6 == peer.born_v6


def test_batch_is_stored_whole(rig: RemotingRig) -> None:
    """remoting.md 2.9: ids joined with commas, offset of the first; own and common properties."""
    body = batch_body((b"b0", b"TAGS\x01A\x02"), (b"b1", b""))
    reply = rig.peer().ask(320, send_fields("T1", m="true", properties={"WAIT": "true", "c": "d"}), body)
    assert reply.ext is not None
    assert reply.ext["msgId"].count(",") == 1
    assert reply.ext["queueOffset"] == "0"
    assert stored(rig, "T1", 0, 0).properties == {"TAGS": "A", "c": "d", "CLUSTER": "C1"}
    assert stored(rig, "T1", 0, 1).body == b"b1"


@pytest.mark.parametrize("code", [10, 310])
@pytest.mark.parametrize("spelled", ["true", "True", "TRUE"])
def test_a_batch_is_one_however_that_is_spelled(rig: RemotingRig, code: int, spelled: str) -> None:
    """Java takes these for true; from the second send on it was stored as one message, with the batch as its body."""
    fields = long_send_fields("T1", batch=spelled) if code == 10 else send_fields("T1", m=spelled)
    texts = {name: str(value) for name, value in fields.items()}
    link = rig.link()
    for opaque in (1, 2):
        frame = encode_request(0, code, opaque, ext=texts, body=batch_body((b"one", b""), (b"two", b"")))
        assert link.ask(frame)[opaque].code == 0
    assert [message.body for message in rig.messages("T1")] == [b"one", b"two"] * 2


@pytest.mark.parametrize(("name", "value"), [("a", ""), ("l", "x"), ("l", "4294967296")])
def test_a_wrong_field_is_named_whether_or_not_the_topic_exists(rig: RemotingRig, name: str, value: str) -> None:
    """Issue 4, bad input: a send to a topic that exists does not pass where the first one did not."""
    link = rig.link()
    texts = {key: str(item) for key, item in send_fields("T1").items()}
    refused = encode_request(0, 310, 2, ext=texts | {name: value}, body=b"x")
    for _ in range(2):
        answer = link.ask(refused)[2]
        assert (answer.code, f"<{name}>" in answer.remark) == (1, True)
        assert link.ask(encode_request(0, 310, 1, ext=texts, body=b"x"))[1].code == 0


def test_what_a_batch_says_wins_over_its_messages(rig: RemotingRig) -> None:
    """remoting.md 2.9: the header's properties stand behind a message's own, and of one name the last counts."""
    fields = send_fields("T1", i="TAGS\x01all\x02k\x01header\x02")
    assert rig.peer().ask(320, fields, batch_body((b"b0", b"TAGS\x01own\x02mine\x01v\x02"))).code == 0
    assert stored(rig, "T1").properties == {"TAGS": "all", "mine": "v", "k": "header", "CLUSTER": "C1"}
    assert rig.broker.topics["T1"].queues[0].entries(0, 1)[0][2] == tag_hash("all")


def test_a_batch_whose_topic_is_new_is_bounded(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are taken one by one, and all in one turn of the loop."""
    monkeypatch.setattr("headrace.remoting.handlers.send.MAX_PARTS", 3)
    many = [(b"x", b"")] * 4
    reply = rig.peer().ask(320, send_fields("T1"), batch_body(*many))
    assert reply.code == 13
    assert "4 messages, at most 3 are accepted" in reply.remark
    assert rig.messages("T1") == []
    assert rig.peer().ask(320, send_fields("T1"), batch_body(*many[:3])).code == 0


@pytest.mark.parametrize("body", [b"", b"short", batch_body((b"x", b""))[:-1], b"\xff" * 40])
def test_malformed_batch_is_refused(rig: RemotingRig, body: bytes) -> None:
    """remoting.md 2.9; MESSAGE_ILLEGAL and nothing stored."""
    reply = rig.peer().ask(320, send_fields("T1", m="true"), body)
    assert reply.code == 13
    assert rig.broker.topics["T1"].queues[0].next_offset == 0


@pytest.mark.parametrize(
    "properties",
    [b"DELAY\x013\x02", b"TIMER_DELAY_SEC\x0160\x02", b"TRAN_MSG\x01true\x02", b"TIMER_DELIVER_MS\x01soon\x02"],
)
def test_no_message_of_a_batch_may_be_delayed(rig: RemotingRig, properties: bytes) -> None:
    """remoting.md 2.9: all or none, and none of them at once while it asks to wait."""
    reply = rig.peer().ask(320, send_fields("T1"), batch_body((b"b0", b""), (b"b1", properties)))
    assert reply.code == 13
    assert "T1" not in rig.broker.topics or rig.broker.topics["T1"].queues[0].next_offset == 0
    if not properties.startswith(b"TIMER_DELIVER_MS"):
        assert "message 1 is delayed or transactional" in (reply.remark or "")


@pytest.mark.parametrize(
    ("topic", "more"), [("T1", {"f": 4}), ("T1", {"f": 8}), ("%RETRY%G1", {}), ("T1", {"i": "TRAN_MSG\x01true\x02"})]
)
def test_batch_may_be_neither_transactional_nor_a_retry(rig: RemotingRig, topic: str, more: dict[str, object]) -> None:
    """remoting.md 2.9: the header says so; no topic is made for what is refused."""
    reply = rig.peer().ask(320, send_fields(topic, m="true") | more, batch_body((b"b0", b"")))
    assert reply.code == 13
    assert topic not in rig.broker.topics


def test_value_with_the_byte_that_ends_names(rig: RemotingRig) -> None:
    """remoting.md 2.5: split at the first 0x01, so the others belong to the value, whichever way a send goes."""
    for delay in ("", "DELAY\x011\x02"):
        assert rig.peer().ask(310, send_fields("T1") | {"i": "a\x01b\x01c\x02" + delay}, b"x").code == 0
    assert stored(rig, "T1").properties["a"] == "b\x01c"
    assert stored(rig, SCHEDULE_TOPIC).properties["a"] == "b\x01c"


def test_batch_may_not_be_delayed(rig: RemotingRig) -> None:
    """remoting.md 2.9."""
    fields = send_fields("T1", m="true", properties={"DELAY": "1"})
    assert rig.peer().ask(320, fields, batch_body((b"x", b""))).code == 13


def test_delayed_message_comes_when_its_level_is_over(rig: RemotingRig) -> None:
    """remoting.md 3.11."""
    reply = rig.peer().ask(310, send_fields("T1", queue_id=2, properties={"DELAY": "1"}), b"later")
    assert reply.code == 0
    assert reply.ext is not None
    assert reply.ext["queueId"] == "2"
    assert rig.broker.topics[SCHEDULE_TOPIC].queues[0].visible_offset == 1
    assert rig.broker.topics["T1"].queues[2].next_offset == 0
    rig.clock.advance_ms(1_100)
    rig.broker.tick()
    rig.store.flush()
    assert stored(rig, "T1", 2).body == b"later"


@pytest.mark.parametrize("level", ["soon", "3.5", "2147483648", "-2147483649", "9" * 5_000, "\u0663", "+"])
def test_delay_level_that_is_no_number_is_refused(rig: RemotingRig, level: str) -> None:
    """remoting.md 3.11: as RocketMQ does; delivered at once it would be the opposite of what was asked for."""
    reply = rig.peer().ask(310, send_fields("T1", properties={"DELAY": level}), b"later")
    assert reply.code == 13
    assert "property DELAY" in reply.remark
    assert rig.broker.topics["T1"].queues[0].next_offset == 0
    batch = batch_body((b"b0", b""), (b"b1", f"DELAY\x01{level}\x02".encode()))
    assert rig.peer().ask(320, send_fields("T1"), batch).code == 13


@pytest.mark.parametrize("level", ["19", "2147483647", "+2147483647", "0" * 5_000 + "100"])
def test_delay_level_above_the_last_is_the_last(rig: RemotingRig, level: str) -> None:
    """remoting.md 3.11: whatever an int of Java holds."""
    fields = {name: str(value) for name, value in send_fields("T1", i=f"DELAY\x01{level}\x02", queue_id=0).items()}
    rig.peer().ask(310, send_fields("T1"), b"makes the topic")
    assert rig.peer().ask(310, fields, b"one way").code == 0
    assert rig.link().ask(encode_request(0, 310, 1, ext=fields, body=b"the other"))[1].code == 0
    assert rig.broker.topics[SCHEDULE_TOPIC].queues[17].visible_offset == 2
    assert stored(rig, SCHEDULE_TOPIC, 17).properties["DELAY"] == "18"


@pytest.mark.parametrize("level", ["0", "-1", "+0", "", "-2147483648"])
def test_delay_level_that_asks_for_none(rig: RemotingRig, level: str) -> None:
    """remoting.md 3.11: only a level above 0 delays."""
    assert rig.peer().ask(310, send_fields("T1", properties={"DELAY": level}), b"now").code == 0
    assert stored(rig, "T1").body == b"now"


def test_message_with_a_time_of_its_own_waits_for_it(rig: RemotingRig) -> None:
    """remoting.md 2.6: TIMER_DELAY_SEC."""
    assert rig.peer().ask(310, send_fields("T1", properties={"TIMER_DELAY_SEC": "5"}), b"later").code == 0
    rig.broker.tick()
    assert rig.broker.topics[TIMER_TOPIC].queues[0].visible_offset == 1
    assert rig.broker.topics["T1"].queues[0].next_offset == 0
    rig.clock.advance_ms(5_100)
    for _ in range(3):
        rig.broker.tick()
        rig.store.flush()
    assert stored(rig, "T1").body == b"later"


def test_message_delayed_too_far_is_refused(rig: RemotingRig) -> None:
    """The refusal names broker.max_delay_ms."""
    reply = rig.peer().ask(310, send_fields("T1", properties={"TIMER_DELAY_SEC": str(10**9)}), b"x")
    assert reply.code == 13
    assert "broker.max_delay_ms" in reply.remark


@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}, {"DELAY": "1", "TIMER_DELAY_SEC": "5"}, {"TRAN_MSG": "true"}])
def test_a_message_that_is_not_timed_cancels_nothing(rig: RemotingRig, more: dict[str, str]) -> None:
    """To RocketMQ 4.9.7 and 5.5.0 it is a message like any other; a retry, or a copy, may have the property."""
    properties = {"TIMER_DEL_UNIQKEY": "0A00000500002A9F0000000000000001", "PGROUP": "G1", **more}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {name: str(value) for name, value in send_fields("T1", i=text).items()}
    assert rig.peer().ask(310, send_fields("T1", properties=properties), b"one more").code == 0
    assert rig.link().ask(encode_request(0, 310, 1, ext=fields, body=b"one more"))[1].code == 0


@pytest.mark.parametrize("more", [{"TIMER_DELAY_SEC": "5"}, {"TIMER_DELIVER_MS": "1"}])
def test_a_message_that_would_cancel_another_is_refused(rig: RemotingRig, more: dict[str, str]) -> None:
    """remoting.md 2.6, TIMER_DEL_UNIQKEY: RocketMQ 5 delivers neither; stored as one more, both would come."""
    rig.peer().ask(310, send_fields("T1"), b"makes the topic")
    end = rig.store.log.end_offset
    properties = {"TIMER_DEL_UNIQKEY": "0A00000500002A9F0000000000000001", **more}
    reply = rig.peer().ask(310, send_fields("T1", properties=properties), b"cancels")
    assert (reply.code, "TIMER_DEL_UNIQKEY" in reply.remark) == (13, True)
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    fields = {name: str(value) for name, value in send_fields("T1", i=text).items()}
    assert rig.link().ask(encode_request(0, 310, 1, ext=fields, body=b"cancels"))[1].code == 13
    assert rig.peer().ask(320, send_fields("T1"), batch_body((b"x", b""), (b"cancels", text.encode()))).code == 13
    assert rig.store.log.end_offset == end


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_message_with_a_negative_delay_is_delivered_at_once(rig: RemotingRig, name: str) -> None:
    """remoting.md 2.6: as one whose time is over."""
    assert rig.peer().ask(310, send_fields("T1", properties={name: "-5"}), b"now").code == 0
    assert stored(rig, "T1").body == b"now"


def test_half_message_is_hidden(rig: RemotingRig) -> None:
    """remoting.md 3.9: the answer's queue offset is that of the half queue, its queue the real one."""
    properties = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U1"}
    reply = rig.peer().ask(310, send_fields("T1", queue_id=2, f=4, properties=properties), b"half")
    assert reply.ext is not None
    assert reply.ext["transactionId"] == "U1"
    assert reply.ext["queueId"] == "2"
    assert reply.ext["queueOffset"] == "0"
    assert rig.broker.topics["T1"].queues[2].next_offset == 0
    assert stored(rig, HALF_TOPIC).body == b"half"


def test_own_retry_goes_to_the_dead_letters_after_too_many(rig: RemotingRig) -> None:
    """remoting.md 4.3 step 8: at reconsumeTimes >= max; the request's own maximum counts from version 121 on."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    fields = send_fields("%RETRY%G1", j=3, properties={"UNIQ_KEY": "U1"})
    assert peer.ask(310, fields, b"x").code == 0
    assert "%DLQ%G1" not in rig.broker.topics
    reply = peer.ask(310, fields | {"l": "3"}, b"dead")
    assert reply.ext is not None
    assert (reply.code, reply.ext["queueId"], reply.ext["queueOffset"]) == (0, "0", "0")
    assert stored(rig, "%DLQ%G1").body == b"dead"
    assert rig.services.messages.letters.counts == {"G1": 1}
    assert peer.ask(310, fields | {"l": "3"}, b"x", version=120).code == 0
    assert rig.services.messages.letters.counts == {"G1": 1}


def test_own_retry_of_a_group_that_is_not_there_makes_no_topic(rig: RemotingRig) -> None:
    """A-BROKER-29: an unknown group gets an error, nothing is stored."""
    assert rig.peer().ask(310, send_fields("%RETRY%G9", j=1), b"x").code == 26
    assert "%RETRY%G9" not in rig.broker.topics


def test_statistics_count_what_was_put(rig: RemotingRig) -> None:
    """A-BROKER-50: failed operations do not count."""
    peer = rig.peer()
    peer.ask(310, send_fields("T1"), b"hello")
    peer.ask(310, send_fields("a.b"), b"hello")
    assert rig.services.throughput.put == 1
    assert rig.services.statistics.keys("TOPIC_PUT_NUMS") == ["T1"]


def test_own_retry_of_a_message_that_was_a_half_message(rig: RemotingRig) -> None:
    """Clients send all properties of what they got, TRAN_MSG among them: nobody would ever commit it again."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    fields = send_fields("%RETRY%G1", j=1, f=0, properties={"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U1"})
    assert peer.ask(310, fields, b"again").code == 0
    assert peer.ask(10, long_send_fields("%RETRY%G1", properties="TRAN_MSG\x01true\x02"), b"and again").code == 0
    assert peer.ask(310, fields | {"l": "1"}, b"dead").code == 0
    assert rig.services.messages.transactions.open_count == 0
    assert [stored(rig, "%RETRY%G1", index=number).body for number in range(2)] == [b"again", b"and again"]
    assert stored(rig, "%DLQ%G1").body == b"dead"


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_dead_letter_is_not_delayed(rig: RemotingRig, name: str) -> None:
    """Whatever made the message wait before it was delivered the first time."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    value = str(rig.clock.now_ms() + 5_000) if name == "TIMER_DELIVER_MS" else "5"
    fields = send_fields("%RETRY%G1", j=3, l=3, properties={name: value, "k": "v"})
    assert peer.ask(310, fields, b"dead").code == 0
    assert stored(rig, "%DLQ%G1").properties == {"k": "v", "CLUSTER": "C1"}


def test_dead_letter_that_is_not_stored_raises_no_alarm(rig: RemotingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer sends it again."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    rig.services.messages.retries.ensure_dead_letter_topic("G1")
    fields = send_fields("%RETRY%G1", j=3, l=3)

    def refuse(*args: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("headrace.remoting.handlers.send.put", refuse)
        assert peer.ask(310, fields, b"dead").code == 14
    assert rig.services.messages.letters.total == 0
    assert peer.ask(310, fields, b"dead").code == 0
    assert rig.services.messages.letters.total == 1


def test_every_send_is_counted_for_its_host(rig: RemotingRig) -> None:
    """The first send to a new topic, a batch there, a half message and a consumer's retry are none of nobody's."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    half = {"TRAN_MSG": "true", "PGROUP": "P1", "UNIQ_KEY": "U1"}
    for code, fields, body in (
        (310, send_fields("New"), b"abc"),
        (320, send_fields("Batch"), batch_body((b"a", b""), (b"bc", b""))),
        (310, send_fields("Half", f=4, properties=half), b"abc"),
        (310, send_fields("%RETRY%G1", j=1), b"abc"),
    ):
        assert peer.ask(code, fields, body).code == 0
    counted = rig.services.statistics.take_counted()
    assert {(one.call.topic, one.call.host, one.messages, one.bytes) for one in counted} == {
        ("New", peer.host, 1, 3),
        ("Batch", peer.host, 2, 3),
        ("Half", peer.host, 1, 3),
        ("%RETRY%G1", peer.host, 1, 3),
    }


@pytest.mark.parametrize("name", ["d", "e", "f", "g", "h", "j", "l"])
def test_empty_numbers_of_a_send_are_refused_under_short_names(rig: RemotingRig, name: str) -> None:
    """Also those that may be missing: RocketMQ 4.9.7 takes an empty one for none under long names alone."""
    peer, link = rig.peer(), rig.link()
    peer.ask(310, send_fields("T1"), b"x")
    for serialize in (0, 1):
        for topic in ("T1", "New"):
            ext = {key: str(value) for key, value in send_fields(topic).items()} | {name: ""}
            answer = link.ask(encode_request(serialize, 310, 7, ext=ext, body=b"x"))[7]
            assert (answer.code, f"<{name}>" in answer.remark) == (1, True)
    assert peer.ask(10, long_send_fields("T1", reconsumeTimes="", maxReconsumeTimes=""), b"x").code == 0


@pytest.mark.parametrize("name", ["e", "f", "h", "j", "d"])
@pytest.mark.parametrize("value", [-(1 << 31) - 1, 1 << 31])
def test_numbers_of_a_send_are_of_32_bits(rig: RemotingRig, name: str, value: int) -> None:
    """A record has no room for others: below the least one was a bug, or cut without a word."""
    peer = rig.peer()
    peer.heartbeat("c1", group="G1")
    reply = peer.ask(310, send_fields("%RETRY%G1") | {name: value}, b"x")
    assert (reply.code, f"<{name}>" in reply.remark) == (1, True)
