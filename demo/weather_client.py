"""Which client publishes the weather: RocketMQ's own in Go, else its own in Java, else the protocol by hand.

All three are programs that read lines and send each as a message, and print ``ANSWERED RESENT`` after each batch. They
are built in a folder of this repository, and only when what stands there was built from other sources.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.spark.java import NO_TRACE

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


async def make_client() -> WeatherClient:
    """Build the best client this machine can, and return it."""
    reasons = []
    for build in (_build_go, _build_java):
        try:
            name, command = await build()
        except CannotBuildError as error:
            reasons.append(str(error))
        else:
            return WeatherClient(name, command, "; ".join(reasons))
    command = (sys.executable, "-m", "demo.raw_writer")
    return WeatherClient("raw remoting in Python", command, "; ".join(reasons))


async def _build_go() -> tuple[str, tuple[str | Path, ...]]:
    if shutil.which("go") is None:
        raise CannotBuildError("there is no Go")
    source, program = HERE / "rocketgo", BUILT / "weather-go"
    # Not another Go than the one that is here: nothing is fetched but modules.
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    command = ["go", "build", "-trimpath", "-buildvcs=false", "-o", str(program), "."]
    await _build(command, source, program, environment)
    return "RocketMQ's Go client 2.1.2", (program,)


async def _build_java() -> tuple[str, tuple[str | Path, ...]]:
    for tool in ("javac", "mvn"):
        if shutil.which(tool) is None:
            raise CannotBuildError(f"there is no {tool}")
    source, libraries = HERE / "rocketjava", BUILT / "java"
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(source / "pom.xml"), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={libraries}", "-DincludeScope=runtime"]
    environment = {**os.environ, "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} {NO_TRACE}"}
    await _build(command, source, libraries, environment)
    options = (NO_TRACE, f"-Duser.home={BUILT}", "-cp", f"{libraries}/*")
    return "RocketMQ's Java client 4.9.8", ("java", *options, source / "Weather.java")


async def _build(command: list[str], source: Path, product: Path, environment: dict[str, str]) -> None:
    """Run a build in its source folder, unless its product was built from the same; a cancelled one is ended."""
    mark = product.with_name(product.name + ".built-from")
    digest = _digest(command, source)
    if _begin(product, mark, digest):
        return
    building = await asyncio.create_subprocess_exec(
        *command, cwd=source, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(building.communicate(), BUILD_SECONDS)
    except TimeoutError as error:
        raise CannotBuildError(f"{command[0]} took longer than {BUILD_SECONDS:.0f} s") from error
    finally:
        if building.returncode is None:
            building.terminate()
            await building.wait()
    if building.returncode:
        lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()] or ["no output"]
        reason = next((line for line in lines if "ERROR" in line), lines[-1])
        raise CannotBuildError(f"{command[0]} failed: {reason}")
    mark.write_text(digest)


def _digest(command: list[str], source: Path) -> str:
    digest = hashlib.sha256(" ".join(command).encode())
    for file in sorted(source.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _begin(product: Path, mark: Path, digest: str) -> bool:
    """Return whether the product is there already; else what says so of an older one goes."""
    if product.exists() and mark.exists() and mark.read_text() == digest:
        return True
    BUILT.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    return False
