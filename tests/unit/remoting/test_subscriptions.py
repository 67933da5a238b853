"""What the expression of a subscription lets through. Ref: remoting.md 4.4, 4.12."""

from __future__ import annotations

import weakref
from functools import partial

import pytest

from headrace.remoting.codes import ResponseCode
from headrace.remoting.reading.subscriptions import EVERYTHING, filter_of, is_crowded
from headrace.remoting.reply import RequestRefusedError
from tests.support.remoting import RemotingRig

TAGGED = (b"TAGS\x01A\x02", b"TAGS\x01*\x02", b"k\x01v\x02")


@pytest.mark.parametrize("expression", ["*", ""])
def test_only_a_star_or_nothing_lets_everything_through(expression: str) -> None:
    """remoting.md 4.12."""
    assert filter_of("TAG", expression) == EVERYTHING


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("  ", []),
        ("|| ||", []),
        ("\t", []),
        (" * ", [b"TAGS\x01*\x02"]),
        ("A||", [b"TAGS\x01A\x02"]),
        (" A ||*", [b"TAGS\x01A\x02", b"TAGS\x01*\x02"]),
    ],
)
def test_an_expression_of_blanks_lets_nothing_through(expression: str, wanted: list[bytes]) -> None:
    """RocketMQ 4.9.7 delivers none; a blank is not "everything", and a star among blanks is a tag."""
    codes = filter_of("TAG", expression).codes
    assert codes is not None
    assert [properties for properties in TAGGED if codes.matches(properties)] == wanted


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_an_expression_that_has_no_part_is_refused(expression: str) -> None:
    """RocketMQ's "subString split error"."""
    with pytest.raises(RequestRefusedError) as refused:
        filter_of("TAG", expression)
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_expression_has_one_filter_as_long_as_anything_has_it() -> None:
    """Also where there are more than are kept for themselves."""
    expressions = ["||".join(f"tag-{number}-{word}" for word in range(40)) for number in range(200)]
    held = [filter_of("TAG", expression) for expression in expressions]
    assert all(filter_of("TAG", text) is wanted for text, wanted in zip(expressions, held, strict=True))
    forgotten = weakref.ref(held[0])
    assert forgotten() is not None
    held.clear()
    assert forgotten() is None


def test_filters_that_nothing_has_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those in use count, each expression once."""
    for number in range(100):
        filter_of("TAG", f"{number}-" + "x" * 10_000)
    monkeypatch.setattr("headrace.remoting.reading.subscriptions.MAX_CHARACTERS_IN_USE", 2_000_000)
    assert not is_crowded()
    held = [filter_of("TAG", f"{number % 200}-" + "y" * 10_000) for number in range(400)]
    assert is_crowded()
    del held
    assert not is_crowded()


def test_a_pull_that_wants_nothing_is_not_woken_by_messages(rig: RemotingRig) -> None:
    """It waits as one for another tag does."""
    queue = rig.broker.ensure_topic("T").queues[0]
    woken: list[str] = []
    for expression in ("  ", "*"):
        hashes = filter_of("TAG", expression).hashes
        assert rig.services.holds.hold(queue, 0, 60_000, partial(woken.append, expression), codes=hashes)
    rig.publish("T", [b"x"])
    rig.services.holds.grown(queue)
    assert woken == ["*"]
