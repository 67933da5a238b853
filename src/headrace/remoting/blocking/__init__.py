"""The RocketMQ protocol for programs without an event loop: what Spark workers, jobs and tools talk to brokers with.

``BlockingClient`` (``connection``) is one connection, ``Cluster`` (``cluster``) the brokers behind some registries;
both work against Headrace and against RocketMQ 4.9 and 5.x. ``reads`` builds what only Headrace answers, for
``BlockingClient.call_many``. Ref: docs/protocols/extensions.md.
"""

from __future__ import annotations

from headrace.remoting.blocking.cluster import MASTER as MASTER
from headrace.remoting.blocking.cluster import Cluster as Cluster
from headrace.remoting.blocking.cluster import Pulled as Pulled
from headrace.remoting.blocking.cluster import QueueData as QueueData
from headrace.remoting.blocking.cluster import QueueStats as QueueStats
from headrace.remoting.blocking.cluster import Route as Route
from headrace.remoting.blocking.cluster import require as require
from headrace.remoting.blocking.connection import BlockingClient as BlockingClient
from headrace.remoting.blocking.connection import Request as Request
from headrace.remoting.blocking.reads import read_log_request as read_log_request
from headrace.remoting.blocking.reads import read_queue_request as read_queue_request
