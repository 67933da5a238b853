"""What is fuzzed of pulls: reads of those that were checked before, which are taken over in compiled code."""

from __future__ import annotations

import atexit
import shutil
from typing import Any, Final

from headrace.remoting.codec import PullRequest, Reader, encode_request
from headrace.remoting.reading.known_pulls import KnownPulls
from tests.fuzz.store_targets import scratch
from tests.support.remoting import RemotingRig, send_fields

FIELDS: Final[dict[str, object]] = {
    "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 5,
    "commitOffset": 1, "suspendTimeoutMillis": 0, "subVersion": 1, "subscription": "*", "expressionType": "TAG",
}  # fmt: skip
PULLS: Final = frozenset((11, 361))


class _Forgetful(KnownPulls):
    """Knows nothing, so that every pull is checked."""

    def answer(self, request: PullRequest, host: str) -> bytes | None:
        return None

    def answer_run(self, reader: Reader, host: str) -> bytes | None:
        return None


def frame(number: int, **changes: object) -> bytes:
    """Return a pull like the known one but for some fields."""
    return encode_request(0, 11, number, ext={name: str(value) for name, value in (FIELDS | changes).items()})


class _Side:
    """One broker, made anew when anything but a pull was asked of it."""

    def __init__(self, name: str, *, is_known: bool) -> None:
        self._folder = scratch() / name
        self._is_known = is_known
        self._rig: RemotingRig | None = None
        atexit.register(self.close)

    def answers(self, step: int, data: bytes) -> Any:
        """Return what a client gets that has pulled twice and sends these bytes then."""
        if self._rig is None:
            self._rig = RemotingRig(self._folder, {"statistics_records": False})
            self._fill(self._rig)
        link = self._rig.link()
        if not self._is_known:
            server = link.server
            server.known_pulls = _Forgetful(server.services, server.counters, server.records)
            link.connection.takers = ()
        link.send(frame(1) + frame(2))
        seen: list[Any] = []
        for at in range(0, len(data), step):
            if link.transport.closed or not link.transport.reading:
                break
            seen += link.send(data[at : at + step])
            link.loop.come_round()
        link.server.joint_sends.end_turn()
        self._rig.store.flush()
        seen += link.taken()
        counters = link.server.counters
        is_changed = bool(counters.sends or counters.requests.keys() - PULLS)
        offsets = self._rig.services.offsets.queues("G", "T")
        answers = sorted((each.opaque, each.code, each.remark, sorted(each.ext.items()), each.body) for each in seen)
        outcome = answers, link.connection.cause, offsets, counters.messages_out, dict(counters.requests)
        link.transport.abort()
        if is_changed:
            self.close()
        return outcome

    def close(self) -> None:
        """Have the next answers come from another broker."""
        if self._rig is not None:
            self._rig.close()
            self._rig = None
            shutil.rmtree(self._folder)

    @staticmethod
    def _fill(rig: RemotingRig) -> None:
        link = rig.link()
        topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        rig.peer().ask(17, topic | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"})
        for number in range(6):
            fields = send_fields("T", queue_id=number % 2, properties={"TAGS": "ab"[number // 2 % 2]})
            link.ask(encode_request(0, 310, number, ext={k: str(v) for k, v in fields.items()}, body=b"%d" % number))


_sides: Final = [_Side("known", is_known=True), _Side("checked", is_known=False)]


def known_pulls(data: bytes) -> None:
    """Pulls that were checked before get what another check would find, and so does what comes among them."""
    step, stream = (data[0] or 256) if data else 1, data[1:]
    known, checked = (side.answers(step, stream) for side in _sides)
    assert known == checked, (known, checked)


def seeds() -> dict[str, list[bytes]]:
    """Return the first inputs of each target by its name."""
    run = b"".join(frame(number, queueOffset=number % 4, queueId=number % 2) for number in range(5))
    changed = frame(7, subscription="a") + frame(8, sysFlag=1) + frame(9, maxMsgNums=1, commitOffset=3)
    other = encode_request(0, 30, 10, ext={"topic": "T", "queueId": "0"})
    return {"known_pulls": [b"\0" + run, b"\0" + run + other + run, b"\x65" + run, b"\0" + changed + run[:-7]]}
