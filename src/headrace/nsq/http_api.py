"""What the HTTP APIs of nsqd and nsqlookupd have in common: a table of routes, redirects, and how a request is refused.

Routing, redirects and the order of checks are those of NSQ 1.3.0 (Go's httprouter), because scripts and nsqadmin rely
on the codes. An API gives its routes and handlers; a handler turns a ``Request`` into a ``Reply``, or raises what the
core refused.

Ref: nsq.md 3.1, 4.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.errors import (
    AccessDeniedError,
    ChannelNotFoundError,
    ClosingError,
    HeadraceError,
    InvalidDelayError,
    InvalidFilterError,
    InvalidNameError,
    MessageNotFoundError,
    MessageTooLargeError,
    NoMemoryError,
    NotInFlightError,
    OffsetOutOfRangeError,
    ProtocolError,
    QuotaExceededError,
    RequestError,
    StoreError,
    TooManyConsumersError,
    TopicNotFoundError,
    row_of,
)
from headrace.net.address import format_address, peer_of
from headrace.nsq.http_request import (
    JSON_TYPE,
    NSQ_HEADER,
    HttpRefusal,
    Reply,
    Request,
    find_similar_path,
    redirect,
    route_of,
)

if TYPE_CHECKING:
    from headrace.log_pace import LogPace
    from headrace.net.http import HttpCounters, Receive, Scope, Send

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Reply]]
Routes = Mapping[str, Mapping[str, Handler]]
"""Handlers by path, by method."""

DONE: Final = Reply()

# What each refusal of the core is over HTTP. Subclasses that are not named here answer as their base does.
HTTP_REFUSALS: Final[Mapping[type[HeadraceError], tuple[int, str]]] = {
    TopicNotFoundError: (404, "TOPIC_NOT_FOUND"),
    ChannelNotFoundError: (404, "CHANNEL_NOT_FOUND"),
    AccessDeniedError: (403, "UNAUTHORIZED"),
    InvalidDelayError: (400, "INVALID_DEFER"),
    InvalidFilterError: (400, "INVALID_REQUEST"),
    MessageNotFoundError: (404, "MESSAGE_NOT_FOUND"),
    InvalidNameError: (400, "INVALID_TOPIC"),
    MessageTooLargeError: (413, "MSG_TOO_BIG"),
    ClosingError: (503, "EXITING"),
    OffsetOutOfRangeError: (400, "INVALID_REQUEST"),
    QuotaExceededError: (503, "EXITING"),
    NotInFlightError: (500, "INTERNAL_ERROR"),
    TooManyConsumersError: (503, "EXITING"),
    RequestError: (500, "INTERNAL_ERROR"),
    StoreError: (503, "EXITING"),
    HeadraceError: (500, "INTERNAL_ERROR"),
}


class HttpApi:
    """An ASGI application that answers as NSQ's servers do.

    Attributes:
        counters: Where refusals are counted.
    """

    counters: HttpCounters

    def set_up(self, routes: Routes, pace: LogPace) -> None:
        """Take the routes; what is logged of refusals goes at ``pace``."""
        self._routes = routes
        self._pace = pace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(
            scope["method"],
            scope["path"],
            scope["query_string"].decode("latin-1"),
            dict(scope["headers"]),
            receive,
            peer_of(scope.get("client")),
        )
        reply = await self._answer(request)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "HTTP request client=%s method=%s path=%s query=%s status=%d",
                format_address(request.peer or ()),
                request.method,
                request.path,
                request.query,
                reply.status,
            )
        headers = reply.all_headers()
        if not request.body_begun and b"expect" in request.headers:
            # The peer still waits for "100 Continue" and may or may not send its body: the next request could not
            # be told from it.
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        *first, last = reply.pieces or (reply.body,)
        for piece in first:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": last})

    async def _answer(self, request: Request) -> Reply:
        try:
            handler = self._find_handler(request)
            return handler if isinstance(handler, Reply) else await handler(request)
        except HttpRefusal as refusal:
            return self._refuse(refusal.status, refusal.code)
        except ProtocolError as error:  # the peer went away or stalled: it will hardly read this
            logger.debug(
                "HTTP body not read method=%s path=%s reason=%s",
                request.method,
                request.path,
                error,
            )
            return self._refuse(408, "INTERNAL_ERROR")
        except HeadraceError as error:
            return self.refuse(request.path, error)
        except MemoryError:
            return self.refuse(request.path, NoMemoryError())
        except Exception:
            logger.exception("HTTP request failed by a bug method=%s path=%s", request.method, request.path)
            return self._refuse(500, "INTERNAL_ERROR")

    def refuse(self, path: str, error: HeadraceError) -> Reply:
        """Return the answer to a request to ``path`` that the core has refused."""
        status, code = refusal_of(error)
        # The code does not say which limit it is, and the client has nothing else.
        is_named = isinstance(error, QuotaExceededError | NoMemoryError) and self._pace.is_due(str(error))
        logger.log(
            logging.WARNING if is_named else logging.DEBUG,
            "HTTP request refused path=%s status=%d error=%s",
            path,
            status,
            error,
        )
        return self._refuse(status, code)

    def _refuse(self, status: int, code: str, *headers: tuple[bytes, bytes]) -> Reply:
        self.counters.refusals[code] += 1
        return Reply(
            status,
            msgspec.json.encode({"message": code}),
            JSON_TYPE,
            (NSQ_HEADER, *headers),
        )

    def _find_handler(self, request: Request) -> Handler | Reply:
        routes = self._routes.get(request.method, {})
        handler = routes.get(route_of(request.path))
        if handler is not None:
            return handler
        fixed = find_similar_path(request.path, routes)
        if fixed is not None:
            return redirect(request, fixed)
        allow = self._methods_of(request.path)
        if not allow:
            return self._refuse(404, "NOT_FOUND")
        header = (b"Allow", allow.encode())
        if request.method == "OPTIONS":
            return Reply(headers=(header,))
        return self._refuse(405, "METHOD_NOT_ALLOWED", header)

    def _methods_of(self, path: str) -> str:
        route = route_of(path)
        methods = [method for method, routes in self._routes.items() if path == "*" or route in routes]
        return ", ".join(sorted([*methods, "OPTIONS"])) if methods else ""


def refusal_of(error: HeadraceError) -> tuple[int, str]:
    """Return status and code for an error of the core."""
    return row_of(HTTP_REFUSALS, error)
