"""Requests to publish over HTTP, done without a step through the HTTP server's general code.

That code (h11, uvicorn, a task for each request) takes 190 us of processor time for a request; nsqd takes 22. Nearly
all requests are POSTs to ``/pub`` or ``/mpub`` that clients' libraries spell in the same plain way. What is one of
those, whole and alone in its read, is taken over here: its head is looked at in compiled code, a message joins those of
the same turn (``joint_publishes``), and the answer is bytes that are made once a second. Every other request goes to
the general code, which alone knows what HTTP allows and how nsqd refuses: whatever is not beyond doubt is left to it.

Invariant: a request that is taken over is answered once, with the bytes that the general code would have answered.

Ref: nsq.md 3.2; docs/adr/0017-plain-http-publishes.md.
"""

from headrace.errors import RequestError, StoreError
from headrace.net.http_connection import BoundedConnection
from headrace.nsq.http import NsqHttp
from headrace.nsq.joint_publishes import Publisher, Share
from headrace.nsq.server import NsqServer

MAX_TAKEN_BYTES: int
"""Of a body; a longer one costs more than its head."""
MAX_HELD_BYTES: int
"""Of a read that is the beginning of a request; what is longer counts in the general code's bound for all bodies."""

class HttpPublisher(Publisher):
    """One HTTP connection that publishes. Its answers go there, as if it had published alone."""

    host: str

    def __init__(self, publishes: HttpPublishes, connection: BoundedConnection) -> None: ...
    def abort(self, cause: str) -> None:
        """Close the connection at once."""
    def joint_published(self, share: Share, physical_offset: int, monotonic_ms: int) -> None:
        """Answer when ``physical_offset`` is durable; 0: at once."""
    def publish_refused(self, command_name: str, error: RequestError | StoreError) -> None:
        """Answer that nothing was published."""
    def wait_for_store(self) -> None:
        """Do nothing: the next request is left to the general code while the store is behind."""

class HttpPublishes:
    """One HTTP listener's: ``HttpListener`` asks it first."""

    def __init__(self, app: NsqHttp, server: NsqServer) -> None: ...
    def take(self, connection: BoundedConnection, data: bytes) -> int:
        """Take over the request that ``data`` is, if it is a plain one.

        Returns:
            ``TAKEN`` of ``headrace.net.http``: it will be answered by ``connection.answer``; ``INCOMPLETE``: it is the
            beginning of such a request; ``LEFT``: it is something else.
        """
