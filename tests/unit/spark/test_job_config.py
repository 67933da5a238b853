"""Options of jobs: one declaration for programs, texts, flags and help. Ref: docs/spark/jobs/README.md."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from headrace.errors import ConfigError
from headrace.spark.jobs import JOBS, JobConfig, Summary, Table, load_job, option, table
from headrace.spark.jobs.config import SECRET_VARIABLE, parse_time_ms, show_time
from headrace.spark.jobs.failure import JobFailedError, explain
from headrace.spark.jobs.table import EXTRAS, missing_library
from headrace.spark.times import LAST_MS


@dataclass(frozen=True, kw_only=True)
class Example(JobConfig):
    without = frozenset({"until"})

    to: Path = option(Path(), help="Where.", required=True)  # noqa: RUF009
    split_bytes: int = option(1024, help="Size.", least=10, most=1 << 20)
    wait_ms: int = option(0, help="Time.")
    span: Literal["minute", "hour"] = option("minute", help="Span.")
    share: float = option(0.5, help="Share.", least=0, most=1)
    loud: bool = option(False, help="Loud.")
    limit: int | None = option(None, help="Limit.", most=1000)
    rounds: int = option(0, help="Rounds.", least=0, most=1_000_000_000)
    wait_s: float = option(0.0, help="Seconds.")


make: Any = Example
"""As programs call it, which may leave the types to us."""


def test_texts_are_read_by_the_type_of_the_field():
    config = Example.parse(
        {"to": "/x", "--split-bytes": "64KiB", "wait-ms": "2s", "span": "hour", "loud": "yes", "topics": "a, b",
         "share": "0.25", "limit": "7", "since": "2026-01-31"}
    )  # fmt: skip
    assert (config.to, config.split_bytes, config.wait_ms) == (Path("/x"), 65536, 2000)
    assert (config.span, config.loud, config.topics, config.share, config.limit) == ("hour", True, ("a", "b"), 0.25, 7)
    assert config.since == int(datetime(2026, 1, 31, tzinfo=UTC).timestamp() * 1000)


def test_paths_are_those_of_this_process(tmp_path, monkeypatch):
    """Workers, and Spark's JVM, were started elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert (make(to="x").to, make(to=".").to, make(to="/a/../b:c d").to) == (
        tmp_path / "x", tmp_path, Path("/a/../b:c d"),
    )  # fmt: skip
    assert make(to="~/x").to == Path.home() / "x"


def test_values_of_a_program_are_checked_in_the_same_way():
    assert make(to="/x", topics=["a", "b"]).topics == ("a", "b")
    with pytest.raises(ConfigError, match=r"--split-bytes is 1: accepted is 10\.\.1"):
        make(to="/x", split_bytes=1)


def test_commas_of_texts_separate_and_those_of_a_programs_items_do_not():
    """Keys have commas in them now and then."""
    assert Example.parse({"to": "/x", "topics": "a, b\\,c"}).topics == ("a", "b,c")
    assert Example.parse({"to": "/x", "topics": ("a,b", "c\\,d")}).topics == ("a", "b", "c,d")  # a repeated flag
    config = make(to="/x", topics=("a,b", "c\\,d"))
    assert config.topics == ("a,b", "c\\,d")
    assert replace(config, share=1.0).topics == config.topics


def test_what_a_list_has_twice_counts_once():
    """Runs of ``dedup --topics orders`` and ``--topics orders,orders`` had identities of their own: all came twice."""
    assert Example.parse({"to": "/x", "topics": ("b,a,b", "a")}).topics == ("b", "a")
    assert make(to="/x", topics=("a", "a")).topics == ("a",)


def test_an_empty_list_is_no_way_to_say_all():
    """``--topics "$TOPICS"`` with a variable that is not set."""
    for empty in ("", " ", ",", "orders,,", "orders,", ("",), ["a", ""]):
        with pytest.raises(ConfigError, match=r"--topics .*: a value is needed"):
            make(to="/x", topics=empty)
    with pytest.raises(ConfigError, match=r"--topics .*: a value is needed"):
        Example.parse({"to": "/x", "topics": ("",)})
    with pytest.raises(ConfigError, match="--topics 'a,': a value"):  # as it was typed, not as Python shows a list
        make(to="/x", topics=["a", ""])
    assert make(to="/x", topics=()).topics == ()


@pytest.mark.parametrize("name", [name for name in JOBS if load_job(name).config.options()])
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_text_is_no_way_to_set_nothing(name, empty):
    """``replay --since "$SINCE"`` with a variable that is not set would send everything."""
    for declared in load_job(name).config.options():
        if empty and declared.form == "text":
            continue
        with pytest.raises(
            ConfigError, match=rf"{declared.flag} '{empty}': a value is needed: leave the option away"
        ) as caught:
            load_job(name).config.parse({declared.flag: empty})
        assert caught.value.key == declared.name


def test_blanks_are_a_text_that_may_be_looked_for(tmp_path):
    (tmp_path / "commitlog").mkdir()
    found = load_job("search").config.parse({"--store": str(tmp_path), "--contains": "\t"})
    assert vars(found)["contains"] == "\t"


def test_a_program_says_none_where_it_sets_nothing():
    for name in ("since", "limit", "store"):
        with pytest.raises(ConfigError, match=f"--{name} '': a value is needed"):
            make(to="/x", **{name: ""})
    assert make(to="/x", since=None, servers="").since is None


def test_a_path_that_cannot_be_is_refused(tmp_path):
    """Wrong use, and found before the work: not an error of the disk half-way."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, says in (
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "loop", "symbolic links"),
        (f"{tmp_path}/\0", "embedded null"),
    ):
        for name in ("to", "store", "secret_file"):
            with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} .*nothing can be there: .*{says}"):
                make(**{"to": "/x", name: path})
    assert make(to=tmp_path / "new" / ("x" * 255)).to.name == "x" * 255


def test_the_folder_that_one_is_in_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make(to=Path()).to == make(to=Path(".")).to == Example.parse({"to": "."}).to == tmp_path  # noqa: PTH201


def test_a_name_of_the_broker_is_that_of_a_store(tmp_path):
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    for name in ("archive", "stats", "verify"):
        config: Any = load_job(name).config
        to = {} if name == "verify" else {"to": tmp_path / "x"}
        with pytest.raises(ConfigError, match="--broker says what to call the broker of --store"):
            config(servers="a:1", broker="b", **to)
        assert config(store=store, broker="b", **to).broker == "b"
    with pytest.raises(ConfigError, match="leave options of logs away"):
        config(archive=tmp_path, broker="b")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"too": "x"}, "did you mean 'to'"),
        ({"until": "now"}, "there is no option 'until'"),
        ({"to": "/x", "span": "minutes"}, "did you mean 'minute'"),
        ({"to": "/x", "split_bytes": "lots"}, "--split-bytes 'lots'"),
        ({"to": "/x", "split_bytes": "1.5"}, "--split-bytes"),
        ({"to": "/x", "loud": "maybe"}, "true or false"),
        ({"to": "/x", "since": "yesterday"}, "a time is"),
        ({"to": "/x", "since": "2026"}, r"a time is ms since 1970 \(0, or 9 digits and more\)"),
        ({"to": "/x", "share": "2"}, "accepted is 0..1"),
        ({"to": "/x", "rounds": "-1"}, r"accepted is 0\.\.1000000000$"),
        ({"to": "/x", "share": "nan"}, "a number is needed"),
        ({"to": "/x", "wait_s": "inf"}, "a number is needed"),
        ({"to": "/x", "limit": "9" * 400}, "accepted is"),
        ({"to": "/x", "since": "9" * 19}, "years 1 to 9999"),
        ({"to": "/x", "since": "9" * 5000}, "a time is"),
        ({"to": "/x", "split_bytes": "9" * 5000}, r"--split-bytes .* it is more than 2\^63 bytes"),
        ({"to": "/x", "since": "-999999d"}, "years 1 to 9999"),
        ({"to": "file:///x"}, "no URL"),
        ({"to": Path("s3a://bucket/x")}, "no URL"),
        ({"to": "~nobody-of-that-name/x"}, "no such home folder"),
        ({}, "--to is missing"),
    ],
)
def test_wrong_options_name_themselves(given, says):
    with pytest.raises(ConfigError, match=says):
        Example.parse(given)


@pytest.mark.parametrize(
    ("job", "given", "says"),
    [
        ("archive", {"to": "new", "columns": "topic,bodi"}, "there is no column 'bodi'; did you mean 'body'"),
        ("archive", {"to": "other"}, "other is not empty and is no archive"),
        ("archive", {"to": "archive/day=1"}, "lies in an archive"),
        ("rebuild", {"to": "archive/new"}, "lies in an archive"),
        ("replay", {"archive": "none"}, "--archive .*none is not a directory"),
        ("replay", {"archive": "other"}, "--archive .*other is not an archive"),
        ("replay", {"archive": "archive", "to": "a.b"}, "--to: 'a.b' is no name of a topic to write to"),
        ("replay", {"archive": "archive", "map": "a=b,c=%SYS%d"}, "--map 'c=%SYS%d': '%SYS%d' is no name of a topic"),
        ("verify", {"archive": "other"}, "--archive .*other is not an archive"),
        ("search", {"archive": "other", "key": "k"}, "--archive .*other is not an archive"),
        ("dedup", {"archive": "other"}, "--archive .*other is not an archive"),
        ("dedup", {"topics": "a", "to_topic": "a.b"}, "--to-topic: 'a.b' is no name of a topic"),
        ("alerts", {"to_topic": "a.b"}, "--to-topic: 'a.b' is no name of a topic"),
    ],
)
def test_what_folders_and_names_have_wrong_is_said_before_spark_starts(job, given, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("archive/_manifest", "other/x", "store/commitlog"):
        (tmp_path / folder).mkdir(parents=True)
    source = {"store": "store"} if job in ("archive", "rebuild") else {"servers": "a:1"} if job != "verify" else {}
    with pytest.raises(ConfigError, match=says):
        load_job(job).config.parse(source | given)


@pytest.mark.parametrize("job", ["verify", "rebuild"])
@pytest.mark.parametrize("levels", ["", "soon", "1s 5 apples"])
def test_delay_levels_are_read_before_spark_starts(job, levels, tmp_path):
    (tmp_path / "commitlog").mkdir()
    given = {"store": str(tmp_path), "delay_levels": levels} | (
        {"to": str(tmp_path / "new")} if job == "rebuild" else {}
    )
    with pytest.raises(ConfigError, match="--delay-levels"):
        load_job(job).config.parse(given)


def test_a_tolerance_is_a_time_that_tasks_can_reckon_with(tmp_path):
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(ConfigError, match="--time-tolerance-ms"):
        load_job("verify").config.parse({"store": str(tmp_path), "time_tolerance_ms": "9" * 18})


def test_times():
    assert parse_time_ms("2026-01-31T12:00:00+01:00") == parse_time_ms("2026-01-31T11:00")
    assert parse_time_ms("1700000000000") == 1_700_000_000_000
    assert parse_time_ms("0") == 0
    assert parse_time_ms("20260131") == parse_time_ms("2026-01-31")
    assert parse_time_ms("2038-05-07T11:26:58.924") == 2_156_844_418_924  # a float would make it one less
    assert parse_time_ms("2026-01-31T12:00:00.0001") == parse_time_ms("2026-01-31T12:00") + 1  # that was before it
    assert parse_time_ms(datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)) == parse_time_ms("2026-01-31T12:00") + 1
    assert parse_time_ms(datetime.max.replace(tzinfo=UTC)) == LAST_MS
    assert parse_time_ms("now") - parse_time_ms("-2h") == pytest.approx(7_200_000, abs=5000)
    assert show_time(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert show_time(None) is None


def test_since_must_be_before_until():
    with pytest.raises(ConfigError, match="not before"):
        JobConfig(since=5, until=5)


@pytest.mark.parametrize("servers", ["127.0.0.1", "a:1;b", "a:port", ";"])
def test_servers_are_checked_before_spark_starts(servers):
    with pytest.raises(ConfigError, match=r"--servers '.*': .*(is no address: it is host:port|name a registry)"):
        JobConfig(servers=servers)
    assert JobConfig(servers="a:1, b:2").servers == "a:1, b:2"


@pytest.mark.parametrize(("name", "says"), [("dedup", ", or --archive DIR$"), ("stats", r"\(the brokers are asked\)$")])
def test_an_archive_is_named_where_it_may_be_read_instead(name, says):
    given = {"--to": "/x"}
    with pytest.raises(ConfigError, match=f"either --store DIR .*{says}"):
        load_job(name).config.parse(given).validate()


def test_exactly_one_source(tmp_path):
    for wrong in ({}, {"servers": "a:1", "store": tmp_path}):
        with pytest.raises(ConfigError, match="either --store"):
            JobConfig(**wrong).require_source()
    with pytest.raises(ConfigError, match="is not a directory"):
        JobConfig(store=tmp_path / "none").require_source()
    with pytest.raises(ConfigError, match=r"--store .* is no store: it has no folder commitlog; name the broker's"):
        JobConfig(store=tmp_path).require_source()
    (tmp_path / "commitlog").mkdir()
    JobConfig(store=tmp_path).require_source()


def test_secret_comes_from_file_or_environment_and_is_never_shown(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text("hush\n")
    config = JobConfig(servers="a:1", access_key="me", secret_file=path)
    assert config.secret_key() == "hush"
    assert "hush" not in repr(config)
    monkeypatch.setenv(SECRET_VARIABLE, "other")
    assert JobConfig(servers="a:1", access_key="me").secret_key() == "other"
    assert JobConfig(servers="a:1").secret_key() == ""
    for wrong in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            JobConfig(servers="a:1", secret_file=wrong)


@pytest.mark.parametrize("given", [{"access_key": "me"}, {"secret_file": "secret"}])
def test_one_key_alone_is_refused_in_one_sentence(given, tmp_path, monkeypatch):
    """It was a ValueError of the connection, with its traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    (tmp_path / "secret").write_text("hush")
    with pytest.raises(ConfigError, match=r"--access-key.* secret"):
        JobConfig(servers="a:1", **given)


@pytest.mark.parametrize("given", [{"access_key": "me"}, {"secret_file": "secret"}])
def test_keys_are_for_servers(given, tmp_path):
    """A job that reads files took no notice of them, not even of a secret file that was not there."""
    with pytest.raises(ConfigError, match="--access-key and --secret-file are for --servers"):
        JobConfig(store=tmp_path, **given)


def test_every_job_has_options_a_help_and_no_pyspark_at_import():
    for name in JOBS:
        job = load_job(name)
        assert job.doc.strip()
        assert all(declared.help.endswith(".") for declared in job.config.options()), name
        assert len({declared.flag for declared in job.config.options()}) == len(job.config.options())


def test_unknown_job_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'archive'"):
        load_job("archve")


def test_missing_library_says_which_extra_brings_it():
    with pytest.raises(ConfigError, match=r"pip install '\.\[spark\]' in a clone"), missing_library("stats"):
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")
    with pytest.raises(ModuleNotFoundError), missing_library("stats"):
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_summary_is_the_same_for_programs_and_people():
    summary = Summary(job="x", facts={"log_bytes": 5 << 20, "messages": 1234, "end_offset": 1234, "none": None})
    summary.tables.append(Table("topics", "Topics", ("topic", "messages"), [("a", 1)]))
    assert summary.to_dict()["topics"] == [{"topic": "a", "messages": 1}]
    assert dict(summary.rows()) == {
        "log bytes": "5,242,880 (5.0 MiB)", "messages": "1,234", "end offset": "1234", "none": "-",
    }  # fmt: skip


def test_errors_of_tasks_are_unwrapped():
    class PySparkError(Exception):
        __module__ = "pyspark.errors"

    text = (
        "Job aborted\n  File x\nheadrace.spark.errors.DataLossError: offsets 1 to 5 are gone\n\tat org.apache.spark.X\n"
    )
    assert str(explain(PySparkError(text))) == "offsets 1 to 5 are gone"
    lost = explain(PySparkError(text.replace("are gone", "are gone: removed; failOnDataLoss=false goes on")))
    assert str(lost) == "offsets 1 to 5 are gone: removed"  # an option of the source, which no job has
    assert isinstance(explain(PySparkError("a\nheadrace.errors.ConfigError: wrong\n")), ConfigError)
    assert "ValueError: bad" in str(explain(PySparkError("x\njava.lang.IOError: no\nValueError: bad\n")))
    trace = 'Traceback (most recent call last):\n  File "a.py", line 65, in merge\n    joined = pa.concat()\n'
    thrown = (
        f"An exception was thrown from the Python worker:\n{trace}pyarrow.lib.ArrowInvalid: Schema of\ntopic: string\n"
    )
    assert str(explain(PySparkError(thrown))) == "a task failed: pyarrow.lib.ArrowInvalid: Schema of"
    assert str(explain(PySparkError("\nsomething else\n"))) == "Spark failed: something else"
    called = "An error occurred while calling o17.parquet.\n: org.apache.spark.SparkException: Job aborted.\n\tat x\n"
    assert str(explain(PySparkError(called))) == "Spark failed: SparkException: Job aborted."
    cause = "Caused by: java.io.IOException: Stale file handle\n\t... 1 more\n"
    assert str(explain(PySparkError(called + cause))) == "Spark failed: IOException: Stale file handle"
    full = str(explain(PySparkError(called + cause.replace("Stale file handle", "No space left on device"))))
    assert full.startswith("a disk is full: that of the folder the job writes to, or Spark's own")
    killed = called.replace(
        "aborted.", "aborted: Lost task 0.0: Python worker exited unexpectedly (crashed). Consider x"
    )
    killed += "Caused by: java.io.EOFException\n\t... 1 more\n"
    assert "a Python worker of Spark ended in the middle of its task" in str(explain(PySparkError(killed)))
    chain = (
        ": org.apache.spark.SparkException: Job aborted: java.io.IOException: Cannot run program /x: error=2, none\n"
        "\tat x\nCaused by: java.io.IOException: Cannot run program /x: error=2, none\n\t... 1 more\n"
        "Caused by: java.io.IOException: error=2, none\n\t... 1 more\n"
    )
    assert str(explain(PySparkError(chain))) == "Spark failed: IOException: Cannot run program /x: error=2, none"
    read = "\n: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
    read += "file:///a/dt=2026-01-01/p.parquet.  SQLSTATE: KD001\n"
    cause = "Caused by: org.apache.parquet.io.ParquetDecodingException: CRC checksum verification failed\n"
    says = "/a/dt=2026-01-01/p.parquet cannot be read: ParquetDecodingException: CRC checksum verification failed"
    assert str(explain(PySparkError(f"An error occurred while calling o1.count.{read}{cause}"))) == says
    assert explain(ValueError("ours")) is None


def test_help_of_each_job_needs_nothing_that_an_extra_brings() -> None:
    """Who looks at what a job does has not installed it yet."""
    brought = sorted(EXTRAS.keys() - {"google"})  # others bring packages of that name too
    script = f"""
import sys
for name in {brought!r}:
    sys.modules[name] = None
from headrace.cli.program import run
from headrace.spark.jobs import JOBS
sys.exit(any([run(["job", name, "--help"]) for name in JOBS]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: headrace job ") == len(JOBS)


@pytest.mark.parametrize(("code", "says"), [("", "Java process ended in the middle"), ("input()", "refused")])
def test_a_java_that_was_killed_is_named(monkeypatch: pytest.MonkeyPatch, code: str, says: str) -> None:
    """By a system that is out of memory. What is told is no refused connection, unless it is another one."""

    def refused(*_: Any) -> Any:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(table, "_JAVA_ENDS_S", 0.5 if code else 30)
    monkeypatch.setattr(table, "load_job", lambda name: table.Job(name, Example, refused, ""))
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as java:
        spark: Any = SimpleNamespace(_sc=SimpleNamespace(_gateway=SimpleNamespace(proc=java)))
        with pytest.raises((JobFailedError, ConnectionRefusedError), match=says):
            table.run_job(spark, "stats", make(to="x", store="."))
        java.kill()
