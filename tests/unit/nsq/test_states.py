"""Every command in every state, through a whole connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.nsq.states import IGNORED, NEXT_STATE, Command, State
from headrace.nsq.words import COMMAND_NAMES
from tests.unit.nsq.fake_client import Bench, identify, mpub, pub

COMMANDS = {
    Command.IDENTIFY: identify("{}"),
    Command.AUTH: b"AUTH\n\0\0\0\1x",
    Command.SUB: b"SUB t c\n",
    Command.RDY: b"RDY 1\n",
    Command.FIN: b"FIN 0123456789abcdef\n",
    Command.REQ: b"REQ 0123456789abcdef 0\n",
    Command.TOUCH: b"TOUCH 0123456789abcdef\n",
    Command.CLS: b"CLS\n",
    Command.NOP: b"NOP\n",
    Command.PUB: pub("t", b"x"),
    Command.MPUB: mpub("t", [b"x"]),
    Command.DPUB: b"DPUB t 1\n\0\0\0\1x",
}
OPENINGS = {State.INIT: b"", State.SUBSCRIBED: b"SUB t c\n", State.CLOSING: b"SUB t c\nCLS\n"}
SUCCESS = {
    Command.IDENTIFY: [(0, b"OK")],
    Command.AUTH: [(1, b"E_AUTH_DISABLED AUTH disabled")],
    Command.SUB: [(0, b"OK")],
    Command.CLS: [(0, b"CLOSE_WAIT")],
    Command.FIN: [(1, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")],
    Command.REQ: [(1, b"E_REQ_FAILED REQ 0123456789abcdef failed ID not in flight")],
    Command.TOUCH: [(1, b"E_TOUCH_FAILED TOUCH 0123456789abcdef failed ID not in flight")],
    Command.PUB: [(0, b"OK")],
    Command.MPUB: [(0, b"OK")],
    Command.DPUB: [(0, b"OK")],
}


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("command", Command)
def test_every_command_in_every_state(state, command):
    """C-FLOW-11; nsq.md 1.3, X-NSQ-13: a pair that is not in the table is fatal."""
    client = Bench().client()
    client.send(OPENINGS[state])
    assert client.connection.state is state
    frames = client.send(COMMANDS[command])
    if (state, command) in NEXT_STATE:
        assert frames == SUCCESS.get(command, [])
        assert client.connection.state is NEXT_STATE[state, command]
        assert client.transport.eof_sent is (command is Command.AUTH)
    else:
        assert frames == [(1, f"E_INVALID cannot {command.name} in current state".encode())]
        assert client.transport.eof_sent


def test_rdy_after_cls_is_ignored_even_when_senseless():
    """nsq.md 1.3, 12.1 trap 21."""
    assert frozenset({(State.CLOSING, Command.RDY)}) == IGNORED
    client = Bench().client()
    assert client.send(b"SUB t c\nRDY 5\nCLS\nRDY -1\nRDY 99999\n") == [(0, b"OK"), (0, b"CLOSE_WAIT")]
    assert not client.transport.eof_sent
    assert client.connection.subscription.ready_count == 0


def test_a_command_has_one_number():
    """The codec goes by the names' places, the masks by these."""
    assert tuple(command.name for command in Command) == COMMAND_NAMES
    assert [int(command) for command in Command] == list(range(len(COMMAND_NAMES)))


def test_documentation_shows_the_table():
    """X-NSQ-13: what the documents show is generated from the table."""
    words = {None: "fatal", False: "ok", True: "ignored"}
    rows = [
        "| " + " | ".join([command.name, *(words[_kind(state, command)] for state in State)]) + " |"
        for command in Command
    ]
    page = (Path(__file__).parents[3] / "docs/protocols/nsq.md").read_text()
    assert "\n".join(["| Command | INIT | SUBSCRIBED | CLOSING |", "| --- | --- | --- | --- |", *rows]) in page


def _kind(state: State, command: Command) -> bool | None:
    return (state, command) in IGNORED if (state, command) in NEXT_STATE else None
