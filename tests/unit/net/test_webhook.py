"""Webhooks are sent by a thread, bounded, and never waited for. Ref: A-BROKER-35."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from headrace.clock import ManualClock
from headrace.net import webhook
from headrace.net.webhook import MAX_WAITING, Webhook


class Receiver(BaseHTTPRequestHandler):
    """Notes what is posted; answers 500 to what asks for it."""

    received: ClassVar[list[dict[str, Any]]]
    gate: ClassVar[threading.Event]

    def do_POST(self) -> None:  # the name that http.server calls
        self.gate.wait(10)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append(body)
        self.send_response(body.get("status", 200))
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
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/alarm", ManualClock())
        began = time.monotonic()
        for number in range(MAX_WAITING + 5):
            hook.post({"number": number, "status": 500 if number == 1 else 200})
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
    hook = Webhook("http://127.0.0.1:1/", ManualClock())
    hook.post({})
    wait_until(lambda: hook.failed == 1)
    hook.close()


def test_an_answer_that_is_no_http_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The address of another service: the alarm was not heard, which somebody must be told."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        hook = Webhook(f"http://{host}/secret?token=secret", ManualClock())
        hook.post({})
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"E_INVALID\n")
        wait_until(lambda: f"webhook failed host={host} " in caplog.text)
        hook.close()
    assert hook.failed == 1
    assert "secret" not in caplog.text


def read_request(connection: socket.socket) -> bytes:
    """Return a whole request: who closes with some of it unread resets the connection, and its answer may be lost."""
    with connection.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n"))
        return head + file.read(int(head.lower().partition(b"content-length:")[2].split()[0]))


@contextmanager
def answering(*parts: bytes, pause_s: float = 0.0) -> Iterator[tuple[Webhook, list[bytes]]]:
    """A webhook whose calls are answered with these bytes, then closed; and what the endpoint got."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                requests.append(read_request(connection))
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/über?an=alarm", ManualClock())
        try:
            yield hook, requests
        finally:
            hook.close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 400, 503])
def test_only_2xx_counts_as_sent(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A redirection was followed with a GET that has no body, and the alarm was gone without a word."""
    with answering(b"HTTP/1.1 %d X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n" % status) as (hook, requests):
        hook.post({"number": 1})
        wait_until(lambda: hook.failed == 1)
    assert (hook.sent, len(requests)) == (0, 1)
    assert f"error=answered {status} failed=1" in caplog.text


def test_interim_answers_are_passed_over() -> None:
    interim = [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTT", b"P/1.1 100 Continue\r\n\r", b"\n"]
    with answering(*interim, b"HTTP/1.1 204 No Content\r\n\r\n", pause_s=0.01) as (hook, requests):
        hook.post({"number": 1})
        wait_until(lambda: hook.sent + hook.failed == 1)
    assert hook.sent == 1
    assert requests[0].startswith(b"POST /%C3%BCber?an=alarm HTTP/1.1\r\n")


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_answer_that_trickles_in_ends_with_its_time(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It held all later alarms, and the end of the process."""
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    with answering(*[part] * 100, pause_s=0.05) as (hook, _):
        hook.post({"number": 1})
        began = time.monotonic()
        wait_until(lambda: hook.failed == 1)
        assert time.monotonic() - began < 4  # of the five seconds that it trickles


def test_failures_have_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    hook = Webhook("http://127.0.0.1:1/", clock)
    for number in range(1, 4):
        clock.advance_ms(60_000 if number == 3 else 0)
        hook.post({})
        wait_until(lambda number=number: hook.failed == number)  # type: ignore[misc]
    hook.close()
    assert [line.rpartition("failed=")[2] for line in caplog.messages] == ["1", "3"]


def test_what_waits_at_a_stop_is_counted_and_has_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """One alarm is on its way and counts as what it becomes; of the others somebody must know that nobody was told."""

    class Handler(Receiver):
        received: ClassVar[list[dict[str, Any]]] = []
        gate: ClassVar[threading.Event] = threading.Event()

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/alarm?token=secret", ManualClock())
        for number in range(5):
            hook.post({"number": number})
        wait_until(lambda: hook._is_calling)
        hook.close()
        hook.post({"number": 5})
        Handler.gate.set()
        wait_until(lambda: hook.sent == 1)
        server.shutdown()
        thread.join()
    assert (hook.sent, hook.failed, hook.dropped) == (1, 0, 5)
    assert [post["number"] for post in Handler.received] == [0]
    assert caplog.messages == [
        f"webhook not called for what waited, the broker stops host=127.0.0.1:{server.server_port} calls=4 dropped=4"
    ]


def test_a_stop_without_calls_that_wait_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    Webhook("http://127.0.0.1:1/", ManualClock()).close()
    assert not caplog.messages


UNRESOLVED = """
import socket, threading
from headrace.clock import ManualClock
from headrace.net import webhook
webhook.TIMEOUT_S = 0.1
asked = threading.Event()
socket.getaddrinfo = lambda *_args, **_options: (asked.set(), threading.Event().wait())
hook = webhook.Webhook("http://hooks.example/", ManualClock())
hook.post({})
asked.wait()
hook.close()
"""


def test_a_name_that_nobody_resolves_does_not_keep_the_process_from_its_end() -> None:
    """Resolvers have no time-out that a caller can set: half a minute is usual where packets are dropped."""
    assert subprocess.run([sys.executable, "-c", UNRESOLVED], timeout=20, check=False).returncode == 0
