"""Results files, tables and the generated sections of docs/performance.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cases import CASES
from bench.document import DOCUMENT, markers, replace_section
from bench.report import MARKS, draw_plot, part_of, render_markdown
from bench.results import CaseResult, ContestantResult, read_results, write_results
from tests.unit.bench.example_runs import make_run

SAMPLES = {
    "headrace": [{"messages_per_s": rate, "server_cpu_us": 0.5} for rate in (1_000_000.0, 3_000_000.0, 2_000_000.0)],
    "disk": [{"messages_per_s": 400_000.0, "syncs_per_s": 2_000.0}],
}


def test_a_table_has_medians_and_leaves_missing_figures_empty() -> None:
    lines = render_markdown(make_run(SAMPLES)).splitlines()
    case = lines.index(next(line for line in lines if line.startswith("### ")))
    table = [line for line in lines[case:] if line.startswith("|")]
    assert table == [
        "| | msg/s | server CPU us/msg | fdatasync/s |",
        "| --- | ---: | ---: | ---: |",
        "| headrace | 2,000,000 | 0.500 |  |",
        "| disk | 400,000 |  | 2,000 |",
    ]


def test_a_report_says_where_when_and_how() -> None:
    """Numbers in documents carry date, command and hardware."""
    text = render_markdown(make_run(SAMPLES))
    for part in (
        "Measured 2026-01-02 at commit `0123456789` with `python -m bench.run --full`: median of 3 samples",
        "Hardware: Some CPU, 2 cores, 24 GiB, Linux 6.1, ext4; server on core 0, load on core 1.",
        "nsqd 1.3.0",
        "- headrace: `load for headrace`",
    ):
        assert part in text


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = make_run(SAMPLES)
    write_results(run, tmp_path / "run.json")
    assert read_results(tmp_path / "run.json") == run
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["cases"][0]["contestants"]["headrace"]["medians"]["messages_per_s"] == 2_000_000


def test_results_of_another_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_results(make_run(SAMPLES), path)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ValueError, match="format 2"):
        read_results(path)


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    begin, end = markers("bench", "python -m bench.report")
    text = replace_section(f"# A\n\n{begin}\nold\n{end}\n\nkept\n", "bench", "python -m bench.report", "new")
    assert text == f"# A\n\n{begin}\n\nnew\n{end}\n\nkept\n"
    assert replace_section(text, "bench", "python -m bench.report", "new") == text


def test_a_document_without_markers_is_left_alone() -> None:
    with pytest.raises(ValueError, match="no bench markers"):
        replace_section("# By hand\n", "bench", "python -m bench.report", "new")


def test_an_empty_document_gets_the_section() -> None:
    assert "new" in replace_section("", "bench", "python -m bench.report", "new")


def test_a_case_with_rocketmq_has_ratios_and_targets() -> None:
    run = make_run({})
    figures = {
        "headrace": (700.0, 2.0),
        "rocketmq-4.9.7": (100.0, 16.0),
        "rocketmq-5.5.0": (50.0, 0.0),
        "null": (9.0, 1),
    }
    samples = {name: [{"messages_per_s": rate, "server_cpu_us": cpu}] for name, (rate, cpu) in figures.items()}
    contestants = {name: ContestantResult("load", taken) for name, taken in samples.items()}
    run.cases = [CaseResult("rocket-send-256", "256 in flight", contestants)]
    lines = render_markdown(run).splitlines()
    assert [line for line in lines if "/ rocketmq" in line] == [
        "| headrace / rocketmq-4.9.7 | 7.00 | 0.125 |",
        "| headrace / rocketmq-5.5.0 | 14.00 |  |",
    ]
    assert [line for line in lines if " at " in line][1:] == [
        "| 256 in flight | msg/s at least 6.00 of rocketmq-4.9.7 | 7.00 |  |",
        "| 256 in flight | server CPU us/msg at most 2.200 | 2.000 |  |",
    ]
    contestants["headrace"].samples[0]["server_cpu_us"] = 2.3
    assert "| 256 in flight | server CPU us/msg at most 2.200 | 2.300 | missed |" in render_markdown(run)


def test_a_run_is_divided_by_protocol() -> None:
    """A section is replaced only where the run has cases of it."""
    run = make_run(SAMPLES)
    assert part_of(run, "nsq") == run
    assert part_of(run, "rocketmq").cases == []


@pytest.mark.parametrize(
    ("name", "command"),
    [("bench", "python -m bench.report"), ("rocketmq", "python -m bench.report"), ("scale", "python -m bench.scale")],
)
def test_the_document_has_a_place_for_every_section(name: str, command: str) -> None:
    assert "figures" in replace_section(DOCUMENT.read_text(), name, command, "figures")


def test_every_contestant_has_a_mark_in_the_plot() -> None:
    assert {contestant for case in CASES for contestant in case.contestants} == MARKS.keys()


def test_the_same_run_gives_the_same_plot(tmp_path: Path) -> None:
    """A document made again from its results file does not change."""
    pytest.importorskip("matplotlib", reason="pip install '.[bench]'")
    run = make_run(SAMPLES)
    for name in ("first.svg", "second.svg"):
        assert draw_plot(run, tmp_path / name)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
