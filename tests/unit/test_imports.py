"""Who may import whom, in the compiled sources: lint-imports reads .py files only."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
COMPILED = sorted(path for kind in ("*.pyx", "*.pxd") for path in (SOURCE / "headrace").rglob(kind))

# C's library, CPython's and POSIX's C interfaces, and the compiler's own names.
C_LIBRARIES = {"libc", "cpython", "posix", "cython"}
NONDETERMINISTIC = {"asyncio", "socket", "selectors", "time", "random", "secrets", "uuid"}

IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+c?import\b|c?import\s+([\w., ]+))", re.MULTILINE)
HEADER = re.compile(r"^\s*cdef extern from [\"<]([^\">]+)", re.MULTILINE)
TEXT = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


def imported_modules(path: Path) -> set[str]:
    """Return the modules a Cython source imports, in either way."""
    text = TEXT.sub("", path.read_text())
    found = set()
    for package, modules in IMPORT.findall(text):
        names = [package] if package else [name.split(" as ")[0].strip() for name in modules.split(",")]
        found |= set(names)
    return found


def contract(id: str) -> dict[str, Any]:
    """Return one of the rules that lint-imports is told."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return next(dict(rule) for rule in tool["contracts"] if rule["id"] == id)


def layer_order() -> list[set[str]]:
    """Return the packages of each layer, the highest first, as lint-imports is told."""
    return [{name.strip(" ()") for name in re.split("[|:]", line)} for line in contract("layers")["layers"]]


def test_every_package_but_spark_is_told_not_to_import_pyspark() -> None:
    """A new package is in no list by itself, and nothing else would say so."""
    here = {
        path.stem for path in (SOURCE / "headrace").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    listed = {name.removeprefix("headrace.") for name in contract("pyspark")["source_modules"]}
    assert listed == here - {"__init__", "spark"}


def level_of(package: str) -> int:
    """Return how far down a package stands."""
    for level, names in enumerate(layer_order()):
        if package in names:
            return level
    raise AssertionError(f"headrace.{package} is in no layer of pyproject.toml")


def top_package(module: str) -> str:
    """``headrace.store.segment`` -> ``store``."""
    return module.split(".")[1]


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_compiled_sources_import_downwards_only(path: Path) -> None:
    """A-GOAL-08, E-COMM-01: libc, CPython's C API, headrace.batch, the same package and the packages below."""
    own = top_package(".".join(path.with_suffix("").relative_to(SOURCE).parts))
    for module in imported_modules(path):
        if module.split(".")[0] in C_LIBRARIES:
            continue
        if module.split(".")[0] != "headrace":
            # Arrow's buffers are what the decoder of spark makes; to other packages it is foreign.
            is_arrow = own == "spark" and module == "pyarrow"
            assert is_arrow or module.split(".")[0] in sys.stdlib_module_names, f"{path} imports {module}"
            continue
        other = top_package(module)
        assert other == own or level_of(other) > level_of(own), f"{path} imports {module}, which is not below it"


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: str(path.relative_to(SOURCE)))
def test_core_and_codecs_take_time_and_bytes_as_arguments(path: Path) -> None:
    """Neither clock nor socket nor chance inside codecs, formats and the broker core."""
    name = path.stem
    if name == "codec" or {"broker", "format"} & set(path.relative_to(SOURCE).parts):
        used = {module.split(".")[0] for module in imported_modules(path)} & NONDETERMINISTIC
        assert not used, f"{path} imports {used}"
        assert not set(HEADER.findall(path.read_text())) & {"time.h", "sys/time.h", "sys/socket.h"}


def test_imports_are_found_in_every_form(tmp_path: Path) -> None:
    """The reader of these tests sees what it has to see."""
    path = tmp_path / "x.pyx"
    path.write_text(
        '"""\nimport hidden\n"""\nfrom libc.stdint cimport int32_t\ncimport cython\nimport os, time as t\n'
        "def f():\n    from headrace.net import http\n"
    )
    assert imported_modules(path) == {"libc.stdint", "cython", "os", "time", "headrace.net"}
