"""Reading a queue, compiled, against a plain reference; and the logic of filters against Kleene's."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from headrace.batch import PublishBatch, RecordBatch
from headrace.broker.consumers.sql92 import compile_filter
from headrace.broker.pull import Codes, PullStatus, find_offset_by_time, read_queue
from headrace.format.record import tag_hash
from tests.support.channels import COLD, DAMAGED, GONE, scripted_log
from tests.support.layouts import encode_properties

TAGS = ["", "Aa", "BB", "c"]
"""The first two tags have one hash."""


@dataclass
class Entry:
    tag: str
    fault: int
    at_ms: int


ENTRIES = st.lists(
    st.builds(
        Entry,
        st.sampled_from(TAGS),
        st.sampled_from([0, 0, 0, 0, DAMAGED, COLD, GONE, 99]),
        st.integers(0, 20),
    ),
    max_size=20,
)


def build(entries: list[Entry]) -> object:
    log = scripted_log.ScriptedLog()
    queue = scripted_log.ScriptedQueue("t", 0, log)
    for offset, entry in enumerate(entries):
        batch = PublishBatch()
        batch.destinations, batch.queues = ["t"], [queue]
        properties = encode_properties({"TAGS": entry.tag}) if entry.tag else None
        batch.append(b"%d" % offset, properties=properties, tag_hash=tag_hash(entry.tag) if entry.tag else 0)
        log.append(batch, entry.at_ms)
        if entry.fault == 99:
            queue.holes.add(offset)
        elif entry.fault:
            log.outcomes[queue.entry(offset)] = entry.fault
    return queue


def expected_read(
    entries: list[Entry], start: int, most: int, tags: set[str] | None, exact: bool
) -> tuple[list[int], int, PullStatus]:
    """Return what a read finds, where it goes on and what it says."""
    hashes = None if tags is None else {tag_hash(tag) for tag in tags}
    found: list[int] = []
    gone = cold = False
    offset = start
    while offset < len(entries) and len(found) < max(most, 1):
        entry = entries[offset]
        own_hash = tag_hash(entry.tag) if entry.tag else 0
        if entry.fault != 99 and (hashes is None or own_hash in hashes):
            if entry.fault == COLD:
                cold = True
                break
            gone = gone or entry.fault == GONE
            if not entry.fault and (tags is None or not exact or entry.tag in tags):
                found.append(offset)
        offset += 1
    if found:
        return found, offset, PullStatus.FOUND
    if cold:
        return found, offset, PullStatus.COLD
    return found, offset, PullStatus.MESSAGE_WAS_REMOVING if gone else PullStatus.NO_MATCHED_MESSAGE


@given(
    ENTRIES,
    st.integers(-1, 22),
    st.integers(0, 8),
    st.none() | st.sets(st.sampled_from(TAGS[1:]), min_size=1),
    st.booleans(),
)
def test_reads_equal_the_reference(
    entries: list[Entry], start: int, most: int, tags: set[str] | None, exact: bool
) -> None:
    """remoting.md 3.10."""
    queue = build(entries)
    codes = None if tags is None else Codes([tag_hash(tag) for tag in tags], tags if exact else ())
    records = RecordBatch()
    result = read_queue(queue, start, most, 1 << 20, codes, None, records)  # type: ignore[arg-type]
    end = len(entries)
    if not end:
        assert (result.status, result.next_offset) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0)
    elif start < 0:
        assert (result.status, result.next_offset) == (PullStatus.OFFSET_TOO_SMALL, 0)
    elif start >= end:
        status = PullStatus.OFFSET_OVERFLOW_ONE if start == end else PullStatus.OFFSET_OVERFLOW_BADLY
        assert (result.status, result.next_offset) == (status, end)
    else:
        found, next_offset, status = expected_read(entries, start, most, tags, exact)
        assert [int(records.body(index)) for index in range(len(records))] == found
        assert (result.status, result.next_offset) == (status, next_offset)
    records.clear()


@given(st.lists(st.integers(0, 10), max_size=30), st.sets(st.integers(0, 29)), st.integers(-1, 11))
def test_searches_by_time_equal_the_reference(times: list[int], holes: set[int], wanted: int) -> None:
    """remoting.md 4.5, columns "5.x"."""
    times = sorted(times)
    entries = [Entry("", 99 if offset in holes else 0, at_ms) for offset, at_ms in enumerate(times)]
    queue = build(entries)
    readable = [offset for offset in range(len(times)) if offset not in holes]
    lower = next((offset for offset in readable if times[offset] >= wanted), len(times))
    behind = next((offset for offset in readable if times[offset] > wanted), len(times))
    assert find_offset_by_time(queue, wanted, False) == lower  # type: ignore[arg-type]
    assert find_offset_by_time(queue, wanted, True) == max(behind - 1, 0)  # type: ignore[arg-type]


Tree = tuple[str, object, object] | tuple[str, object] | int
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.integers(0, 3),
    lambda inner: st.tuples(st.sampled_from(["AND", "OR"]), inner, inner) | st.tuples(st.just("NOT"), inner),
    max_leaves=12,
)


def render(tree: Tree) -> str:
    if isinstance(tree, int):
        return f"p{tree} = 1"
    if tree[0] == "NOT":
        return f"NOT ({render(tree[1])})"  # type: ignore[arg-type]
    return f"({render(tree[1])}) {tree[0]} ({render(tree[2])})"  # type: ignore[arg-type, misc]


def kleene(tree: Tree, values: dict[str, str]) -> bool | None:
    if isinstance(tree, int):
        value = values.get(f"p{tree}")
        return None if value is None else value == "1"
    first = kleene(tree[1], values)  # type: ignore[arg-type]
    if tree[0] == "NOT":
        return None if first is None else not first
    second = kleene(tree[2], values)  # type: ignore[arg-type, misc]
    decisive = tree[0] == "OR"
    if decisive in (first, second):
        return decisive
    return None if None in (first, second) else not decisive


@given(TREES, st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p3"]), st.sampled_from(["0", "1"])))
def test_logic_is_three_valued(tree: Tree, values: dict[str, str]) -> None:
    """remoting.md 4.12: null AND false = false, null OR true = true, else null; only true delivers."""
    assert compile_filter(render(tree)).matches(encode_properties(values)) == (kleene(tree, values) is True)


@given(st.text(st.sampled_from(list("ab='<>().15-+ \tANDORNTI,/*")), max_size=40))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """Bad input: InvalidFilterError and nothing else."""
    from headrace.errors import InvalidFilterError

    try:
        compiled = compile_filter(text)
    except InvalidFilterError:
        return
    assert compiled.matches(encode_properties({"a": "1", "b": "x"})) in (True, False)
