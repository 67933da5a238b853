"""Output that does not wait for the end of the event loop's turn."""

from __future__ import annotations

import socket

from headrace.net.socket_send import send_now


def test_what_a_socket_takes_and_no_more() -> None:
    left, right = socket.socketpair()
    left.setblocking(False)
    data = bytes(range(256)) * 40_000
    sent = 0
    while (more := send_now(left.fileno(), data[sent:])) > 0:
        sent += more
    assert 0 < sent < len(data)
    assert more == 0  # it is full, not broken
    received = b""
    while len(received) < sent:
        received += right.recv(1 << 20)
    assert received == data[:sent]
    right.close()
    assert send_now(left.fileno(), b"x") == -1
    left.close()
    assert send_now(-1, b"x") == -1
