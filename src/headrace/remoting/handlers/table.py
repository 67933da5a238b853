"""The table of request codes: what the broker does for each.

A handler takes the peer and the command and returns the response, or None when it answers later; what may take long
is done in parts (``large_requests``). It raises a ``RequestError`` or ``StoreError`` to refuse. A code that is not here
is answered REQUEST_CODE_NOT_SUPPORTED.

Ref: remoting.md 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.remoting.codes import RequestCode as Code
from headrace.remoting.handlers import (
    clients,
    consumers,
    groups,
    messages,
    offsets,
    pull,
    queue_locks,
    reader,
    reply,
    send,
    sequenced,
    statistics,
    topics,
    transactions,
)
from headrace.remoting.handlers.gathered import Gathered
from headrace.remoting.reply import Parts, Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

Handler = Callable[["Peer", "Command"], Reply | Parts | None]


def _in_turns(gather: Callable[[Peer, Command], Parts]) -> Handler:
    """Return a handler whose answer is gathered in turns of the loop, while its connection's other requests go on."""
    return lambda peer, command: peer.services.long_answers.begin(peer, command, gather(peer, command))


GATHERED: Final[Mapping[int, Gathered]] = {
    Code.END_TRANSACTION: transactions.end_transaction,
    Code.CONSUMER_SEND_MSG_BACK: messages.send_back,
}
"""Those of which the ones of a read are written together; they are in no other table."""

HANDLERS: Final[Mapping[int, Handler]] = {
    # sending
    Code.SEND_MESSAGE: send.send,
    Code.SEND_MESSAGE_V2: send.send,
    Code.SEND_BATCH_MESSAGE: send.send,
    Code.SEND_SEQUENCED: sequenced.send_sequenced,
    Code.END_BATCH: sequenced.end_batch,
    Code.SEND_REPLY_MESSAGE: reply.send_reply,
    Code.SEND_REPLY_MESSAGE_V2: reply.send_reply,
    # consumers
    Code.PULL_MESSAGE: pull.pull_command,
    Code.LITE_PULL_MESSAGE: pull.pull_command,
    Code.READER_STATE: reader.reader_state,
    Code.READ_LOG: reader.read_log,
    Code.READ_QUEUE: reader.read_queue,
    Code.HEART_BEAT: clients.heart_beat,
    Code.UNREGISTER_CLIENT: clients.unregister_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: clients.get_consumer_list,
    Code.CHECK_CLIENT_CONFIG: clients.check_client_config,
    Code.LOCK_BATCH_MQ: queue_locks.lock_queues,
    Code.UNLOCK_BATCH_MQ: queue_locks.unlock_queues,
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    # queues
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset,
    Code.GET_MAX_OFFSET: offsets.get_max_offset,
    Code.GET_MIN_OFFSET: offsets.get_min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_store_time,
    Code.VIEW_MESSAGE_BY_ID: messages.view_message,
    Code.QUERY_MESSAGE: messages.query_message,
    # offsets
    Code.GET_ALL_DELAY_OFFSET: statistics.get_all_delay_offsets,
    Code.GET_ALL_CONSUMER_OFFSET: _in_turns(offsets.get_all_consumer_offset),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: offsets.reset_offset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets.get_consumer_status,
    Code.CLONE_GROUP_OFFSET: offsets.clone_group_offset,
    # topics
    Code.UPDATE_AND_CREATE_TOPIC: topics.update_topic,
    Code.DELETE_TOPIC_IN_BROKER: topics.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: _in_turns(topics.get_all_topic_config),
    Code.GET_TOPIC_CONFIG: topics.get_topic_config,
    Code.GET_TOPIC_STATS_INFO: topics.get_topic_stats,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: topics.get_consumers_of_topic,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: topics.get_system_topics,
    Code.QUERY_CONSUME_QUEUE: topics.query_consume_queue,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: topics.clean,
    Code.CLEAN_UNUSED_TOPIC: topics.clean,
    Code.DELETE_EXPIRED_COMMITLOG: topics.clean,
    # groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _in_turns(groups.get_all_groups),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get_group,
    Code.DELETE_SUBSCRIPTIONGROUP: groups.delete_group,
    Code.GET_CONSUMER_CONNECTION_LIST: groups.get_consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: groups.get_producer_connections,
    Code.GET_ALL_PRODUCER_INFO: _in_turns(groups.get_all_producers),
    Code.GET_CONSUME_STATS: _in_turns(groups.get_consume_stats),
    Code.QUERY_CONSUME_TIME_SPAN: groups.get_time_span,
    Code.GET_BROKER_CONSUME_STATS: _in_turns(groups.get_broker_consume_stats),
    Code.GET_CONSUMER_RUNNING_INFO: consumers.get_running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: consumers.consume_directly,
    # the broker
    Code.GET_BROKER_RUNTIME_INFO: statistics.get_runtime_info,
    Code.VIEW_BROKER_STATS_DATA: statistics.view_stats,
    Code.GET_BROKER_CONFIG: statistics.get_config,
    Code.UPDATE_BROKER_CONFIG: statistics.update_config,
}

SERVED: Final = HANDLERS.keys() | GATHERED.keys()
"""Codes of the requests that are done."""
