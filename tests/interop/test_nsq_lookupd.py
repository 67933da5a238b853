"""Headrace's registry beside nsqlookupd: the same bytes and requests, the same answers (nsq.md 4)."""

from __future__ import annotations

import contextlib
import json
import random
import selectors
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.interop.nsq_lookupd_peers import (
    MAGIC,
    Lookupd,
    identify,
    plain_version,
    profile_of,
    read_names,
    read_state,
    serve_nsqlookupd,
    serve_registry,
)
from tests.interop.nsq_peers import Answer, ask
from tests.support.waiting import until

Pair = tuple[Lookupd, Lookupd]
"""nsqlookupd and Headrace."""

QUIET_SECONDS = 0.7
COMPARED_HEADERS = ("allow", "content-length", "content-type", "location", "x-nsq-content-type")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both, with their default times."""
    folder = tmp_path_factory.mktemp("pair")
    with serve_nsqlookupd(folder / "theirs") as theirs, serve_registry(folder / "ours") as ours:
        yield theirs, ours


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both, with tombstones of one second and producers that are inactive after two."""
    folder = tmp_path_factory.mktemp("hasty")
    flags = ("-tombstone-lifetime=1s", "-inactive-producer-timeout=2s")
    options = ("--registry.nsq-tombstone-ms", "1000", "--registry.nsq-silent-ms", "2000")
    with serve_nsqlookupd(folder / "theirs", *flags) as theirs, serve_registry(folder / "ours", *options) as ours:
        yield theirs, ours


@pytest.fixture(autouse=True)
def cleared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave no connection and no topic to the next test."""
    yield
    for name in {"pair", "hasty"}.intersection(request.fixturenames):
        for server in request.getfixturevalue(name):
            server.clear()


# -- TCP: streams of bytes --

WHOLE = json.dumps(profile_of(), separators=(",", ":")).encode()
IDENTIFIED = MAGIC + identify(WHOLE)


def profile(**changes: Any) -> bytes:
    return MAGIC + identify(json.dumps(profile_of(**changes)).encode()) + b"PING\n"


def without(name: str) -> bytes:
    body = json.dumps({key: value for key, value in profile_of().items() if key != name}).encode()
    return MAGIC + identify(body) + b"PING\n"


NAMES = [
    *["t", ".", "a" * 64, "a" * 65, "a" * 54 + "#ephemeral", "a" * 55 + "#ephemeral", "#ephemeral", "t#ephemeral"],
    *["t#ephemera", "t#ephemeral#ephemeral", "t#tmp", "t$", "t/c", "t*", "*", "'", "t%", "\u00e4", "t\x00", "t\tc"],
]

VALUES: list[Any] = [None, "", 0, "4150", True, [], {}, 1.5]

STREAMS = [
    # the magic
    *[b"  V2", b"  v1", b"V1  ", b"GET ", b"\0\0\0\0", b"  V1", b"  V1PING\n", b"  V2PING\n"],
    *[b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n"],
    # before IDENTIFY
    *[MAGIC + line + b"\nPING\n" for line in (b"PING", b"REGISTER t c", b"REGISTER", b"REGISTER $", b"UNREGISTER t")],
    *[MAGIC + line + b"\nPING\n" for line in (b"UNREGISTER", b"", b" ", b"\r", b"NOP", b"ping", b"Ping", b"SUB t c")],
    *[MAGIC + b"PING\n" * 3 + identify(WHOLE) + b"PING\nPING\n"],
    # the body of IDENTIFY
    *[IDENTIFIED, IDENTIFIED + identify(WHOLE) + b"PING\n", IDENTIFIED + b"IDENTIFY\nPING\n"],
    *[MAGIC + b"IDENTIFY x y z\r\n" + struct.pack(">I", len(WHOLE)) + WHOLE + b"REGISTER a b\n"],
    *[MAGIC + identify(body) + b"PING\n" for body in (b"", b"{", b"{}", b"[]", b"null", b'"x"', b"1", b"nope", b" ")],
    *[MAGIC + identify(body) + b"PING\n" for body in (WHOLE + b"x", WHOLE + b" \r\n\t", b" \n" + WHOLE, WHOLE * 2)],
    *[MAGIC + identify(body) + b"PING\n" for body in (b"\xef\xbb\xbf" + WHOLE, WHOLE + b"\0", WHOLE[:-1] + b",}")],
    *[MAGIC + identify(WHOLE.replace(b"b1", text)) + b"PING\n" for text in (b"\\x", b"\n", b"\0", b"\\u00e4")],
    *[MAGIC + identify(WHOLE.replace(b"4150", text)) + b"PING\n" for text in (b"4150.0", b"4.15e3", b"04150", b"-0")],
    *[MAGIC + identify(WHOLE.replace(b"4150", text)) + b"PING\n" for text in (b"NaN", b"9" * 18, b"9" * 20, b"0.0")],
    *[without(name) for name in profile_of()],
    *[profile(**{name: value}) for name in profile_of() for value in VALUES],
    *[profile(**{name: value}) for name in ("tcp_port", "http_port") for value in (-1, 65536, 1 << 40, 1 << 63)],
    *[profile(remote_address="9.9.9.9:1", id="x", extra={"a": [1, None]}), profile(id=5, peerInfo=[])],
    *[profile(topology_zone="z", topology_region="r")],
    MAGIC + identify(WHOLE.replace(b"tcp_port", b"tcpport")) + b"PING\n",
    *[MAGIC + identify(WHOLE[:-1] + b',"tcp_port":' + port + b"}") + b"PING\n" for port in (b"0", b"1")],
    *[profile(hostname="x" * 3_000), profile(deep=json.loads("[" * 900 + "]" * 900))],
    # names
    *[
        IDENTIFIED + f"{command} {line}\nPING\n".encode()
        for command in ("REGISTER", "UNREGISTER")
        for name in NAMES
        for line in (name, f"n-{len(name)} {name}")
    ],
    *[IDENTIFIED + b"REGISTER " + name + b"\nPING\n" for name in (b"\xff\xfe", b"t\xff", b"t \xff", b"a\xc2\xa0b")],
    # parameters, spaces, ends of lines
    *[IDENTIFIED + line + b"PING\n" for line in (b"REGISTER\n", b"REGISTER \n", b"UNREGISTER\n", b"REGISTER  \r\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"REGISTER  t\n", b"REGISTER t  c\n", b"REGISTER t c d e\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"REGISTER t  $\n", b"REGISTER t c $\n", b"REGISTER t  \n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"REGISTER\tt\n", b"REGISTER t\tc\n", b"UNREGISTER t c\t\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"  PING  \r\n", b"\t\v\fPING\r\r\n", b"PING x y\r\n", b"PING\tx\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"\xa0PING\n", b"\x85PING\n", b"\x1cPING\n", b"PING\x1f\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"\n", b"\r\n", b"PING\0\n", b"\0PING\n", b"\xff\n", b"PIN\nG\n")],
    *[IDENTIFIED + line + b"PING\n" for line in (b"register t\n", b"REGISTER_ t\n", b"NOP\n", b"x" * 1000 + b"\n")],
    # many commands at once
    IDENTIFIED + b"REGISTER a\r\nREGISTER a b\nPING\nUNREGISTER a b\nUNREGISTER a\nUNREGISTER a\nPING\n",
    IDENTIFIED + b"REGISTER many c\nPING\n" * 3000,
    IDENTIFIED + b"REGISTER t\nREGISTER $\nREGISTER t\n",
]

CUT_SHORT = [
    *[b"", b" ", b"  V", MAGIC, MAGIC + b"PING", MAGIC + b"PING\nPIN", MAGIC + b"IDENTIFY", MAGIC + b"IDENTIFY\n"],
    *[MAGIC + b"IDENTIFY\n\0\0\0", MAGIC + b"IDENTIFY\n\0\0\0\5", MAGIC + b"IDENTIFY\n\0\0\0\5{}", IDENTIFIED],
    *[IDENTIFIED + b"REGISTER t", IDENTIFIED + b"IDENTIFY\n", b"  V2", MAGIC + b"IDENTIFY\n\0\0\0\0"],
    *[IDENTIFIED + b"PING\n" * 100_000, IDENTIFIED + b"PING\n" * 100_000 + b"REGISTER $\n"],
]

Said = tuple[bytes, bool]
"""All that came back, and whether the connection was closed."""


class Heard(NamedTuple):
    """What nsqlookupd and Headrace say to every stream, and what they know while the connections are open."""

    said: dict[tuple[bytes, str], tuple[Said, Said]]
    theirs: tuple[int, dict[str, list[str]]]
    ours: tuple[int, dict[str, list[str]]]


@pytest.fixture(scope="module")
def heard(pair: Pair) -> Heard:
    """Send every stream to both on connections of their own, all at the same time, and collect what they say."""
    cases = [(stream, "whole") for stream in STREAMS] + [(stream, "cut") for stream in CUT_SHORT]
    cases += [(stream, "bytewise") for stream in (IDENTIFIED + b"REGISTER t c\r\nPING\n", MAGIC + b"REGISTER x\n")]
    with contextlib.ExitStack() as stack:
        talks = [[stack.enter_context(Talk(server.tcp, *case)) for case in cases] for server in pair]
        listen(talks[0] + talks[1])
        left = [(len(server.get("/nodes")["producers"]), read_names(server)) for server in pair]
    for server in pair:
        until(lambda: not server.get("/nodes")["producers"])  # noqa: B023
        server.clear()
    answers = {case: (theirs.said, ours.said) for case, theirs, ours in zip(cases, *talks, strict=True)}
    return Heard(answers, *left)


class Talk:
    """A connection that a stream was sent on, and what came back."""

    def __init__(self, server: str, stream: bytes, how: str) -> None:
        self.received = b""
        self.is_closed = False
        host, port = server.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):  # refused before all of it was sent
            for part in [bytes([byte]) for byte in stream] if how == "bytewise" else [stream]:
                self.socket.sendall(part)
                if how == "bytewise":
                    time.sleep(0.0005)
            if how == "cut":
                self.socket.shutdown(socket.SHUT_WR)

    @property
    def said(self) -> Said:
        return plain_ports(self.received), self.is_closed

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.received += data
        self.is_closed = not data

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_error: object) -> None:
        self.socket.close()


def listen(talks: list[Talk]) -> None:
    """Read until nothing has come for a while."""
    with selectors.DefaultSelector() as selector:
        for talk in talks:
            selector.register(talk.socket, selectors.EVENT_READ, talk)
        while ready := selector.select(QUIET_SECONDS):
            for key, _ in ready:
                key.data.read()
                if key.data.is_closed:
                    selector.unregister(key.fileobj)


def plain_ports(received: bytes) -> bytes:
    """Read replies, and in that of IDENTIFY leave out ports and version of the server."""
    replies, at = [], 0
    while at < len(received):
        (size,) = struct.unpack_from(">I", received, at)
        reply = received[at + 4 : at + 4 + size]
        assert len(reply) == size, "a reply is cut short"
        if reply.startswith(b"{"):
            told = json.loads(reply)
            assert reply == json.dumps(told, separators=(",", ":"), sort_keys=True).encode()
            assert isinstance(told["tcp_port"], int)
            assert isinstance(told["http_port"], int)
            told |= {"tcp_port": 0, "http_port": 0, "version": told["version"].partition("+")[0]}
            reply = json.dumps(told).encode()
        replies.append(reply)
        at += 4 + size
    return b"\n".join(replies)


def shown(stream: bytes) -> str:
    """Name a stream by what follows the magic and a good IDENTIFY."""
    return stream.replace(WHOLE, b"{..}").removeprefix(MAGIC)[:70].decode("latin-1")


@pytest.mark.parametrize("stream", STREAMS, ids=shown)
def test_streams(heard: Heard, stream: bytes) -> None:
    """nsq.md 4.1: magic, lines, IDENTIFY, refusals and what closes the connection."""
    theirs, ours = heard.said[stream, "whole"]
    assert ours == theirs


@pytest.mark.parametrize("stream", CUT_SHORT, ids=shown)
def test_streams_cut_short(heard: Heard, stream: bytes) -> None:
    """nsq.md 4.1: the client shuts its sending side."""
    theirs, ours = heard.said[stream, "cut"]
    assert ours == theirs
    assert ours[1]


def test_byte_by_byte(heard: Heard) -> None:
    """nsq.md 4.1: what comes one byte at a time is read as what comes at once."""
    for theirs, ours in (both for (_, how), both in heard.said.items() if how == "bytewise"):
        assert ours == theirs
        assert ours[0]


def test_what_the_streams_have_registered(heard: Heard) -> None:
    """nsq.md 4.2: number of nodes; topics and their channels."""
    assert heard.ours == heard.theirs


def test_identify_tells_where_to_ask(pair: Pair) -> None:
    """nsq.md 4.1, trap 15: nsqd asks ``broadcast_address:http_port`` for the channels of a new topic."""
    for server in pair:
        told = json.loads(server.open("a"))
        assert f"{told['broadcast_address']}:{told['http_port']}" == server.http
        assert f"127.0.0.1:{told['tcp_port']}" == server.tcp
        assert told["hostname"] == socket.gethostname()


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF])
def test_sizes_that_nobody_has(pair: Pair, size: int) -> None:
    """nsq.md 4.1: nsqlookupd 1.3.0 ends at a negative size and waits for 2 GiB; Headrace refuses both."""
    _, ours = pair
    with Talk(ours.tcp, MAGIC + b"IDENTIFY\n" + struct.pack(">I", size) + b"{}", "whole") as talk:
        listen([talk])
    assert talk.is_closed
    assert talk.said[0].startswith(b"E_BAD_BODY IDENTIFY ")
    assert ours.ask("GET", "/ping").body == b"OK"


# -- HTTP: requests one by one --


def compare(pair: Pair, method: str, target: str, body: bytes | None = None) -> None:
    """Send one request to both and compare status, headers and body."""
    theirs, ours = (server.ask(method, target, body) for server in pair)
    theirs_told, ours_told = (plain_version(answer.body) for answer in (theirs, ours))
    assert (ours.status, ours_told) == (theirs.status, theirs_told), (method, target)
    for name in COMPARED_HEADERS:
        if name == "content-length" and ours.body != theirs.body:
            continue
        assert ours.headers.get(name) == theirs.headers.get(name), (method, target, name)


PATHS = [
    *["/ping", "/info", "/lookup", "/topics", "/channels", "/nodes", "/topic/create", "/topic/delete"],
    *[
        "/channel/create",
        "/channel/delete",
        "/topic/tombstone",
        "/debug",
        "/",
        "/nope",
        "/topic",
        "/stats",
        "/config/x",
    ],
]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"]
NEAR_PATHS = [
    *["/ping/", "/PING", "//ping", "/a/../ping", "/./topics", "/Lookup?topic=x", "/lookup/?topic=x", "/topics//"],
    *["/topic/create/?topic=x", "/TOPIC/create?topic=x", "/topic//create", "/nodes/", "/debug/", "/info?x=1&y=%3C"],
    *["/lookup%2F", "/%6Cookup?topic=h-none", "/channel/", "/topic/tombstone/", "/nope/", "/create_topic?topic=x"],
]
QUERIES = [
    *[f"/lookup{query}" for query in ("", "?topic=", "?topic", "?topic=h-none", "?Topic=x", "?topic=$", "?topic=h-a")],
    *[f"/lookup?{query}" for query in ("topic=a;b", "topic=%zz", "topic=h-a&topic=h-none", "topic=h-none&topic=h-a")],
    *[f"/lookup?topic={name}" for name in ("h-a%23ephemeral", "h%2Da", "h-a+", "%C3%A4", "a" * 65, "h-a%00", "h-A")],
    *[f"/channels{query}" for query in ("", "?topic=", "?topic", "?topic=h-none", "?topic=$", "?topic=h-a", "?a;b")],
    *["/topics?topic=h-a", "/nodes?topic=h-a", "/topics?a;b", "/nodes?a;b", "/debug?x=%zz", "/info?%zz", "/ping?a;b"],
]
CALLS = [
    *["topic/create", "topic/create?topic=", "topic/create?topic", "topic/create?topic=$", "topic/create?topic=a;b"],
    *[
        "topic/create?topic=h-t",
        "topic/create?topic=h-t",
        "topic/create?topic=h-t&x=%zz",
    ],
    *[f"topic/create?topic={'a' * 64}", f"topic/create?topic={'a' * 65}", "topic/create?topic=h%20t&topic=h-u"],
    *["topic/create?topic=h-e%23ephemeral", "topic/create?topic=%C3%A4", "topic/create?topic=h-u&topic=$"],
    *["channel/create", "channel/create?channel=c", "channel/create?topic=$", "channel/create?topic=h-t"],
    *["channel/create?topic=$&channel=$", "channel/create?topic=h-t&channel=$", "channel/create?topic=h-t&channel="],
    *["channel/create?topic=h-t&channel=c", "channel/create?topic=h-t&channel=c", "channel/create?topic=h-v&channel=c"],
    *["channel/create?topic=h-t&channel=d%23ephemeral", "channel/create?topic=%zz", "channel/create?topic=&channel=c"],
    *["channel/delete", "channel/delete?channel=c", "channel/delete?topic=$", "channel/delete?topic=h-t"],
    *[
        "channel/delete?topic=h-t&channel=$",
        "channel/delete?topic=h-none&channel=c",
        "channel/delete?topic=h-t&channel=x",
    ],
    *["channel/delete?topic=h-t&channel=c", "channel/delete?topic=h-t&channel=c", "channel/delete?a;b"],
    *["topic/tombstone", "topic/tombstone?topic=h-t", "topic/tombstone?node=a:1", "topic/tombstone?topic=$&node=a:1"],
    *["topic/tombstone?topic=h-none&node=a:1", "topic/tombstone?topic=h-t&node=", "topic/tombstone?topic=&node"],
    *["topic/tombstone?topic=h-t&node=b1:4151", "topic/tombstone?%zz", "topic/delete?topic=h-v", "topic/delete?a;b"],
    *["topic/delete", "topic/delete?topic=", "topic/delete?topic", "topic/delete?topic=$", "topic/delete?topic=h-none"],
    *[
        "topic/delete?topic=h-t",
        "topic/delete?topic=h-t",
        "topic/delete?topic=h-e%23ephemeral",
        "topic/delete?topic=%zz",
    ],
    *[f"topic/delete?topic={'a' * 64}", "channel/create?topic=h-u&channel=c", "topic/delete?topic=h-u"],
]


@pytest.mark.parametrize("path", PATHS)
def test_methods(pair: Pair, path: str) -> None:
    """nsq.md 4.3, 3.1: every path with every method, 405 with Allow, OPTIONS, unknown paths."""
    for method in METHODS:
        if (method, path) != ("GET", "/debug"):  # its rows hold addresses and times: the states below compare them
            compare(pair, method, path)


@pytest.mark.parametrize("target", NEAR_PATHS)
def test_redirects(pair: Pair, target: str) -> None:
    """nsq.md 3.1: a slash too many, capitals, dots."""
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        compare(pair, method, target)


@pytest.mark.parametrize("target", QUERIES)
def test_queries(pair: Pair, target: str) -> None:
    """nsq.md 4.3: missing, empty, doubled and malformed arguments of what reads."""
    for server in pair:
        server.post("/topic/create?topic=h-a")
    compare(pair, "GET", target)
    compare(pair, "GET", target, b"a body that nobody wants")


def test_calls(pair: Pair) -> None:
    """nsq.md 4.3: what writes, one call after the other, and what each leaves behind."""
    for call in CALLS:
        compare(pair, "POST", f"/{call}")
        compare_states(pair, "h-t", "h-u", "h-v", "h-e#ephemeral")


def test_bodies_are_passed_over(pair: Pair) -> None:
    """nsq.md 3.1: arguments are in the query alone, whatever a body says."""
    compare(pair, "POST", "/topic/create", b"topic=h-body")
    compare(pair, "POST", "/topic/create?topic=h-body", b"x" * 100_000)
    compare_states(pair, "h-body")


# -- who does not ask for version 1.0 --


def without_old_form(answer: Answer) -> tuple[int, bytes]:
    """Check the form of answers before 1.0 and return the rest as nsqlookupd would write it."""
    told = answer.json()
    data, status_code, status_txt = told.pop("data"), told.pop("status_code"), told.pop("status_txt")
    if answer.status == 200:
        assert (status_code, status_txt, data) == (200, "OK", told)
    else:
        number = answer.status if told["message"] in ("NOT_FOUND", "METHOD_NOT_ALLOWED") else 500
        assert (status_code, status_txt, data) == (number, told["message"], None)
    return answer.status, json.dumps(told, separators=(",", ":")).encode()


@pytest.mark.parametrize("accept", [{}, {"Accept": "*/*"}, {"Accept": "application/json"}])
def test_answers_in_both_forms(pair: Pair, accept: dict[str, str]) -> None:
    """X-NSQ-18: the old form is beside today's answers to the same requests, JSON alone."""
    for server in pair:
        server.post("/channel/create?topic=h-a&channel=c")
    found = 0
    for method, target in [
        *(("GET", target) for target in [*PATHS, *QUERIES]),
        *(("POST", f"/{call}") for call in CALLS),
    ]:
        if target == "/debug" or target.startswith("/debug?"):
            continue
        theirs, ours = (ask(server.http, method, target, None, accept) for server in pair)
        if "json" in theirs.headers.get("content-type", ""):
            found += 1
            told = without_old_form(ours)
            assert (told[0], plain_version(told[1])) == (theirs.status, plain_version(theirs.body)), (method, target)
            assert ours.headers["content-type"] == theirs.headers["content-type"]
        else:
            assert (ours.status, ours.body) == (theirs.status, theirs.body), (method, target)
    assert found > 50


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.nsq; version=1.0",
        "application/vnd.nsq version=1.0",
        "text/html, application/vnd.nsq;version=1.0",
    ],
)
def test_who_asks_for_version_1_gets_no_old_form(pair: Pair, accept: str) -> None:
    """X-NSQ-18; gnsq leaves out the semicolon."""
    for target in ("/info", "/topics", "/lookup", "/nope", "/nodes"):
        theirs, ours = (ask(server.http, "GET", target, None, {"Accept": accept}) for server in pair)
        assert (ours.status, plain_version(ours.body)) == (theirs.status, plain_version(theirs.body))


def find_as_pynsq_did(http: str, topic: str) -> list[tuple[str, int]]:
    """Look producers up as pynsq 0.5.0 does (Reader._finish_query_lookupd)."""
    answer = ask(http, "GET", f"/lookup?topic={topic}")
    if answer.status != 200:
        return []
    lookup_data = answer.json()
    if lookup_data["status_code"] != 200:
        return []
    return [
        (producer.get("broadcast_address", producer.get("address")), producer["tcp_port"])
        for producer in lookup_data["data"]["producers"]
    ]


def request_as_gonsq_did(http: str, target: str) -> Any:
    """Ask as go-nsq 0.3.2 does (ApiRequest)."""
    answer = ask(http, "GET", target)
    told = answer.json()
    if told["status_code"] != 200:
        raise ValueError(f"response status_code != 200: {told['status_txt']}")
    return told["data"]


def test_clients_from_before_1_0(pair: Pair) -> None:
    """X-NSQ-18, D-DISC-02: they look for producers where those stood then."""
    ours = pair[1]
    ours.open("a")
    ours.say("a", "REGISTER old c")
    assert find_as_pynsq_did(ours.http, "old") == [("a", 4150)]
    assert find_as_pynsq_did(ours.http, "none") == []
    assert request_as_gonsq_did(ours.http, "/lookup?topic=old")["channels"] == ["c"]
    assert request_as_gonsq_did(ours.http, "/topics") == {"topics": ["old"]}
    assert request_as_gonsq_did(ours.http, "/channels?topic=old") == {"channels": ["c"]}
    assert [row["topics"] for row in request_as_gonsq_did(ours.http, "/nodes")["producers"]] == [["old"]]
    assert set(request_as_gonsq_did(ours.http, "/debug")) == {"client::", "topic:old:", "channel:old:c"}
    with pytest.raises(ValueError, match="TOPIC_NOT_FOUND"):
        request_as_gonsq_did(ours.http, "/lookup?topic=none")


# -- registrations --


def compare_states(pair: Pair, *topics: str) -> dict[str, Any]:
    """Compare all that both tell; return it."""
    theirs, ours = (read_state(server, *topics) for server in pair)
    assert ours == theirs
    return ours


def both(pair: Pair, call: str, *arguments: str, **profile: Any) -> bytes:
    """Have both do the same; return the reply, which must be the same."""
    theirs, ours = (getattr(server, call)(*arguments, **profile) for server in pair)
    if call != "open":
        assert ours == theirs, (call, arguments)
    return bytes(ours or b"")


def test_order_of_fields(pair: Pair) -> None:
    """nsq.md 4.3: one topic, one channel, one producer, names that Go escapes: the same fields in the same order."""
    for server in pair:
        server.open(
            "a", hostname='<h>&"\\\u2028\u00e4\u0001\x7f', tcp_port=-1, http_port=1 << 40, version="1.3.0-\u20ac"
        )
        server.say("a", "REGISTER order c")
    for target in ("/lookup?topic=order", "/nodes", "/channels?topic=order"):
        theirs, ours = (
            json.loads(
                server.ask("GET", target).body.replace(server.producers["a"].address.encode(), b"ADDRESS"),
                object_pairs_hook=lambda pairs: [pair for pair in pairs if not pair[0].startswith("topology_")],
            )
            for server in pair
        )
        assert ours == theirs


def test_two_producers_of_a_topic(pair: Pair) -> None:
    """nsq.md 4.2: producers come, register, unregister and go; what stays of the topic."""
    topics = ("two", "two#ephemeral")
    both(pair, "open", "a")
    compare_states(pair, *topics)
    both(pair, "open", "b", tcp_port=5150, http_port=5151, version="0.0.1", hostname="")
    for name, line in [
        *[("a", "REGISTER two"), ("b", "REGISTER two c"), ("a", "REGISTER two c"), ("a", "REGISTER two d#ephemeral")],
        *[("b", "REGISTER two d#ephemeral"), ("a", "UNREGISTER two d#ephemeral"), ("b", "UNREGISTER two d#ephemeral")],
        *[("a", "REGISTER two#ephemeral"), ("b", "REGISTER two#ephemeral"), ("a", "UNREGISTER two#ephemeral")],
        *[("b", "UNREGISTER two#ephemeral"), ("b", "UNREGISTER two#ephemeral"), ("a", "UNREGISTER two c")],
        *[("a", "UNREGISTER two x"), ("a", "UNREGISTER two x#ephemeral"), ("b", "UNREGISTER two"), ("b", "PING")],
        *[("b", "REGISTER two c"), ("b", "REGISTER two e#ephemeral"), ("a", "REGISTER two#ephemeral f#ephemeral")],
    ]:
        assert both(pair, "say", name, line) == b"OK"
        compare_states(pair, *topics)
    for name in ("b", "a"):
        both(pair, "close", name)
        state = compare_states(pair, *topics)
    assert state["topics"].count("two#ephemeral") == 1, "it outlives a connection, not UNREGISTER"
    both(pair, "open", "a")
    both(pair, "say", "a", "UNREGISTER two e#ephemeral")
    compare_states(pair, *topics)


def test_same_node_twice(pair: Pair) -> None:
    """nsq.md 4.1: a producer is its connection, not its address."""
    for name in ("one", "other"):
        both(pair, "open", name, broadcast_address="same")
        both(pair, "say", name, "REGISTER twice c")
    assert len(compare_states(pair, "twice")["nodes"]) == 2
    both(pair, "post", "/topic/tombstone?topic=twice&node=same:4151")
    compare_states(pair, "twice")
    both(pair, "close", "one")
    compare_states(pair, "twice")


def test_deleted_while_registered(pair: Pair) -> None:
    """nsq.md 4.3: what HTTP deletes is gone for those who registered it, until they register it again."""
    both(pair, "open", "a")
    for line in ("REGISTER del c", "REGISTER del d", "REGISTER kept"):
        both(pair, "say", "a", line)
    for call in ("channel/delete?topic=del&channel=c", "channel/delete?topic=del&channel=c", "topic/delete?topic=del"):
        compare(pair, "POST", f"/{call}")
        compare_states(pair, "del", "kept")
    for line in ("UNREGISTER del d", "REGISTER del c", "UNREGISTER del"):
        both(pair, "say", "a", line)
        compare_states(pair, "del", "kept")
    both(pair, "post", "/channel/create?topic=del&channel=z")
    compare_states(pair, "del", "kept")


def test_tombstone_and_registering_again(pair: Pair) -> None:
    """nsq.md 4.2: REGISTER keeps a tombstone, UNREGISTER and delete take it along."""
    both(pair, "open", "a")
    both(pair, "open", "b", http_port=5151)
    for name in ("a", "b"):
        both(pair, "say", name, "REGISTER tomb c")
        both(pair, "say", name, "REGISTER tomb2")
    for node in ("a", "a:4150", "a.example:4151", "A:4151", "a:04151"):
        both(pair, "post", f"/topic/tombstone?topic=tomb&node={node}")
        assert len(compare_states(pair, "tomb", "tomb2")["lookup tomb"][1]) == 2
    both(pair, "post", "/topic/tombstone?topic=tomb&node=a:4151")
    state = compare_states(pair, "tomb", "tomb2")
    assert [row["broadcast_address"] for row in state["lookup tomb"][1]] == ["b"]
    assert len(state["lookup tomb2"][1]) == 2
    for name, line in [("a", "REGISTER tomb c"), ("a", "REGISTER tomb"), ("a", "PING"), ("a", "UNREGISTER tomb c")]:
        both(pair, "say", name, line)
        compare_states(pair, "tomb", "tomb2")
    for line in ("UNREGISTER tomb", "REGISTER tomb c"):
        both(pair, "say", "a", line)
        state = compare_states(pair, "tomb", "tomb2")
    assert len(state["lookup tomb"][1]) == 2
    both(pair, "post", "/topic/tombstone?topic=tomb&node=b:5151")
    both(pair, "post", "/topic/delete?topic=tomb")
    both(pair, "say", "b", "REGISTER tomb")
    assert len(compare_states(pair, "tomb", "tomb2")["lookup tomb"][1]) == 1


def test_asterisk_is_a_name(pair: Pair) -> None:
    """nsqlookupd takes * for every topic, and /topic/delete?topic=* deletes all. Here nobody has such a topic."""
    ours = pair[1]
    ours.open("a")
    ours.say("a", "REGISTER star c")
    assert ours.ask("GET", "/lookup?topic=*").status == 404
    assert ours.get("/channels?topic=*") == {"channels": []}
    before = read_state(ours, "star")
    for call in ("topic/tombstone?topic=*&node=a:4151", "topic/delete?topic=*"):
        ours.post(f"/{call}")
    assert read_state(ours, "star") == before
    for call in ("topic/create?topic=*", "channel/create?topic=*&channel=c", "channel/delete?topic=*&channel=c"):
        compare(pair, "POST", f"/{call}")


def test_ephemeral_topic_takes_its_channels_along(pair: Pair) -> None:
    """nsqlookupd goes on telling the channels of a topic that it has forgotten."""
    both(pair, "open", "a")
    for line in ("REGISTER along#ephemeral c", "UNREGISTER along#ephemeral"):
        both(pair, "say", "a", line)
    theirs, ours = (read_names(server) for server in pair)
    assert ours == theirs == {}
    left = [server.get("/channels?topic=along%23ephemeral")["channels"] for server in pair]
    assert left == [["c"], []]
    compare(pair, "POST", "/topic/delete?topic=along%23ephemeral")


ACTS = {"REGISTER": 12, "UNREGISTER": 6, "PING": 1, "close": 2, "topic/create": 1, "topic/delete": 1}
ACTS |= {"channel/create": 1, "channel/delete": 1, "topic/tombstone": 3}


@pytest.mark.parametrize("seed", range(4))
def test_random_histories(pair: Pair, seed: int) -> None:
    """nsq.md 4.2: four producers and HTTP calls in random order; all that both tell is compared behind each step."""
    chance = random.Random(seed)
    topics, channels = ("r1", "r2#ephemeral"), ("c", "d#ephemeral")
    opened: set[str] = set()
    for number in range(150):
        name, topic, channel = chance.choice("abcd"), chance.choice(topics), chance.choice(channels)
        act = chance.choices(list(ACTS), list(ACTS.values()))[0]
        if "/" in act:
            topic = "r1" if act.startswith("channel") else topic
            target = f"/{act}?topic={quote(topic)}&channel={quote(channel)}&node={name}:4151"
            compare(pair, "POST", target)
        elif name not in opened:
            both(pair, "open", name)
            opened.add(name)
        elif act == "close":
            both(pair, "close", name)
            opened.remove(name)
        else:
            rest = chance.choice((f" {topic}", f" r1 {channel}"))
            assert both(pair, "say", name, act + rest) == b"OK", number
        compare_states(pair, *topics)


# -- times --


def test_tombstone_ends(hasty: Pair) -> None:
    """nsq.md 4.2: a producer that still is registered comes back."""
    both(hasty, "open", "a")
    both(hasty, "say", "a", "REGISTER ends")
    both(hasty, "post", "/topic/tombstone?topic=ends&node=a:4151")
    compare_states(hasty, "ends")
    for server in hasty:
        began = time.monotonic()
        until(lambda: server.lookup("ends"), 3)  # noqa: B023
        assert time.monotonic() - began < 1.5
    both(hasty, "say", "a", "PING")
    state = compare_states(hasty, "ends")
    assert state["nodes"][0]["tombstones"] == [False]
    assert state["debug"]["topic:ends:"][0]["tombstoned"]
    both(hasty, "post", "/topic/tombstone?topic=ends&node=a:4151")
    assert not compare_states(hasty, "ends")["lookup ends"][1]


def test_silent_producer_is_hidden_until_it_pings(hasty: Pair) -> None:
    """nsq.md 4.2: hidden from /lookup and /nodes, not from /topics, /channels and /debug; REGISTER is no PING."""
    both(hasty, "open", "a")
    both(hasty, "open", "b")
    for name in ("a", "b"):
        both(hasty, "say", name, "REGISTER silent c")
    ends = time.monotonic() + 2.3
    while time.monotonic() < ends:
        both(hasty, "say", "b", "PING")
        both(hasty, "say", "a", "REGISTER silent c")
        time.sleep(0.2)
    both(hasty, "say", "b", "PING")
    state = compare_states(hasty, "silent")
    assert [row["broadcast_address"] for row in state["lookup silent"][1]] == ["b"]
    assert [row["broadcast_address"] for row in state["nodes"]] == ["b"]
    assert len(state["debug"]["topic:silent:"]) == 2
    both(hasty, "say", "a", "PING")
    assert len(compare_states(hasty, "silent")["nodes"]) == 2
