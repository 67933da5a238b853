"""Which client publishes the weather: RocketMQ's own in Go, else its own in Java, else the protocol by hand.

All three are programs that read lines and send each as a message, and print ``ANSWERED RESENT`` after each batch. They
are built in a folder of this repository, and only when what stands there was built from other sources.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
BUILT: Final = HERE.parent / ".cache" / "demo"
BUILD_SECONDS: Final = 240.0


@dataclass(frozen=True)
class WeatherClient:
    """A program that publishes.

    Attributes:
        name: What it is, for the person who watches.
        command: What to run; the registry's address and the topic follow.
        reason: Why it is not a better one; empty for the first choice.
    """

    name: str
    command: tuple[str | Path, ...]
    reason: str = ""


class CannotBuildError(Exception):
    """A client cannot be built on this machine; the text says why."""


def make_client() -> WeatherClient:
    """Build the best client this machine can, and return it."""
    reasons = []
    for build in (_build_go, _build_java):
        try:
            name, command = build()
        except CannotBuildError as error:
            reasons.append(str(error))
        else:
            return WeatherClient(name, command, "; ".join(reasons))
    command = (sys.executable, "-m", "demo.raw_writer")
    return WeatherClient("raw remoting in Python", command, "; ".join(reasons))


def _build_go() -> tuple[str, tuple[str | Path, ...]]:
    if shutil.which("go") is None:
        raise CannotBuildError("there is no Go")
    source, program = HERE / "rocketgo", BUILT / "weather-go"
    # Not another Go than the one that is here: nothing is fetched but modules.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(program), "."]
    _build(command, source, program, environment)
    return "RocketMQ's Go client 2.1.2", (program,)


def _build_java() -> tuple[str, tuple[str | Path, ...]]:
    for tool in ("javac", "mvn"):
        if shutil.which(tool) is None:
            raise CannotBuildError(f"there is no {tool}")
    source, libraries = HERE / "rocketjava", BUILT / "java"
    command = ["mvn", "-q", "-B", "-f", str(source / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={libraries}", "-DincludeScope=runtime"]
    _build(command, source, libraries, dict(os.environ))
    java: tuple[str | Path, ...] = ("java", f"-Duser.home={BUILT}", "-cp", f"{libraries}/*", source / "Weather.java")
    return "RocketMQ's Java client 4.9.8", java


def _build(command: list[str], source: Path, product: Path, environment: dict[str, str]) -> None:
    """Run a build in its source folder, unless its product was built from the same."""
    digest = hashlib.sha256(" ".join(command).encode())
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    mark = product.with_name(product.name + ".built-from")
    if product.exists() and mark.exists() and mark.read_text() == digest.hexdigest():
        return
    BUILT.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    try:
        built = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise CannotBuildError(f"{command[0]} took longer than {BUILD_SECONDS:.0f} s") from error
    if built.returncode:
        lines = (built.stderr or built.stdout).strip().splitlines() or ["no output"]
        raise CannotBuildError(f"{command[0]} failed: {lines[-1]}")
    mark.write_text(digest.hexdigest())
