"""What Spark's benchmarks do beside Spark: data, targets, tables, process trees. No JVM is started here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark's benchmarks need headrace[spark]")

from bench.document import DOCUMENT, replace_section
from bench.errors import BenchError
from bench.results import CaseResult, ContestantResult
from bench.spark import scale
from bench.spark.ceiling import CeilingReader, Share
from bench.spark.data import FRAME_MESSAGES, QUEUES, SHAPES, Shape, make_frames, messages_for
from bench.spark.kafka import broker_properties
from bench.spark.phases import Phase, Stage, headrace_source
from bench.spark.report import render_markdown, render_table
from bench.spark.run import CONTESTANTS, TITLES, Samples, _phases, run_round
from bench.spark.steps import ScanStep, Step
from bench.spark.targets import TARGETS
from bench.spark.tree import TreeMemory, disk_bytes, processes, tree_cpu_seconds
from bench.targets import missed_targets
from tests.unit.bench.example_runs import make_run


def read_batch(body: bytes) -> list[tuple[bytes, dict[str, str]]]:
    """Return (body, properties) of every message of a batch, read by the letter of the format."""
    messages = []
    at = 0
    while at < len(body):
        total = int.from_bytes(body[at : at + 4])
        size = int.from_bytes(body[at + 16 : at + 20])
        text = body[at + 20 : at + 20 + size]
        properties = body[at + 22 + size : at + total].decode()
        assert int.from_bytes(body[at + 20 + size : at + 22 + size]) == len(properties)
        pairs = [pair.partition("\x01") for pair in properties.split("\x02") if pair]
        messages.append((text, {key: value for key, _, value in pairs}))
        at += total
    return messages


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_batch_has_bodies_of_the_shape_and_ids_of_its_own(shape: Shape) -> None:
    (frame,) = make_frames(shape, 1)
    messages = read_batch(frame.with_ids(70_000))
    assert len(messages) == FRAME_MESSAGES
    assert all(shape.least <= len(body) <= shape.most for body, _ in messages)
    ids = [int(properties["UNIQ_KEY"][-16:], 16) for _, properties in messages]
    assert ids == list(range(70_000, 70_000 + FRAME_MESSAGES))
    assert {len(properties) for _, properties in messages} == {4}


def test_a_batch_can_be_cut_between_messages() -> None:
    (frame,) = make_frames(SHAPES["1k"], 1)
    assert read_batch(frame.with_ids(0, 3)) == read_batch(frame.with_ids(0))[:3]


def test_every_run_has_the_same_data() -> None:
    assert make_frames(SHAPES["100"], 2)[1].with_ids(0) == make_frames(SHAPES["100"], 2)[1].with_ids(0)


def test_a_log_has_whole_frames_in_every_queue() -> None:
    messages = messages_for(SHAPES["100"], 1 << 30)
    assert messages % (FRAME_MESSAGES * QUEUES) == 0
    assert 250 < (1 << 30) / messages < 400
    assert messages_for(SHAPES["100"], 1) == FRAME_MESSAGES * QUEUES


def test_shares_of_the_ceiling_make_all_rows() -> None:
    shares = CeilingReader("batch.arrow", 1_000_003, 16).partitions()
    rows = [share.rows for share in shares if isinstance(share, Share)]
    assert sum(rows) == 1_000_003
    assert max(rows) - min(rows) == 1


def test_targets_are_of_cases_and_contestants_that_there_are() -> None:
    for target in TARGETS:
        assert target.case in TITLES, target
        assert {target.contestant, target.than} <= {*CONTESTANTS, ""}, target


def test_every_case_belongs_to_one_phase() -> None:
    cases = [case for _, found in _phases() for case in found]
    assert sorted(cases) == sorted(TITLES)


class FakeSession:
    """A session in which nothing runs."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.version = f"version for {kind}"

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class FakeStep(Step):
    log: list[str] = field(default_factory=list)
    fails_at: int = -1

    def warm_up(self, session: Any) -> None:
        self.log.append(f"warm {self.contestant} in {session.kind}")

    def measure(self, session: Any) -> dict[str, float]:
        self.log.append(self.contestant)
        if self.log.count(self.contestant) == self.fails_at:
            raise BenchError("broken")
        return {"rows_per_s": float(len(self.log))}

    @property
    def command(self) -> str:
        return "nothing"


class FakePhase(Phase):
    """Two cases that stand in the way round, with a contestant of each kind."""

    def __init__(self, fails_at: int = -1, contestants: tuple[str, ...] = ("store", "kafka")) -> None:
        super().__init__(Stage(Path(), "0", frozenset(contestants), frozenset(TITLES), 1, 1, 1.0, "1g"))
        self.log: list[str] = []
        self.fails_at = fails_at

    def _set_up(self) -> None:
        pass

    def prepare(self, session: Any) -> None:
        self.log.append(f"prepare {session.kind}")

    def steps(self) -> list[Step]:
        return self._wanted(
            [
                FakeStep(case, contestant, kind, None, 1, self.log, self.fails_at if kind == "kafka" else -1)
                for kind, contestant in (("headrace", "store"), ("kafka", "kafka"))
                for case in ("scan-100-narrow", "scan-100-wide")
            ]
        )


def test_contestants_of_both_kinds_take_turns_within_a_case() -> None:
    phase, samples = FakePhase(), Samples(make_run({}))
    run_round(phase, samples, FakeSession, is_reversed=False)  # type: ignore[arg-type]
    case = ["warm store in headrace", "warm kafka in kafka", *["store", "kafka"] * 3]
    assert phase.log == ["prepare headrace", "prepare kafka", *case, *case]
    assert list(samples.cases) == ["scan-100-narrow", "scan-100-wide"]
    assert samples.run.versions["spark of kafka"] == "version for kafka"


def test_the_next_round_has_them_in_the_other_order() -> None:
    phase = FakePhase()
    run_round(phase, Samples(make_run({})), FakeSession, is_reversed=True)  # type: ignore[arg-type]
    assert phase.log[2:6] == ["warm kafka in kafka", "warm store in headrace", "kafka", "store"]


def test_who_fails_is_out_of_that_case_for_good() -> None:
    phase, samples = FakePhase(fails_at=2), Samples(make_run({}))
    run_round(phase, samples, FakeSession, is_reversed=False)  # type: ignore[arg-type]
    assert list(samples.cases["scan-100-narrow"].contestants) == ["store"]
    assert len(samples.cases["scan-100-wide"].contestants["kafka"].samples) == 3
    assert samples.run.failures == ["scan-100-narrow kafka: broken"]
    phase.log.clear()
    run_round(phase, samples, FakeSession, is_reversed=False)  # type: ignore[arg-type]
    assert phase.log[2:6] == ["warm store in headrace", "store", "store", "store"]


def test_without_kafka_no_session_of_it_is_opened() -> None:
    phase = FakePhase(contestants=("store",))
    run_round(phase, Samples(make_run({})), FakeSession, is_reversed=False)  # type: ignore[arg-type]
    assert phase.log[:2] == ["prepare headrace", "warm store in headrace"]


def test_a_phase_of_which_nothing_is_asked_opens_no_session() -> None:
    phase = FakePhase(contestants=("headrace",))
    run_round(phase, Samples(make_run({})), FakeSession, is_reversed=False)  # type: ignore[arg-type]
    assert phase.log == []


def scans(**rates: float) -> CaseResult:
    contestants = {
        name.replace("_", "-"): ContestantResult(f"scan of {name}", [{"rows_per_s": rate, "spark_cpu_us": 1.0}])
        for name, rate in rates.items()
    }
    return CaseResult("scan-100-narrow", TITLES["scan-100-narrow"], contestants)


def test_a_table_divides_by_the_ceiling_and_by_kafka() -> None:
    lines = render_table(scans(ceiling=1000.0, store=850.0, kafka=400.0))
    assert lines[0] == "| | rows/s | Spark CPU us/row | / ceiling | / kafka |"
    assert lines[2:] == [
        "| ceiling | 1,000 | 1.00 |  | 2.50 |",
        "| store | 850 | 1.00 | 0.850 | 2.12 |",
        "| kafka | 400 | 1.00 | 0.400 |  |",
    ]


def test_a_report_names_missed_targets_and_how_to_repeat() -> None:
    """Numbers in documents carry date, command and hardware."""
    run = make_run({})
    run.cases = [scans(ceiling=1000.0, store=790.0, servers=900.0, kafka_value=300.0)]
    text = render_markdown(run)
    assert "| Scan, narrow rows, bodies of 100 B: store | rows/s at least 0.800 of ceiling | 0.790 | missed |" in text
    assert "| Scan, narrow rows, bodies of 100 B: servers | rows/s at least 2.00 of kafka-value | 3.00 |  |" in text
    for part in ("Measured 2026-01-02 at commit `0123456789`", "Some CPU, 2 cores", "- store: `scan of store`"):
        assert part in text
    assert "core 0" not in text
    assert missed_targets(run, TARGETS) == [
        "scan-100-narrow: rows/s at least 0.800 of ceiling, measured 0.790",
    ]


def test_commands_name_no_places_of_the_machine() -> None:
    source = headrace_source("topic,tags", store="/tmp/somewhere", scan="log")
    command = ScanStep("scan-100-narrow", "store", "headrace", None, 1, source=source).command
    assert "somewhere" not in command
    assert "'columns': 'topic,tags'" in command


def test_kafka_listens_on_this_machine_only() -> None:
    properties = broker_properties(10_000, 10_001, Path("data"), 4)
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:10000,CONTROLLER://127.0.0.1:10001"
    assert properties["num.partitions"] == "4"


def test_a_tree_counts_what_a_process_started() -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass\ninput()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while len(found := list(processes(process.pid))) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert [role for _, role, _ in found] == ["driver", "driver"]
        while (below := tree_cpu_seconds(process.pid) - found[0][2]) < 0.15 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert below >= 0.15, "of its child, which takes 0.2 s"
        with TreeMemory(process.pid) as memory:
            pass
        assert memory.peaks["driver"] > 1
        assert memory.peaks["jvm"] == 0
        process.communicate(b"\n")


def test_the_own_tree_begins_with_this_process() -> None:
    assert next(processes(os.getpid()))[:2] == (os.getpid(), "driver")


def test_room_without_blocks_takes_no_disk(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "full").write_bytes(bytes(100_000))
    assert disk_bytes(tmp_path) < 1 << 20


def archives(*figures: tuple[int, float]) -> CaseResult:
    contestants = {
        f"{size:,} messages": ContestantResult(
            "headrace job archive",
            [{"rows_per_s": 1e6 / s_per_million, "s_per_million": s_per_million, "jvm_mib": 500.0}],
        )
        for size, s_per_million in figures
    }
    return CaseResult(scale.CASE, scale.TITLE, contestants)


def test_growth_is_that_of_the_last_size_over_the_first() -> None:
    assert scale.growth(archives((1000, 2.0), (2000, 9.0), (5000, 2.5))) == {"s_per_million": 1.25, "jvm_mib": 1.0}
    assert scale.growth(archives((1000, 2.0))) == {}


def test_a_scale_table_has_a_column_for_each_size() -> None:
    run = make_run({})
    run.cases = [archives((1000, 2.0), (5000, 2.5))]
    lines = scale.render_markdown(run).splitlines()
    assert "| | 1,000 messages | 5,000 messages | last / first |" in lines
    assert "| s per million rows | 2.00 | 2.50 | 1.25 |" in lines


@pytest.mark.parametrize(
    ("name", "command"), [("spark", "python -m bench.spark.report"), ("spark-scale", "python -m bench.spark.scale")]
)
def test_the_document_has_a_place_for_spark(name: str, command: str) -> None:
    assert "figures" in replace_section(DOCUMENT.read_text(), name, command, "figures")
