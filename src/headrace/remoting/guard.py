"""Access control of the RocketMQ protocol: who sends a request, and whether that user may.

A request that carries an access key or a signature is judged by them alone; where it carries neither, the address it
comes from may stand for a user of the rule file, which is counted and logged. What each request needs is a table:
``BROKER_NEEDS`` and ``REGISTRY_NEEDS``. A request that is not in them needs a known user and nothing more.

Ref: remoting.md 7.1; docs/access.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.access import Action
from headrace.errors import AccessDeniedError
from headrace.format.names import TRACE_TOPIC
from headrace.log_pace import LogPace
from headrace.remoting.bodies import member_list, read_entries, read_entry, read_outline
from headrace.remoting.codes import RequestCode as Code
from headrace.remoting.codes import request_name
from headrace.remoting.reply import RequestRefusedError
from headrace.remoting.signature import ACCESS_KEY, SIGNATURE, is_signed_with

if TYPE_CHECKING:
    from headrace.broker.access import AccessRules, User
    from headrace.clock import Clock
    from headrace.remoting.codec import Command

logger = logging.getLogger(__name__)

LONGEST_LOGGED: Final = 500
"""Characters of one such line that the request may have chosen."""


class Need(NamedTuple):
    """A right that a request takes."""

    action: Action
    topic: str = ""
    group: str = ""


Needs = Callable[["Command"], Iterable[Need]]


class Guard:
    """Decides for one listener.

    Refusals are logged, one a minute for each address: Java's clients only say that a topic has no route when it is
    a registry that refuses them.

    Attributes:
        refusals: Refused requests by why.
        unsigned: Commands taken without a signature because of their address, by user.
    """

    def __init__(self, rules: AccessRules, needs: Mapping[int, Needs], clock: Clock) -> None:
        self.refusals: Counter[str] = Counter()
        self.unsigned: Counter[str] = Counter()
        self._rules = rules
        self._needs = needs
        self._pace = LogPace(clock)  # by address

    def admit(self, request: Command, host: str) -> User:
        """Accept a request from the IP address ``host``; return whose it is.

        Raises:
            AccessDeniedError: it is not to be done.
        """
        user = self.identify(request, host)
        needs = self._needs.get(request.code)
        for need in needs(request) if needs else ():
            self.require(user, need, request.code, host)
        return user

    def require(self, user: User, need: Need, code: int, host: str) -> None:
        """Accept a request whose sender has a right: for what only its handler knows that it takes.

        Raises:
            AccessDeniedError: the sender has it not.
        """
        try:
            user.require(need.action, topic=need.topic, group=need.group)
        except AccessDeniedError as error:
            raise self._deny("no_right", f"{error} ({request_name(code)}, code {code})", host) from None

    def identify(self, request: Command, host: str) -> User:
        """Return who sends a request.

        Raises:
            AccessDeniedError: nobody that the rules know.
        """
        ext = request.ext
        access_key = ext.get(ACCESS_KEY, "")
        if not access_key and SIGNATURE not in ext:
            return self.user_of_address(request.code, host)
        user = self._rules.user_of_key(access_key)
        if user is None:
            raise self._deny("unknown_key", f"no user has the access key {access_key[:64]!r}", host)
        if not is_signed_with(user.secret_key, ext, request.body or b""):
            raise self._deny("bad_signature", f"the signature is not the one of access key {access_key!r}", host)
        return user

    def user_of_address(self, code: int, host: str) -> User:
        """Return whom an unsigned request from ``host`` is taken for.

        Raises:
            AccessDeniedError: the rules name nobody for this address.
        """
        user = self._rules.user_of_address(host)
        if user is None:
            name = request_name(code)
            raise self._deny("unsigned", f"{name} from {host or 'here'} is not signed: an access key is needed", host)
        if not self.unsigned[user.name]:
            logger.warning(
                "requests without a signature are accepted from an address of the rule file user=%s address=%s",
                user.name,
                host,
            )
        self.unsigned[user.name] += 1
        return user

    def _deny(self, why: str, text: str, host: str) -> AccessDeniedError:
        self.refusals[why] += 1
        if self._pace.is_due(host):
            count = self.refusals.total()
            said = text[:LONGEST_LOGGED]
            logger.warning("request refused by the access rules address=%s refused=%d: %s", host, count, said)
        return AccessDeniedError(text)


# -- what requests need ------------------------------------------------------------------------------------------------


def _admin(_request: Command) -> Iterable[Need]:
    return (Need(Action.ADMIN),)


def _publish(field: str) -> Needs:
    return lambda request: (Need(Action.PUBLISH, request.ext.get(field, "")),)


def _send(field: str) -> Needs:
    """Clients send their message traces as the user whose messages they are about: everybody may, as with RocketMQ."""
    publish = _publish(field)
    return lambda request: () if request.ext.get(field) == TRACE_TOPIC else publish(request)


def _subscribe(*, topic: str = "", group: str = "") -> Needs:
    def needs(request: Command) -> Iterable[Need]:
        ext = request.ext
        return (Need(Action.SUBSCRIBE, ext.get(topic, "") if topic else "", ext.get(group, "") if group else ""),)

    return needs


def _heartbeat(request: Command) -> Iterator[Need]:
    """Every group, and every topic it subscribes to; read as its handler does, which refuses what cannot be read so."""
    most = len(request.body)  # the handler has the bound
    with contextlib.suppress(RequestRefusedError):
        for row in member_list(read_outline(request.body, "consumerDataSet"), "consumerDataSet", most, ""):
            group = read_entry(row, "subscriptionDataSet")
            yield Need(Action.SUBSCRIBE, group=str(group.get("groupName") or ""))
            entries = member_list(group, "subscriptionDataSet", most, "")
            for subscription in read_entries(entries, "subscriptionDataSet"):
                yield Need(Action.SUBSCRIBE, topic=str(subscription.get("topic") or ""))


def _read_log(request: Command) -> Iterable[Need]:
    return Need(Action.READ_LOG), Need(Action.SUBSCRIBE, group=request.ext.get("group", ""))


def _group_of_body(request: Command) -> Iterator[Need]:
    try:
        body = read_outline(request.body, "mqSet")
    except RequestRefusedError:
        body = {}  # the handler refuses it in the same way
    yield Need(Action.SUBSCRIBE, group=str(body.get("consumerGroup") or ""))


BROKER_NEEDS: Final[Mapping[int, Needs]] = {
    Code.SEND_MESSAGE: _send("topic"),
    Code.SEND_MESSAGE_V2: _send("b"),
    Code.SEND_BATCH_MESSAGE: _publish("b"),
    Code.SEND_REPLY_MESSAGE: _publish("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _publish("b"),
    Code.CONSUMER_SEND_MSG_BACK: _subscribe(group="group"),
    Code.PULL_MESSAGE: _subscribe(topic="topic", group="consumerGroup"),
    Code.LITE_PULL_MESSAGE: _subscribe(topic="topic", group="consumerGroup"),
    Code.QUERY_MESSAGE: _subscribe(topic="topic"),
    Code.QUERY_CONSUMER_OFFSET: _subscribe(topic="topic", group="consumerGroup"),
    Code.UPDATE_CONSUMER_OFFSET: _subscribe(topic="topic", group="consumerGroup"),
    Code.UNREGISTER_CLIENT: _subscribe(group="consumerGroup"),
    Code.GET_CONSUMER_LIST_BY_GROUP: _subscribe(group="consumerGroup"),
    Code.HEART_BEAT: _heartbeat,
    Code.READER_STATE: _subscribe(group="group"),
    Code.READ_LOG: _read_log,
    Code.READ_QUEUE: _subscribe(topic="topic", group="group"),
    Code.SEND_SEQUENCED: _publish("topic"),
    # END_BATCH names no topic: its handler asks for the right to send to each topic of the batch. So do those of
    # CONSUMER_SEND_MSG_BACK and VIEW_MESSAGE_BY_ID, for the right to read the topic of the message at the offset, and
    # that of READER_STATE, for what its body names.
    Code.LOCK_BATCH_MQ: _group_of_body,
    Code.UNLOCK_BATCH_MQ: _group_of_body,
    **dict.fromkeys(
        (
            Code.UPDATE_AND_CREATE_TOPIC,
            Code.UPDATE_AND_CREATE_TOPIC_LIST,
            Code.UPDATE_BROKER_CONFIG,
            Code.GET_BROKER_CONFIG,
            Code.UPDATE_AND_CREATE_ACL_CONFIG,
            Code.DELETE_ACL_CONFIG,
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            Code.DELETE_SUBSCRIPTIONGROUP,
            Code.DELETE_TOPIC_IN_BROKER,
            Code.RESET_CONSUMER_CLIENT_OFFSET,
            Code.INVOKE_BROKER_TO_RESET_OFFSET,
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.CONSUME_MESSAGE_DIRECTLY,
            Code.CLONE_GROUP_OFFSET,
            Code.CLEAN_UNUSED_TOPIC,
            Code.QUERY_CONSUME_QUEUE,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.SET_MESSAGE_REQUEST_MODE,
        ),
        _admin,
    ),
}

REGISTRY_NEEDS: Final[Mapping[int, Needs]] = dict.fromkeys(
    (
        Code.PUT_KV_CONFIG,
        Code.DELETE_KV_CONFIG,
        Code.REGISTER_BROKER,
        Code.UNREGISTER_BROKER,
        Code.QUERY_DATA_VERSION,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
        Code.DELETE_TOPIC_IN_NAMESRV,
        Code.REGISTER_TOPIC_IN_NAMESRV,
        Code.UPDATE_NAMESRV_CONFIG,
    ),
    _admin,
)
