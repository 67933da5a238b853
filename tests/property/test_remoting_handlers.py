"""Whatever a client puts into a request, no handler fails by a bug. Issue "Bad input"."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError, RequestError, StoreError
from headrace.remoting.codec import Command
from headrace.remoting.codes import RequestCode
from headrace.remoting.handlers.table import SERVED
from tests.support.exactly_once import encode_rows
from tests.support.remoting import RemotingRig, handle, long_send_fields, send_fields, subscription
from tests.support.steps import all_of

VALID = {
    **{name: str(value) for name, value in send_fields("T1").items()},
    **{name: str(value) for name, value in long_send_fields("T1").items()},
    **dict.fromkeys(("consumerGroup", "group", "srcGroup", "groupName"), "G1"),
    **dict.fromkeys(("producerGroup", "key", "statsKey"), "P1"),
    **dict.fromkeys(("clientID", "clientId"), "c1"),
    **dict.fromkeys(("queueId", "index", "beginTimestamp", "delayLevel", "tranStateTableOffset", "commitOffset"), "0"),
    **dict.fromkeys(("offset", "commitLogOffset", "timestamp", "endTimestamp"), "300"),
    **dict.fromkeys(("readQueueNums", "writeQueueNums", "count", "maxNum", "maxReconsumeTimes"), "4"),
    **dict.fromkeys(("epoch", "partition", "attempt", "seq", "bornTimestamp", "sysFlag"), "0"),
    "txn": "q1",
    "semantics": "sequence",
    "decision": "commit",
    "destGroup": "G2",
    "statsName": "TOPIC_PUT_NUMS",
    "commitOrRollback": "8",
    "perm": "6",
}
VALUES = [
    *("", "0", "1", "-1", "7", "x", "true", "T1", "G1", "P1", "%RETRY%G1", "%DLQ%G1", "%RETRY%", "TBW102", "c1"),
    *("../../etc", "a.b", "SCHEDULE_TOPIC_XXXX", "%SYS%CONTROL", "9" * 25, str(2**31), str(2**63), str(-(2**63))),
    *("TAGS\x01A\x02", "DELAY\x01" + "9" * 12 + "\x02", "TRAN_MSG\x01true\x02PGROUP\x01P1\x02", "DELAY\x013\x02"),
    *("TIMER_DELIVER_MS\x01x\x02", "TIMER_DELAY_SEC\x01" + "9" * 15 + "\x02", "a\x01b\x01c\x02", "\x01\x02\x01"),
    *("key", "stage", "abort"),
    *("\udcff", "0" * 32, "F" * 32, "8", "12", "UPPER", "QUEUE_PUT_NUMS", "topic@G1"),
]
EXT = st.builds(
    lambda changes, missing: {name: value for name, value in (VALID | changes).items() if name not in missing},
    st.dictionaries(st.sampled_from(sorted(VALID)), st.sampled_from(VALUES), max_size=3),
    st.sets(st.sampled_from(sorted(VALID)), max_size=1),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["topic", "x"]), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.dictionaries(
    st.sampled_from(
        [
            "clientID",
            "producerDataSet",
            "consumerDataSet",
            "groupName",
            "consumerGroup",
            "clientId",
            "mqSet",
            "subscriptionData",
            "retryMaxTimes",
            "retryQueueNums",
        ]
    ),
    JSON
    | st.lists(st.fixed_dictionaries({"groupName": JSON, "subscriptionDataSet": st.lists(st.just(subscription("T1")))}))
    | st.lists(st.fixed_dictionaries({"topic": JSON, "queueId": JSON})),
)
ROWS = [
    encode_rows([(b"b", {"UNIQ_KEY": f"k{row}", **properties}) for row in range(4)])
    for properties in ({}, {"DELAY": "2"}, {"DELAY": "x"}, {"TIMER_DELAY_MS": "-1"}, {"TRAN_MSG": "true"})
]
BODIES = (
    st.binary(max_size=60)
    | st.sampled_from(
        [*ROWS, encode_rows([(b"", {})] * 4), ROWS[0][:-1], b'{"chosen":[{"partition":0,"attempt":0,"count":4}]}']
    )
    | MEMBERS.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([b"", b"{}", b"[]", b"key=value", b"brokerPermission=99999999", b'{"$ref":"$"}', b"{" * 500])
)

NEED_A_CONNECTION = {
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.READ_LOG,
    RequestCode.READ_QUEUE,
}
"""Answered through the connection's own queue: tests/unit/remoting has theirs."""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingRig]:
    rig = RemotingRig(Path(tmp_path_factory.mktemp("store")), {"max_topics": 50, "max_groups": 50})
    peer = rig.peer()
    peer.heartbeat("c1", subscription("T1"), group="G1", producer="P1")
    peer.ask(310, send_fields("T1", properties={"KEYS": "K"}), b"x")
    yield rig
    rig.close()


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(sorted(SERVED - NEED_A_CONNECTION)),
    ext=EXT,
    body=BODIES,
    version=st.sampled_from([0, 120, 409, 32767]),
)
def test_no_request_finds_a_bug(rig: RemotingRig, code: int, ext: dict[str, str], body: bytes, version: int) -> None:
    """A refusal names what is wrong; anything but a refusal or an answer is a bug."""
    peer = rig.peer()
    command = Command(code, ext, body, version=version, language="JAVA")
    refusal: Exception | None = None
    reply = None
    try:
        done = handle(peer, command)
        reply = all_of(done) if isinstance(done, Generator) else done
    except (RequestError, StoreError, ProtocolError) as error:
        refusal = error
    assert refusal is None or str(refusal)
    assert reply is None or reply.code == 0 or reply.remark
    rig.services.permission = 6
