"""Messages in and out of a running broker, without Spark."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence

from headrace.remoting.blocking import Cluster
from headrace.spark.decode import Decoder
from headrace.testing import RunningBroker


def publish_lines(broker: RunningBroker, topic: str, lines: Sequence[str]) -> None:
    """Publish each line as a message, through NSQ's HTTP interface; the topic is made when it is not there."""
    for start in range(0, len(lines), 1000):
        body = "\n".join(lines[start : start + 1000]).encode()
        request = urllib.request.Request(f"http://{broker.nsq_http}/mpub?topic={topic}", data=body, method="POST")
        urllib.request.urlopen(request, timeout=30).close()


def read_bodies(broker: RunningBroker, topic: str) -> list[str]:
    """Return the bodies of a topic, queue by queue in their order, pulled as RocketMQ clients do."""
    decoder = Decoder(["body"], topics={topic})
    with Cluster(broker.registry) as cluster:
        for queue in cluster.route(topic).queues:
            for queue_id in range(queue.read_queues):
                offset, end = 0, cluster.max_offset(queue.broker, topic, queue_id)
                while offset < end:
                    pulled = cluster.pull(queue.broker, "tests", topic, queue_id, offset, 32, "*")
                    decoder.feed_records(pulled.records)
                    assert pulled.next_offset > offset
                    offset = pulled.next_offset
    return [body.decode() for batch in decoder.finish() for body in batch.column(0).to_pylist()]
