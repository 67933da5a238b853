"""The table of request codes: what the broker does for each.

A handler takes the peer and the command and returns the response, or None when it answers later. It raises a
``RequestError`` or ``StoreError`` to refuse. A code that is not here is answered REQUEST_CODE_NOT_SUPPORTED.

Ref: remoting.md 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headrace.remoting import (
    handlers_clients,
    handlers_consumers,
    handlers_groups,
    handlers_messages,
    handlers_offsets,
    handlers_pull,
    handlers_reader,
    handlers_reply,
    handlers_send,
    handlers_sequenced,
    handlers_statistics,
    handlers_topics,
    handlers_transactions,
)
from headrace.remoting.codes import RequestCode as Code
from headrace.remoting.gathered import Gathered, alone
from headrace.remoting.reply import Reply

if TYPE_CHECKING:
    from headrace.remoting.codec import Command
    from headrace.remoting.peer import Peer

Handler = Callable[["Peer", "Command"], Reply | None]

GATHERED: Final[Mapping[int, Gathered]] = {
    Code.END_TRANSACTION: handlers_transactions.end_transaction,
    Code.CONSUMER_SEND_MSG_BACK: handlers_messages.send_back,
}
"""Those of which the ones of a read are written together."""

HANDLERS: Final[Mapping[int, Handler]] = {
    # sending
    Code.SEND_MESSAGE: handlers_send.send,
    Code.SEND_MESSAGE_V2: handlers_send.send,
    Code.SEND_BATCH_MESSAGE: handlers_send.send,
    Code.SEND_SEQUENCED: handlers_sequenced.send_sequenced,
    Code.END_BATCH: handlers_sequenced.end_batch,
    Code.SEND_REPLY_MESSAGE: handlers_reply.send_reply,
    Code.SEND_REPLY_MESSAGE_V2: handlers_reply.send_reply,
    Code.END_TRANSACTION: alone(handlers_transactions.end_transaction),
    Code.CONSUMER_SEND_MSG_BACK: alone(handlers_messages.send_back),
    # consumers
    Code.PULL_MESSAGE: handlers_pull.pull_command,
    Code.LITE_PULL_MESSAGE: handlers_pull.pull_command,
    Code.READER_STATE: handlers_reader.reader_state,
    Code.READ_LOG: handlers_reader.read_log,
    Code.READ_QUEUE: handlers_reader.read_queue,
    Code.HEART_BEAT: handlers_clients.heart_beat,
    Code.UNREGISTER_CLIENT: handlers_clients.unregister_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: handlers_clients.get_consumer_list,
    Code.CHECK_CLIENT_CONFIG: handlers_clients.check_client_config,
    Code.LOCK_BATCH_MQ: handlers_clients.lock_queues,
    Code.UNLOCK_BATCH_MQ: handlers_clients.unlock_queues,
    Code.QUERY_CONSUMER_OFFSET: handlers_offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: handlers_offsets.update_consumer_offset,
    # queues
    Code.SEARCH_OFFSET_BY_TIMESTAMP: handlers_offsets.search_offset,
    Code.GET_MAX_OFFSET: handlers_offsets.get_max_offset,
    Code.GET_MIN_OFFSET: handlers_offsets.get_min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: handlers_offsets.get_earliest_store_time,
    Code.VIEW_MESSAGE_BY_ID: handlers_messages.view_message,
    Code.QUERY_MESSAGE: handlers_messages.query_message,
    # offsets
    Code.GET_ALL_DELAY_OFFSET: handlers_statistics.get_all_delay_offsets,
    Code.GET_ALL_CONSUMER_OFFSET: handlers_offsets.get_all_consumer_offset,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: handlers_offsets.reset_offset,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: handlers_offsets.get_consumer_status,
    Code.CLONE_GROUP_OFFSET: handlers_offsets.clone_group_offset,
    # topics
    Code.UPDATE_AND_CREATE_TOPIC: handlers_topics.update_topic,
    Code.DELETE_TOPIC_IN_BROKER: handlers_topics.delete_topic,
    Code.GET_ALL_TOPIC_CONFIG: handlers_topics.get_all_topic_config,
    Code.GET_TOPIC_CONFIG: handlers_topics.get_topic_config,
    Code.GET_TOPIC_STATS_INFO: handlers_topics.get_topic_stats,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: handlers_topics.get_consumers_of_topic,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: handlers_topics.get_system_topics,
    Code.QUERY_CONSUME_QUEUE: handlers_topics.query_consume_queue,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: handlers_topics.clean,
    Code.CLEAN_UNUSED_TOPIC: handlers_topics.clean,
    Code.DELETE_EXPIRED_COMMITLOG: handlers_topics.clean,
    # groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: handlers_groups.update_group,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: handlers_groups.get_all_groups,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: handlers_groups.get_group,
    Code.DELETE_SUBSCRIPTIONGROUP: handlers_groups.delete_group,
    Code.GET_CONSUMER_CONNECTION_LIST: handlers_groups.get_consumer_connections,
    Code.GET_PRODUCER_CONNECTION_LIST: handlers_groups.get_producer_connections,
    Code.GET_ALL_PRODUCER_INFO: handlers_groups.get_all_producers,
    Code.GET_CONSUME_STATS: handlers_groups.get_consume_stats,
    Code.QUERY_CONSUME_TIME_SPAN: handlers_groups.get_time_span,
    Code.GET_BROKER_CONSUME_STATS: handlers_groups.get_broker_consume_stats,
    Code.GET_CONSUMER_RUNNING_INFO: handlers_consumers.get_running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: handlers_consumers.consume_directly,
    # the broker
    Code.GET_BROKER_RUNTIME_INFO: handlers_statistics.get_runtime_info,
    Code.VIEW_BROKER_STATS_DATA: handlers_statistics.view_stats,
    Code.GET_BROKER_CONFIG: handlers_statistics.get_config,
    Code.UPDATE_BROKER_CONFIG: handlers_statistics.update_config,
}
