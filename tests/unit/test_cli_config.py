"""The program `headrace`: exit codes, one clear line for each error, and `headrace config`."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from headrace.cli.program import COMMANDS, complain, run
from headrace.settings.reference import sample_toml
from headrace.settings.tree import sections


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the program; return exit code, output and error output."""
    code = run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    """C-LIFE-03: "version" prints the version and exits 0."""
    assert outcome(capsys, "--version") == (0, f"headrace {version('headrace')}\n", "")


def test_importing_the_package_loads_nothing_else() -> None:
    """A Ctrl-C while the library that finds the version was loaded was a traceback, before ours could be quiet."""
    code = (
        "import sys; before = {*sys.modules}; import headrace; print({*sys.modules} - before);"
        "from headrace import __version__; print(__version__, headrace.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines() == ["{'headrace'}", f"{version('headrace')} {version('headrace')}"]


def test_version_loads_no_broker() -> None:
    """Asking for the version or for help must not wait for the broker's modules."""
    code = (
        "import sys; from headrace.cli.program import run; run(['--version']);"
        "ours = sorted(name for name in sys.modules if name.startswith('headrace.') and 'cli' not in name);"
        "print(ours, 'asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[1] == "['headrace.errors'] False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "headrace: No such command 'nonsense'; see headrace --help\n"),
        (["jobs"], "headrace: No such command 'jobs'. Did you mean 'job'?\n"),
        (["stroe", "check", "x"], "headrace: No such command 'stroe'. Did you mean 'store'?\n"),
        (["serve", "nonsense"], "headrace: Got unexpected extra argument (nonsense); see headrace serve --help\n"),
        (["config", "print", "--nonsense"], "headrace: No such option '--nonsense'"),
        (
            ["config", "print", "--store.segment-byts", "1"],
            "--store.segment-bytes",
        ),
        (
            ["config", "print", "--store.segment-bytes"],
            "headrace: Option '--store.segment-bytes' requires an argument.\n",
        ),
        (["serve", "--nsq.enabled", "--data-dir", "x"], "headrace: Option '--nsq.enabled' requires an argument; see"),
        (["serve", "--nsq.enabled", "--data_dir=x"], "headrace: Option '--nsq.enabled' requires an argument; see"),
        (["serve", "--ready-file", "--free-ports"], "headrace: Option '--ready-file' requires an argument; see"),
        (
            ["config", "print", "--store.segment-bytes", "1"],
            "headrace: flag --store.segment-bytes: store.segment_bytes = 1 is not accepted: 1MiB to 1GiB\n",
        ),
        (
            ["serve", "--nsq.max_rdy_count=0"],
            "headrace: flag --nsq.max-rdy-count: nsq.max_rdy_count = 0 is not accepted: 1 to 1000000\n",
        ),
        (["serve", "--config", "/nowhere/headrace.toml"], "headrace: cannot read the settings file /nowhere/"),
        (
            ["store", "check", ""],
            "headrace: Invalid value for 'DIR': a path is needed, \".\" for the working directory; see",
        ),
        (["store", "import", "", "--data-dir", "x"], "headrace: Invalid value for 'DIR': a path is needed"),
        (["config", "import", "/nowhere/nsqd.cfg"], "headrace: cannot read the settings file /nowhere/"),
        (["config", "print", "--config", ""], "headrace: Invalid value for '--config': the name of a file is needed"),
        (["serve", "--ready-file", ""], "headrace: Invalid value for '--ready-file': the name of a file is needed"),
        (["config", "import", ""], "headrace: Invalid value for 'FILE': the name of a file is needed"),
    ],
)
def test_wrong_use_exits_2_with_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """Config errors: exit code 2, one clear line on standard error, nothing on standard output."""
    code, out, err = outcome(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_flag_can_be_given_as_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    """Behind an equals sign it is no slip."""
    assert '"--data-dir"' in outcome(capsys, "config", "print", "--broker.name=--data-dir")[1]


def test_errors_of_several_lines_become_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads a service's log sees the whole error in one line."""
    assert complain("first\n  second", 1) == 1
    assert capsys.readouterr().err == "headrace: first second\n"


def test_nothing_to_do_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the program says what it can do."""
    code, _, err = outcome(capsys)
    assert code == 2
    for command in COMMANDS:
        assert f"\n  {command} " in err


@pytest.mark.parametrize("command", [[], ["config"], ["store"], ["job"]])
def test_no_line_of_a_list_of_commands_is_cut(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """The first thing that a person reads."""
    code, out, _ = outcome(capsys, *command, "--help")
    assert code == 0
    assert [line for line in out.splitlines() if line.endswith("...") and "[ARGS]" not in line] == []


def test_help_lists_options_that_have_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    """An argument stands in the line of usage; a name without a text explains nothing."""
    _, out, _ = outcome(capsys, "store", "import", "--help")
    assert "import [OPTIONS] DIR" in out
    assert not re.search(r"^  DIR *$", out, re.MULTILINE)


def test_what_the_system_refuses_is_said_without_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``[Errno 20] Not a directory: '/etc/passwd/x'`` is for programmers."""

    def fail(*_: object, **__: object) -> None:
        raise NotADirectoryError(20, "Not a directory", "/etc/passwd/x")

    monkeypatch.setattr("headrace.cli.config.sample_toml", fail)
    assert outcome(capsys, "config", "sample") == (1, "", "headrace: /etc/passwd/x: Not a directory\n")


def test_print_shows_values_and_origins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value with where it came from: default, file and line, environment, flag."""
    file = tmp_path / "headrace.toml"
    file.write_text('[store]\ndurability = "async"\n\n[topics."a.b"]\ndurability = "fsync"\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_NSQ__MAX_RDY_COUNT", "7")
    code, out, err = outcome(capsys, "config", "print", "--origins", "--store.flush_interval_ms", "1s", "--data-dir=/x")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert 'data_dir = "/x"  # flag --store.data-dir' in lines
    assert f'durability = "async"  # {file}:2' in lines
    assert 'flush_interval_ms = "1s"  # flag --store.flush-interval-ms' in lines
    assert "max_rdy_count = 7  # env HEADRACE_NSQ__MAX_RDY_COUNT" in lines
    assert 'level = "info"  # default' in lines
    assert f'durability = "fsync"  # {file}:5' in lines
    assert tomllib.loads(out)["store"]["data_dir"] == "/x"
    assert "#" not in outcome(capsys, "config", "print")[1]


def test_origin_stays_on_the_line_of_its_value(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The name of a file may have several lines."""
    file = tmp_path / "head\nrace.toml"
    file.write_text("[nsq]\nmax_rdy_count = 7\n")
    code, out, _ = outcome(capsys, "config", "print", "--origins", "--config", str(file))
    assert code == 0
    assert f"max_rdy_count = 7  # {tmp_path}/head\\nrace.toml:2" in out
    assert tomllib.loads(out)["nsq"]["max_rdy_count"] == 7


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_settings_are_utf_8_whatever_the_locale_is(encoding: str) -> None:
    """TOML is: `headrace config print > headrace.toml` made a file that no start could read, or with another name."""
    code = "from headrace.cli import main; main(['config', 'print', '--data-dir', 'donn\u00e9es'])"
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environ, check=True, timeout=30)
    assert tomllib.loads(done.stdout.decode())["store"]["data_dir"] == "donn\u00e9es"


def test_sample_is_a_settings_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The sample can be saved and used as it is."""
    code, out, _ = outcome(capsys, "config", "sample")
    assert code == 0
    assert set(tomllib.loads(out)) == set(sections())


def test_import_prints_settings_and_warns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`headrace config import FILE` prints our TOML."""
    file = tmp_path / "nsqd.cfg"
    file.write_text('max_rdy_count = 7\nmax_defer_timeout = "1h"\n')
    code, out, err = outcome(capsys, "config", "import", str(file))
    assert code == 0
    assert tomllib.loads(out) == {"nsq": {"max_rdy_count": 7}}
    assert err == f"headrace: {file}:2: max_defer_timeout = 1h: not imported, follows max-req-timeout\n"


def test_help_of_serve_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Every field is a flag, with its meaning and default."""
    code, out, _ = outcome(capsys, "serve", "--help")
    assert code == 0
    assert "--free-ports" in out
    assert "--store.flush-interval-ms" in out
    assert '["fsync"]' in out
    assert "--data-dir, --store.data-dir" in out


def test_help_names_the_values_of_a_setting_that_has_few(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = outcome(capsys, "serve", "--help")
    assert "What an acknowledgement promises: fsync, async." in " ".join(out.split())


@pytest.mark.parametrize(
    ("flag", "meant"), [("--master", ""), ("--strat", "--start"), ("--jsno", "--json"), ("--x", "")]
)
def test_an_option_that_is_not_there_names_one_that_looks_like_it(
    capsys: pytest.CaptureFixture[str], flag: str, meant: str
) -> None:
    """``--master`` had "did you mean --start": the dashes were counted."""
    code, _, err = outcome(capsys, "job", "doctor", flag, "1")
    assert code == 2
    assert ("Did you mean" in err) == bool(meant)
    assert meant in err
    assert "?;" not in err


def test_output_that_nobody_reads_is_no_traceback() -> None:
    """`headrace config sample | head -1` ends quietly."""
    code = "import sys; from headrace.cli import main; main(['config', 'sample'])"
    command = f'"{sys.executable}" -c "{code}" | head -c 1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=30)
    assert (done.stdout, done.stderr) == ("#", "")


SAMPLE = [sys.executable, "-m", "headrace", "config", "sample"]


def test_toml_on_a_narrow_terminal_is_toml() -> None:
    """A comment that was wrapped there had a second line without its mark, and what was copied was refused."""
    run_in = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "40"}
    terminal, side = pty.openpty()
    printed = b""
    with subprocess.Popen(SAMPLE, stdout=side, env=run_in):
        os.close(side)
        with contextlib.suppress(OSError):  # how Linux says that nobody has the other side
            while part := os.read(terminal, 1 << 16):
                printed += part
    os.close(terminal)
    text = printed.decode().replace("\r\n", "\n")
    assert "\x1b[" in text
    assert re.sub("\x1b\\[[0-9;]*m", "", text) == sample_toml()


def test_toml_in_a_file_has_no_colours() -> None:
    """Where FORCE_COLOR is set, as in CI, `headrace config sample > headrace.toml` made a file that was refused."""
    run_in = {**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}
    done = subprocess.run(SAMPLE, capture_output=True, text=True, check=True, timeout=30, env=run_in)
    assert done.stdout == sample_toml()
