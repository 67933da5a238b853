"""Committing offsets of a consumer group as tools do, one queue at a time."""

from __future__ import annotations

from headrace.errors import RemotingRefusedError
from headrace.remoting.blocking import Cluster
from headrace.remoting.codes import RequestCode, ResponseCode


def update_offset(
    cluster: Cluster, broker: str, group: str, topic: str, queue_id: int, offset: int, *, durable: bool = False
) -> None:
    """Commit the next offset that a group reads; RocketMQ 5 takes it of a group that it knows only."""
    ext = {"topic": topic, "queueId": str(queue_id), "consumerGroup": group, "commitOffset": str(offset)}
    if durable:
        ext["durable"] = "true"
    try:
        cluster.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    except RemotingRefusedError as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        cluster.announce_group(broker, group, [topic])
        cluster.ask(broker, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
