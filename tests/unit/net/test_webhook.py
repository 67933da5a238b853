"""Webhooks are sent by a thread, bounded, and never waited for. Ref: A-BROKER-35."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from headrace.net.webhook import MAX_WAITING, Webhook


class Receiver(BaseHTTPRequestHandler):
    """Notes what is posted; answers 500 to what asks for it."""

    received: ClassVar[list[dict[str, Any]]]
    gate: ClassVar[threading.Event]

    def do_POST(self) -> None:  # the name that http.server calls
        self.gate.wait(10)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append(body)
        self.send_response(500 if body.get("fail") else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Stay quiet."""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_posts_are_counted_and_bounded() -> None:
    class Handler(Receiver):
        received: ClassVar[list[dict[str, Any]]] = []
        gate: ClassVar[threading.Event] = threading.Event()

    handler = Handler
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/alarm")
        began = time.monotonic()
        for number in range(MAX_WAITING + 5):
            hook.post({"number": number, "fail": number == 1})
        assert time.monotonic() - began < 5.0
        assert hook.dropped == 5
        handler.gate.set()
        wait_until(lambda: hook.sent + hook.failed == MAX_WAITING)
        assert (hook.sent, hook.failed) == (MAX_WAITING - 1, 1)
        assert [post["number"] for post in handler.received] == list(range(MAX_WAITING))
        wait_until(lambda: hook._waiting == 0)
        hook.post({"number": MAX_WAITING})
        wait_until(lambda: hook.sent + hook.failed == MAX_WAITING + 1)
        assert hook.dropped == 5
        hook.close()
        server.shutdown()
        thread.join()


def test_unreachable_address_is_counted() -> None:
    hook = Webhook("http://127.0.0.1:1/")
    hook.post({})
    wait_until(lambda: hook.failed == 1)
    hook.close()


def test_an_answer_that_is_no_http_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The address of another service: the alarm was not heard, which somebody must be told."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        hook = Webhook(f"http://{host}/secret?token=secret")
        hook.post({})
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"E_INVALID\n")
        wait_until(lambda: f"webhook failed host={host} " in caplog.text)
        hook.close()
    assert hook.failed == 1
    assert "secret" not in caplog.text
