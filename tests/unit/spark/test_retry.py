"""Asking a broker again: what counts as a failure of it."""

from typing import cast

import pytest

from headrace.errors import ClientError, ConnectionLostError, RequestTimeoutError
from headrace.remoting.blocking import Cluster
from headrace.spark import retry
from headrace.spark.errors import BrokerGoneError
from headrace.spark.retry import Retry, insist


class MovingCluster:
    """Registries that say another address each time they are asked, in order; the last one for ever."""

    def __init__(self, *addresses: str) -> None:
        self.address = ""
        self._next = list(addresses)
        self.brokers()

    def brokers(self) -> dict[str, str]:
        self.address = self._next.pop(0) if len(self._next) > 1 else self._next[0]
        return self.known_addresses()

    def known_addresses(self) -> dict[str, str]:
        return {"b": self.address}


def ask_at(cluster: MovingCluster, served: str, retries: int, *, error: ClientError | None = None) -> list[str]:
    """Ask until the broker is asked at ``served``; return where it was asked."""
    asked = []

    def ask() -> None:
        asked.append(cluster.address)
        if cluster.address != served:
            raise error or ConnectionLostError(cluster.address, "refused")

    try:
        insist(cast("Cluster", cluster), "b", "its state", retries, ask)
    except BrokerGoneError:
        asked.append("gone")
    return asked


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_BACKOFF_S", 0.0)


def test_a_broker_that_moved_is_asked_where_it_is_without_retries() -> None:
    """Its address had been known for some seconds: the end of a sink's batch failed by that."""
    assert ask_at(MovingCluster("old", "new"), "new", 0) == ["old", "new"]


def test_a_broker_that_is_gone_is_asked_as_often_as_said() -> None:
    assert ask_at(MovingCluster("old"), "new", 0) == ["old", "gone"]
    assert ask_at(MovingCluster("old"), "new", 2) == ["old", "old", "old", "gone"]


def test_a_broker_that_goes_on_moving_is_gone() -> None:
    assert ask_at(MovingCluster("1", "2", "3", "4", "5", "6"), "6", 0)[-1] == "gone"


def test_a_broker_that_does_not_answer_has_not_moved() -> None:
    assert ask_at(MovingCluster("old", "new"), "new", 0, error=RequestTimeoutError("old", "a pull", 1.0)) == [
        "old",
        "gone",
    ]


def test_a_broker_that_has_served_since_may_move_again() -> None:
    """A long read asks one broker many times."""
    cluster = MovingCluster("1", "2", "2", "3")
    retry_of = Retry(cast("Cluster", cluster), "b", "its log", 0)
    for address in ("1", "2"):
        retry_of.failed(ConnectionLostError(address, "refused"))
        retry_of.succeeded()
    with pytest.raises(BrokerGoneError):
        retry_of.failed(ConnectionLostError("3", "refused"))


def test_a_broker_is_asked_however_often_it_is_said() -> None:
    """Whoever said ten thousand times lost the query after 85 minutes: the pause was no number any more."""
    assert len(ask_at(MovingCluster("old"), "new", 1100)) == 1102
