"""Peers that speak another protocol than the port they came to: somebody's settings have the wrong port."""

from __future__ import annotations

from typing import Final

from headrace.errors import ProtocolError

# How other protocols than the port's own begin. As the length of a frame of RocketMQ's the texts are above 500 MB.
_STARTS: Final = {
    b"  V1": "NSQ's protocol, which nsq.tcp_address takes",
    b"  V2": "NSQ's protocol, which nsq.tcp_address takes",
    b"GET ": "HTTP, which nsq.http_address and admin.address take",
    b"HEAD": "HTTP, which nsq.http_address and admin.address take",
    b"POST": "HTTP, which nsq.http_address and admin.address take",
    b"PUT ": "HTTP, which nsq.http_address and admin.address take",
    b"PRI ": "HTTP/2, as RocketMQ 5's gRPC clients do, which no port takes",
    b"\x16\x03": "TLS, which no port takes",
    b"\x00": "RocketMQ's protocol, which remoting.address and registry.address take",
}


def explain_refusal(error: ProtocolError) -> str:
    """Return what the log says of refused bytes: where they are another protocol's, which, and who takes it.

    The limit that such bytes happen to break is not named: raising it would not help.
    """
    for start, protocol in _STARTS.items():
        if error.start.startswith(start):
            return f"the client speaks {protocol}"
    return str(error)
