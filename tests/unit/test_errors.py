"""What the protocols make of the core's refusals: every error has its row, and a subclass has at least its base's."""

from __future__ import annotations

import errno
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import headrace.errors
from headrace.errors import AccessDeniedError, FlushError, HeadraceError, RequestError, StoreError, row_of
from headrace.nsq.http_api import HTTP_REFUSALS
from headrace.nsq.refusal import TCP_REFUSALS, refusal_of
from headrace.remoting.reply import RESPONSE_CODES

TABLES: dict[str, Mapping[type[HeadraceError], Any]] = {
    "nsq": TCP_REFUSALS,
    "nsq_http": HTTP_REFUSALS,
    "remoting": RESPONSE_CODES,
}


class KeyRevokedError(AccessDeniedError):
    """An error of tomorrow, below one of today's."""


def descendants(base: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    for cls in base.__subclasses__():
        yield cls
        yield from descendants(cls)


@pytest.fixture(scope="module", autouse=True)
def _errors_of_the_core_and_the_servers() -> None:
    """Subclasses are known once their modules are imported."""
    for package in ("broker", "format", "nsq", "registry", "remoting", "store"):
        parent = importlib.import_module(f"headrace.{package}")
        for module in pkgutil.walk_packages(parent.__path__, f"{parent.__name__}."):
            importlib.import_module(module.name)


@pytest.mark.parametrize("protocol", TABLES)
def test_every_refusal_has_a_row_in_each_protocols_table(protocol: str) -> None:
    """Those that all protocols share have one of their own, so that a new one is not forgotten; others their base's."""
    table = TABLES[protocol]
    for base in (RequestError, StoreError):
        for cls in descendants(base):
            assert row_of(table, cls.__new__(cls)), cls
    shared = {cls for cls in RequestError.__subclasses__() if cls.__module__ == headrace.errors.__name__}
    assert shared - set(table) == set()


@pytest.mark.parametrize("protocol", TABLES)
def test_a_subclass_has_the_row_of_its_nearest_base(protocol: str) -> None:
    """Not the general one."""
    table = TABLES[protocol]
    assert row_of(table, KeyRevokedError("no")) == table[AccessDeniedError] != table[RequestError]


def test_a_subclass_is_named_to_nsq_clients_as_its_base_is() -> None:
    """nsq.md 1.13: clients look at the code alone."""
    assert refusal_of("PUB", KeyRevokedError("key revoked")).data == b"E_UNAUTHORIZED PUB key revoked"


def test_an_error_outside_the_table_is_a_bug() -> None:
    """No row is made up for it."""
    with pytest.raises(KeyError, match="HeadraceError"):
        row_of(TCP_REFUSALS, HeadraceError("?"))


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (errno.EFBIG, "raise the limit of file sizes (ulimit -f)"),
        (errno.ENOSPC, "make room on its disk"),
        (errno.EIO, "see to the disk and to whose the files are"),
        (errno.ENOENT, "put it back, or restore the store from a backup"),
    ],
)
def test_a_store_that_takes_no_more_writes_says_what_helps(reason, remedy):
    """Not of every reason the disk is to blame: a limit of the process ends writes too."""
    text = str(FlushError("/data/commitlog/0", reason))
    assert text.endswith(f"the store takes no more writes: {remedy}, then restart the broker")
