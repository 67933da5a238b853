"""The Makefile in a clone whose path has spaces, quotes and more letters than ASCII's, and after what was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile, an environment that is there already, and what pretends to be its Python."""
    folder = tmp_path / "a clone é'x"
    made = [".venv/.made", ".venv/.installed", ".venv/.extra-test", ".venv/.extra-spark", "setup.py", "pyproject.toml"]
    for name in made:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for name in ("src", "tests", "bench", "demo"):
        (folder / name).mkdir()
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$@"\necho "force=$HEADRACE_FORCE tmp=$TMPDIR path=$PYTHONPATH"\n')
    python.chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("setup.py", "pyproject.toml"):
        os.utime(folder / name, (1, 1))
    os.utime(folder / ".venv/.made", (2, 2))
    return folder


def environment() -> dict[str, str]:
    """Return a person's environment, also where make runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def make(folder: Path, *arguments: str, **variables: str) -> str:
    """Run make as a person would; return what it said."""
    ran = subprocess.run(
        ["make", *arguments], cwd=folder, capture_output=True, text=True, check=True, env={**environment(), **variables}
    )
    return ran.stdout


def test_nothing_outside_the_clone_is_made_or_removed(clone: Path) -> None:
    """`make clean` once removed what stands before the first space of the clone's path."""
    namesake = clone.parent / "a"
    namesake.mkdir()
    said = make(clone, "test")
    assert f"tmp={clone}/.cache/tmp " in said
    assert (clone / ".cache" / "tmp").is_dir()
    make(clone, "clean")
    assert sorted(path.name for path in clone.parent.iterdir()) == ["a", clone.name]
    assert not (clone / ".cache" / "tmp").exists()


def test_packages_of_others_are_left_out(clone: Path) -> None:
    assert "path=\n" in make(clone, "build", PYTHONPATH="/somewhere")


def test_groups_of_dependencies_are_installed_one_after_the_other(clone: Path) -> None:
    """With `MAKEFLAGS=-j4` in the environment two of pip took files away from each other, and one of them failed."""
    for name in ("test", "spark"):
        (clone / ".venv" / f".extra-{name}").unlink()
    python = clone / ".venv" / "bin" / "python"
    python.write_text('#!/bin/sh\nmkdir "$PWD/at-work" || exit 1\nsleep 0.3\nrmdir "$PWD/at-work"\n')
    make(clone, ".venv/.extra-test", ".venv/.extra-spark", MAKEFLAGS="-j4")
    assert (clone / ".venv" / ".extra-spark").exists()


def test_a_compilation_that_was_killed_is_made_anew(clone: Path) -> None:
    """A file that it left may be cut short and newer than its source."""
    assert "force= " in make(clone, "build")
    assert not (clone / "build" / ".compiling").exists()
    (clone / "build" / ".compiled").unlink()
    (clone / "build" / ".compiling").touch()
    said = make(clone, "build")
    assert "--force" in said
    assert "force=1 " in said
    assert not (clone / "build" / ".compiling").exists()


@pytest.mark.parametrize("target", ["build", "demo"])
@pytest.mark.parametrize("says", ["exit 1", "exec not-there"])
def test_a_python_that_does_not_serve_is_told_in_one_sentence(clone: Path, target: str, says: str) -> None:
    """`make demo` gave it a file first, so one of 3.6 or 3.7 spoke of syntax; of a missing one the shell spoke."""
    (clone / ".venv" / ".made").unlink()
    python = clone / "python3"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    ran = subprocess.run(
        ["make", target, "PYTHON=./python3"], cwd=clone, capture_output=True, text=True, check=False, env=environment()
    )
    assert ran.stdout == ""
    told, *rest = ran.stderr.splitlines()
    assert told == "Headrace needs Python 3.11 or newer and ./python3 is not: name one with PYTHON=/path/to/python3."
    assert all(line.startswith("make") for line in rest)


def test_a_demo_of_an_environment_that_is_there_needs_no_other_python(clone: Path) -> None:
    """Who made it with `PYTHON=python3.12` need not say so again."""
    assert "demo/prepare.py make" in make(clone, "demo", "PYTHON=not-there")


@pytest.mark.parametrize("name", ["a:b", "a$b", "{a}", "a{b", 'a"b', "a`b", "a\\b"])
def test_a_path_that_no_environment_can_have_is_told_in_one_sentence(clone: Path, name: str) -> None:
    """venv, setuptools or pip's scripts, such as `headrace`, take these for something else."""
    clone = clone.rename(clone.parent / name)
    (clone / ".venv" / ".made").unlink()
    ran = subprocess.run(["make", "build"], cwd=clone, capture_output=True, text=True, check=False, env=environment())
    assert ran.stdout == ""
    told, *rest = ran.stderr.splitlines()
    assert told == 'No environment works in a folder whose path has one of : $ { } " ` \\ in it: move the clone.'
    assert all(line.startswith("make") for line in rest)
