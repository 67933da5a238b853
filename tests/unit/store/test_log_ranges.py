"""Pieces of the log as bytes: where they end, and that they outlive their file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.store.log_ranges import LogRange, find_range, next_file
from headrace.store.segment import Segment, SegmentSet, create_segment_file

SIZE = 8192


@dataclass
class FewSegments:
    """What the functions look at of a log whose second segment has no file."""

    segments: SegmentSet
    segment_bytes: int = SIZE
    first_offset: int = 0
    durable_offset: int = 3 * SIZE - 100
    end_offset: int = 3 * SIZE

    def segment_of(self, physical_offset: int) -> Segment | None:
        return self.segments.get(physical_offset // SIZE)


@pytest.fixture
def log(tmp_path: Path) -> FewSegments:
    for index in (0, 2):
        path = tmp_path / f"{index * SIZE:020d}"
        create_segment_file(str(path), SIZE)
        path.write_bytes(bytes([index + 1]) * SIZE)
    segments = SegmentSet(str(tmp_path), SIZE, 2)
    segments.load()
    return FewSegments(segments)


@pytest.mark.parametrize(
    ("offset", "most", "position", "size"),
    [
        (0, 100, 0, 100),
        (10, 2 * SIZE, 10, SIZE - 10),
        (SIZE - 1, 100, SIZE - 1, 1),
        (2 * SIZE, 2 * SIZE, 0, SIZE - 100),
        (3 * SIZE - 101, 50, SIZE - 101, 1),
    ],
)
def test_range_ends_with_its_segment_and_with_what_is_durable(
    log: FewSegments, offset: int, most: int, position: int, size: int
) -> None:
    """A-STORE-08: the file of an offset is the offset divided by a file's size."""
    found = find_range(log, offset, most)  # type: ignore[arg-type]
    assert found is not None
    assert (found.position, found.size) == (position, size)
    found.read_in()
    assert bytes(found.view()) == bytes([offset // SIZE + 1]) * size


def test_part_without_a_file(log: FewSegments) -> None:
    assert find_range(log, SIZE + 5, 100) is None  # type: ignore[arg-type]
    assert next_file(log, SIZE + 5) == 2 * SIZE  # type: ignore[arg-type]
    assert next_file(log, 2 * SIZE + 5) == log.durable_offset  # type: ignore[arg-type]


def test_view_outlives_its_file(log: FewSegments) -> None:
    found = find_range(log, 0, SIZE)  # type: ignore[arg-type]
    assert found is not None
    view = found.view()
    path = Path(log.segments.path_of(0))
    log.segments.leave_out(0)
    path.unlink()
    del found
    assert bytes(view) == b"\x01" * SIZE
    assert view.readonly


@pytest.mark.parametrize(("position", "size"), [(-1, 5), (0, -1), (1, SIZE), (SIZE + 1, 0)])
def test_views_lie_within_their_segment(log: FewSegments, position: int, size: int) -> None:
    segment: Segment = log.segments[0]
    with pytest.raises(IndexError):
        LogRange(segment, position, size).view()
