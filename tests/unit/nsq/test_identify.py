"""IDENTIFY: negotiation, limits, and the order in which they are checked."""

from __future__ import annotations

import json

import pytest

from headrace.nsq.identify import MAX_REPAIRED, default_profile, identify
from headrace.nsq.refusal import RefusedError
from headrace.settings import NsqSettings
from tests.unit.nsq.fake_client import Bench, sized

SETTINGS = NsqSettings()


def negotiate(**request: object) -> dict:
    body = json.dumps({"feature_negotiation": True, **request}).encode()
    _, data = identify(body, default_profile(SETTINGS), SETTINGS)
    return json.loads(data)


def refusal(body: bytes) -> bytes:
    with pytest.raises(RefusedError) as caught:
        identify(body, default_profile(SETTINGS), SETTINGS)
    assert caught.value.fatal
    return caught.value.data


def test_the_version_has_one_plus_whatever_ours_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are no semver, by which nsqadmin orders nodes; ours has one where it is local, or not installed."""
    monkeypatch.setattr("headrace.__version__", "0.1+local.1", raising=False)
    assert negotiate()["version"] == "1.3.0+headrace.0.1.local.1"


def test_answer_has_every_field_in_nsqds_order():
    """X-NET-08; nsq.md 1.5: clients rely on fields being there; the first byte is a brace."""
    profile, data = identify(b'{"feature_negotiation":true}', default_profile(SETTINGS), SETTINGS)
    assert data.startswith(b'{"max_rdy_count":2500,"version":"1.3.0+headrace.')
    assert list(json.loads(data)) == [
        "max_rdy_count", "version", "max_msg_timeout", "msg_timeout", "tls_v1", "deflate", "deflate_level",
        "max_deflate_level", "snappy", "sample_rate", "auth_required", "output_buffer_size", "output_buffer_timeout",
        "topology_region", "topology_zone",
    ]  # fmt: skip
    assert b" " not in data
    assert profile.heartbeat_interval_ms == 30_000


def test_defaults_and_features_that_are_off():
    """nsq.md 1.5: TLS, compression and AUTH are answered as off, whatever was asked."""
    answer = negotiate(tls_v1=True, snappy=True, deflate=True, deflate_level=9)
    assert answer["max_msg_timeout"] == 900_000
    assert answer["msg_timeout"] == 60_000
    assert answer["deflate_level"] == 6
    assert answer["max_deflate_level"] == 6
    assert answer["output_buffer_size"] == 16_384
    assert answer["output_buffer_timeout"] == 250
    assert not any(answer[name] for name in ("tls_v1", "snappy", "deflate", "auth_required"))


def test_without_negotiation_the_answer_is_ok():
    """nsq.md 1.5."""
    profile, data = identify(
        b'{"client_id":"c1","hostname":"h","user_agent":"u","sample_rate":20}', default_profile(SETTINGS), SETTINGS
    )
    assert data == b"OK"
    assert (profile.client_id, profile.hostname, profile.user_agent, profile.sample_rate) == ("c1", "h", "u", 20)


@pytest.mark.parametrize("body", [b"{}", b"null", b'{"client_id":null,"heartbeat_interval":null,"msg_timeout":0}',
                                  b'{"short_id":"x","long_id":"y","unknown":{"deep":[1,2]}}'])  # fmt: skip
def test_missing_null_zero_and_unknown_mean_default(body):
    """nsq.md 1.5."""
    profile, data = identify(body, default_profile(SETTINGS), SETTINGS)
    assert (profile, data) == (default_profile(SETTINGS), b"OK")


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [
        ({"heartbeat_interval": -1}, "heartbeat_interval_ms", 0),
        ({"heartbeat_interval": 1000}, "heartbeat_interval_ms", 1000),
        ({"heartbeat_interval": 60000}, "heartbeat_interval_ms", 60000),
        ({"heartbeat_interval": 30000.0}, "heartbeat_interval_ms", 30000),
        ({"output_buffer_size": -1}, "output_buffer_bytes", 1),
        ({"output_buffer_size": -1}, "output_buffer_timeout_ms", 0),
        ({"output_buffer_size": 64}, "output_buffer_bytes", 64),
        ({"output_buffer_size": 65536}, "output_buffer_bytes", 65536),
        ({"output_buffer_timeout": -1}, "output_buffer_timeout_ms", 0),
        ({"output_buffer_timeout": 25}, "output_buffer_timeout_ms", 25),
        ({"output_buffer_timeout": 30000}, "output_buffer_timeout_ms", 30000),
        ({"sample_rate": 99}, "sample_rate", 99),
        ({"msg_timeout": 1000}, "msg_timeout_ms", 1000),
        ({"msg_timeout": 900000}, "msg_timeout_ms", 900000),
    ],
)
def test_values_in_range(request_, field, value):
    """nsq.md 1.4, 1.5; integral floats pass, unlike in nsqd."""
    profile, _ = identify(json.dumps(request_).encode(), default_profile(SETTINGS), SETTINGS)
    assert getattr(profile, field) == value


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"heartbeat_interval": 999}, "heartbeat interval (999) is invalid"),
        ({"heartbeat_interval": 60001}, "heartbeat interval (60001) is invalid"),
        ({"heartbeat_interval": -2}, "heartbeat interval (-2) is invalid"),
        ({"output_buffer_size": 63}, "output buffer size (63) is invalid"),
        ({"output_buffer_size": 65537}, "output buffer size (65537) is invalid"),
        ({"output_buffer_timeout": 24}, "output buffer timeout (24) is invalid"),
        ({"output_buffer_timeout": 30001}, "output buffer timeout (30001) is invalid"),
        ({"sample_rate": 100}, "sample rate (100) is invalid"),
        ({"sample_rate": -1}, "sample rate (-1) is invalid"),
        ({"sample_rate": 2**31 - 1}, "sample rate (2147483647) is invalid"),
        ({"sample_rate": -(2**31)}, "sample rate (-2147483648) is invalid"),
        ({"msg_timeout": 999}, "msg timeout (999) is invalid"),
        ({"msg_timeout": 900001}, "msg timeout (900001) is invalid"),
        ({"msg_timeout": 1, "sample_rate": 100}, "sample rate (100) is invalid"),
        ({"msg_timeout": -(2**63)}, "msg timeout (-9223372036854775808) is invalid"),
        ({"sample_rate": 100, "output_buffer_size": 1}, "output buffer size (1) is invalid"),
        ({"output_buffer_size": 1, "output_buffer_timeout": 1}, "output buffer timeout (1) is invalid"),
        ({"output_buffer_timeout": 1, "heartbeat_interval": 1}, "heartbeat interval (1) is invalid"),
    ],
)
def test_values_out_of_range_in_nsqds_order(request_, text):
    """nsq.md 1.5: fatal, with nsqd's texts; the first check that fails answers."""
    assert refusal(json.dumps(request_).encode()) == f"E_BAD_BODY IDENTIFY {text}".encode()


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"3",
        b'"x"',
        b"{",
        b"{}x",
        b'{"client_id":3}',
        b'{"heartbeat_interval":"30000"}',
        b'{"heartbeat_interval":true}',
        b'{"heartbeat_interval":1.5}',
        b'{"sample_rate":1e400}',
        b'{"sample_rate":2147483648}',
        b'{"sample_rate":-2147483649}',
        b'{"msg_timeout":99999999999999999999}',
        b'{"tls_v1":1}',
        b'{"x":' + b"[" * 200_000,
    ],
    ids=lambda body: body[:24].decode(),
)
def test_bodies_that_are_no_object_of_these_types(body):
    """nsq.md 1.5: hostile JSON gets the protocol's error."""
    assert refusal(body) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


def test_identify_may_be_sent_twice_before_sub():
    """nsq.md 1.3."""
    client = Bench().client()
    one = b"IDENTIFY\n" + sized(b'{"client_id":"a"}')
    assert client.send(one + one) == [(0, b"OK"), (0, b"OK")]


def test_refused_identify_closes_behind_the_frame():
    """nsq.md 1.13."""
    client = Bench().client()
    assert client.send(b"IDENTIFY\n" + sized(b'{"sample_rate":100}')) == [
        (1, b"E_BAD_BODY IDENTIFY sample rate (100) is invalid")
    ]
    assert client.transport.eof_sent


def test_text_that_is_not_utf_8_is_taken_as_go_takes_it():
    """nsq.md 1.5: nsqd puts U+FFFD where a client of another encoding has something else; the rest holds."""
    profile, data = identify(
        b'{"client_id":"caf\xe9","hostname":"h","sample_rate":5}', default_profile(SETTINGS), SETTINGS
    )
    assert (profile.client_id, profile.hostname, profile.sample_rate, data) == ("caf\ufffd", "h", 5, b"OK")
    assert refusal(b'{"client_id":"a"\xff}') == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (r"caf\udce9", "caf\ufffd"),
        (r"\uD83D\uDE00 \ud83d", "\U0001f600 \ufffd"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (r"\\ud83d\"\u00e9", '\\ud83d"\u00e9'),
    ],
)
def test_half_surrogate_pairs_are_taken_as_go_takes_them(text, taken):
    """nsq.md 1.5: Python writes a host name's bytes that are no UTF-8 so; nsqd puts U+FFFD for them."""
    profile, _ = identify(f'{{"client_id":"{text}"}}'.encode(), default_profile(SETTINGS), SETTINGS)
    assert profile.client_id == taken


def test_large_bodies_are_not_searched_for_half_pairs():
    """5 MiB of escapes would hold the loop for the search; no client sends so much."""
    padding = r"\u0041" * (MAX_REPAIRED // 6)
    assert refusal(f'{{"client_id":"\\ud83d{padding}"}}'.encode()) == b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert identify(f'{{"x":"{padding}"}}'.encode(), default_profile(SETTINGS), SETTINGS)[1] == b"OK"
