"""The registry as a core: which broker serves which topic, and which brokers are alive.

``routes`` holds the five tables of a name server and their rules, ``kv_config`` the key-value configuration, which is
the only thing a registry keeps on disk. Protocol folders serve them (``remoting.registry.server``). Nothing here may
know a protocol, a socket or a clock: calls take ``now``.
"""

from headrace.registry.kv_config import ORDER_NAMESPACE, KvConfig
from headrace.registry.routes import (
    BrokerData,
    DataVersion,
    LiveBroker,
    QueueData,
    Registration,
    Route,
    RouteTable,
    TopicData,
)

__all__ = [
    "ORDER_NAMESPACE",
    "BrokerData",
    "DataVersion",
    "KvConfig",
    "LiveBroker",
    "QueueData",
    "Registration",
    "Route",
    "RouteTable",
    "TopicData",
]
