"""The documents: every link leads somewhere, and every file, test, setting, metric and command they name exists."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cli.program import COMMANDS
from headrace.settings.tree import setting_fields

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "bench/README.md",
        ROOT / "tests/crash/README.md",
        ROOT / "changes/README.md",
    ]
)
PROTOCOLS = sorted({*(ROOT / "docs/protocols").glob("*.md")} - {ROOT / "docs/protocols/README.md"})
# Spark's packages have their page, docs/spark/README.md.
PACKAGES = sorted(
    path.parent
    for path in (ROOT / "src/headrace").glob("*/**/__init__.py")
    if "spark" not in path.relative_to(ROOT).parts
)
SECTIONS = {setting.path.partition(".")[0] for setting in setting_fields()}
SETTINGS = {setting.path for setting in setting_fields()}
# Where a page looks first for a test of which it names the file alone; then among the interop tests.
FOLDERS = {
    "nsq.md": "tests/unit/nsq",
    "nsq-http.md": "tests/unit/nsq",
    "remoting.md": "tests/unit/remoting",
    "registry.md": "tests/unit/remoting",
    "nsqlookupd.md": "tests/unit/nsq",
    "extensions.md": "tests/unit/remoting",
}
# What a page may say without a test: it is not there.
MISSING = re.compile(r"\| no\b")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links within the repository; those to the outside are not followed."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_that_is_named_exists(page: Path) -> None:
    """Paths from the root of the repository, in code spans."""
    for path in re.findall(r"`((?:src|tests|docs|demo|bench|changes|\.ci)/[\w./-]+)(?:::\w+)?`", page.read_text()):
        assert (ROOT / path).exists() or path.startswith("bench/results"), path


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_and_metric_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    families = set(re.findall(r"^\| `(headrace_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE))
    for section, field in re.findall(r"`(?:--)?([a-z]+)\.([a-z_-]+)`", text):
        if section in SECTIONS and field not in {"py", "md", "pyx", "json", "log"}:
            assert f"{section}.{field.replace('-', '_')}" in SETTINGS | MODULES, f"{section}.{field}"
    for metric in re.findall(r"`(headrace_[a-z_]+)(?:\{[^`]*\})?`", text):
        assert metric in families, metric


# What looks like a setting and is a module of the package of the same name.
MODULES = {
    f"{path.parent.name}.{path.stem}"
    for path in (ROOT / "src/headrace").rglob("*")
    if (path.suffix in {".py", ".pyx"} or (path / "__init__.py").exists()) and path.parent.name in SECTIONS
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_is_named_exists(page: Path) -> None:
    for command in re.findall(r"(?:^    |`)headrace ([a-z]+)", page.read_text(), re.MULTILINE):
        assert command in COMMANDS, command
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in re.findall(r"(?:^    |`)make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE):
        assert target in targets, target


def test_ports_of_the_readme_are_the_defaults() -> None:
    """A-BROKER-07, A-REG-02: 10911 and 9876 are among them."""
    named = {
        match[1]: setting
        for setting in setting_fields()
        if setting.path.endswith("address") and (match := re.search(r":(\d+)$", str(setting.default)))
    }
    rows = re.findall(r"^\| [^|]+ \| ([\d, ]+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    ports = {port.strip() for row in rows for port in row.split(",")}
    assert ports == {*named, "10909"}  # remoting.vip_listener: two below the broker's


def test_ports_of_the_manual_are_the_defaults() -> None:
    """Each with its setting."""
    table = (ROOT / "docs/running.md").read_text().partition("## Ports")[2].partition("## ")[0]
    rows = dict(re.findall(r"^\| (\d+) \| .* \| `([a-z_.]+)`", table, re.MULTILINE))
    addresses = {setting.path: setting.default for setting in setting_fields() if setting.path.endswith("address")}
    defaults = {str(default).rpartition(":")[2]: path for path, default in addresses.items() if ":" in str(default)}
    assert rows == defaults


def feature_rows(page: Path) -> Iterator[str]:
    """Yield the rows of the tables whose last column is "Test"."""
    columns: list[str] = []
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = [cell.strip() for cell in line.strip("|").split("|")]
        elif columns[-1] == "Test" and not set(line) <= set("|- "):
            yield line


@pytest.mark.parametrize("package", PACKAGES, ids=name_of)
def test_docstring_of_a_package_names_its_modules(package: Path) -> None:
    """As docs/architecture.md promises."""
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    named = {word for code in re.findall(r"``([^`]+)``", docstring) for word in re.findall(r"\w+", code)}
    modules = {path.stem for path in package.iterdir() if path.suffix in {".py", ".pyx"}} - {"__init__"}
    assert named >= modules


def test_index_of_the_protocols_is_complete() -> None:
    text = (ROOT / "docs/protocols/README.md").read_text()
    assert [page.name for page in PROTOCOLS if f"({page.name})" not in text] == []


def find_test(page: Path, file: str) -> Path:
    for folder in ("", FOLDERS.get(page.name, ""), "tests/interop"):
        if (path := ROOT / folder / file).is_file():
            return path
    raise AssertionError(f"{file} does not exist")


@pytest.mark.parametrize("page", PROTOCOLS, ids=name_of)
def test_every_feature_names_tests_that_exist(page: Path) -> None:
    """Issue 4: every row of a protocol's page names its test, unless it says that the feature is not there."""
    # mapping.md has all its tests in one file, which it names at the top.
    usual = re.findall(r"`(tests/[\w/]+\.py)`", page.read_text()[:1000]) if page.name == "mapping.md" else []
    rows = list(feature_rows(page))
    assert len(rows) > 10, "where is the table with a column Test?"
    for row in rows:
        cell = row.rstrip("| ").rpartition("|")[2]
        path = ROOT / usual[0] if usual else None
        named = 0
        for file, test in re.findall(r"`([\w/]*\.py)?(?:::)?(test_\w+)?`", cell):
            path = find_test(page, file) if file else path
            assert path is not None, row
            assert not test or f"def {test}(" in path.read_text(), f"{test} is not in {path}"
            named += 1
        assert named or MISSING.search(row), f"no test: {row}"


def test_every_fragment_is_of_a_kind_that_a_release_shows() -> None:
    """towncrier passes over what it does not know, without a word."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in options["type"]}
    fragments = {path.name for path in (ROOT / options["directory"]).iterdir()} - {*options["ignore"]}
    assert {name for name in fragments if not re.fullmatch(rf"(\+[\w-]+|\d+)\.({'|'.join(kinds)})\.md", name)} == set()
    assert options["start_string"] in (ROOT / options["filename"]).read_text()
