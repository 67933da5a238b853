"""The shape of the package: stubs beside compiled code, docstrings, lazy imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
PACKAGE = SOURCE / "headrace"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.pyx")), ids=lambda path: path.stem)
def test_compiled_modules_have_a_typed_stub(path: Path) -> None:
    """A .pyx has a typed stub beside it."""
    assert path.with_suffix(".pyi").exists()


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("__init__.py")), ids=lambda path: path.parent.name)
def test_packages_say_what_they_are_and_only_reexport(path: Path) -> None:
    """An __init__.py holds a docstring and re-exports; no logic."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    if path.parent != PACKAGE:  # the top package imports its public names lazily
        for node in tree.body[1:]:
            assert isinstance(node, ast.Import | ast.ImportFrom | ast.Assign), f"line {node.lineno}"


def test_no_file_is_named_after_nothing() -> None:
    """Files are named after a noun: whatever is in one of these has a better name."""
    for path in PACKAGE.rglob("*.py*"):
        assert path.name.split(".")[0] not in {"utils", "util", "helpers", "common", "manager", "misc"}


def test_reading_without_spark_loads_no_pyspark() -> None:
    """Jobs and tests read logs without a JVM: docs/spark/README.md, "What it knows, and must not know"."""
    names = "decode schema options files connections retry remote remote_log queue_reading scan"
    code = f"""
import importlib, sys
sys.modules["pyspark"] = None
for name in {names.split()}:
    importlib.import_module(f"headrace.spark.{{name}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=30)
    assert done.stderr == ""


def test_importing_headrace_loads_no_broker() -> None:
    """`import headrace` in a Spark worker loads no broker."""
    code = "import sys, headrace; print([m for m in sys.modules if m.startswith(('headrace.', 'asyncio', 'uvloop'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"
