"""`headrace serve` and `headrace registry` as processes: closed and full outputs, signals at odd times."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

TIMEOUT_S = 30
MAIN = "from headrace.cli import main; main(sys.argv[1:])"
ARGUMENTS = ["--free-ports", "--ready-file", "ready.json", "--data-dir", "data", "--store.segment-bytes", "1MiB"]
COMMANDS = pytest.mark.parametrize("command", ["serve", "registry"])


class Started:
    """One process in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        command: str,
        *,
        shell: str = "",
        before: str = "pass",
        encoding: str = "utf-8",
        main: str = MAIN,
    ) -> None:
        self.ready = folder / "ready.json"
        self.errors = folder / "errors"
        self.environ = {**os.environ, "PYTHONIOENCODING": encoding}
        line = ["bash", "-c", f'exec "$@" {shell}', "bash", sys.executable, "-c", f"import sys; {before}; {main}"]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*line, command, *ARGUMENTS], cwd=folder, stdout=subprocess.DEVNULL, stderr=errors,
                env=self.environ,
            )  # fmt: skip

    def wait_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.ready.exists():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ends_well_at(self, number: signal.Signals) -> bool:
        """Return whether the signal ends it in good order: exit code 0, nothing left behind."""
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S) == 0 and not self.ready.exists()


@pytest.fixture
def started() -> Iterator[list[Started]]:
    """Keep what is started from outliving its test."""
    processes: list[Started] = []
    yield processes
    for one in processes:
        one.process.kill()
        one.process.wait()


@COMMANDS
def test_closed_outputs_do_no_harm(tmp_path: Path, started: list[Started], command: str) -> None:
    """A daemon's descriptors may be closed: nothing else may get the numbers that libraries write errors to."""
    one = Started(tmp_path, command, shell="<&- >&- 2>&-")
    started.append(one)
    one.wait_ready()
    places = [Path(f"/proc/{one.process.pid}/fd/{number}").readlink() for number in range(3)]
    assert places == [Path("/dev/null")] * 3
    assert one.ends_well_at(signal.SIGTERM)


@COMMANDS
@pytest.mark.parametrize("output", ["> /dev/full", "> >(exit 0)"])
def test_output_that_takes_nothing_ends_nobody(
    tmp_path: Path, started: list[Started], command: str, output: str
) -> None:
    """The line that says it is ready is not worth a broker."""
    one = Started(tmp_path, command, shell=output)
    started.append(one)
    one.wait_ready()
    time.sleep(0.2)  # the line comes after the file
    assert one.ends_well_at(signal.SIGTERM), one.errors.read_text()
    assert "Traceback" not in one.errors.read_text()


def stopped_pager(path: Path) -> int:
    """Make a pipe whose reader takes nothing; return its descriptor."""
    os.mkfifo(path)
    pager = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pager, b"." * 4096)
    return pager


@COMMANDS
@pytest.mark.parametrize("outputs", ["> pager", "> pager 2>&1"])
def test_output_that_nobody_reads_holds_up_nobody(
    tmp_path: Path, started: list[Started], command: str, outputs: str
) -> None:
    """The event loop waited in the line that says it is ready: no port answered, and no signal stopped it."""
    pager = stopped_pager(tmp_path / "pager")
    one = Started(tmp_path, command, shell=outputs)
    started.append(one)
    one.wait_ready()
    time.sleep(0.2)  # the line comes after the file
    assert one.ends_well_at(signal.SIGTERM)
    os.close(pager)


@COMMANDS
def test_log_that_nobody_reads_holds_up_nobody(tmp_path: Path, started: list[Started], command: str) -> None:
    """Who pages through the log, or stops its terminal, stopped the broker at the next line."""
    pager = stopped_pager(tmp_path / "pager")
    one = Started(tmp_path, command, shell="2> pager")
    started.append(one)
    one.wait_ready()
    with contextlib.suppress(BlockingIOError):
        while True:
            os.read(pager, 1 << 16)
    assert one.ends_well_at(signal.SIGTERM)
    said = os.read(pager, 1 << 16).decode()
    os.close(pager)
    assert "ERROR headrace.foreground log lines left out, nobody took them lines=" in said
    assert said.endswith("\n")


@pytest.mark.parametrize(
    ("encoding", "name"), [("utf-8", b"\xff"), ("ascii", "\u00e9".encode()), ("latin-1", "\u20ac".encode())]
)
def test_names_that_an_output_cannot_spell_end_nobody(
    tmp_path: Path, started: list[Started], encoding: str, name: bytes
) -> None:
    """A folder's name may be any bytes, a locale need not have its letters: saying it was ready ended a broker."""
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    one = Started(folder, "serve", encoding=encoding)
    started.append(one)
    one.wait_ready()
    for command in (["config", "print"], ["doctor"]):
        line = [sys.executable, "-c", f"import sys; {MAIN}", *command, "--data-dir", str(folder / "data")]
        done = subprocess.run(line, capture_output=True, env=one.environ, timeout=TIMEOUT_S, check=False)
        assert b"Traceback" not in done.stderr
        assert b"data_dir = " in done.stdout or b"disk" in done.stdout
    assert one.ends_well_at(signal.SIGTERM), one.errors.read_text()
    assert "Traceback" not in one.errors.read_text()


@pytest.mark.parametrize("option", ["--version", "config print"])
def test_commands_run_with_a_closed_output(option: str) -> None:
    """There is nobody to tell, which is no error."""
    line = f'exec "{sys.executable}" -c "import sys; {MAIN}" {option} >&-'
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["--version", "serve --help", "config sample", "doctor --json"])
def test_output_on_a_full_disk_is_said(tmp_path: Path, command: str) -> None:
    """The disk's own words named nothing, and the store's disk is what one thinks of first."""
    done = subprocess.run(
        ["bash", "-c", f'exec "{sys.executable}" -c "import sys; {MAIN}" {command} > /dev/full'],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    expected = "headrace: standard output: No space left on device; what it has got is cut short\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("errors", ["2> /dev/full", "2> >(exit 0)"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("config print --store.segment-bytes 1", 2),
        ("config print --nope", 2),
        ("store", 2),
        ("store check nowhere", 2),
        ("store dump nowhere", 1),
    ],
)
def test_exit_code_says_what_happened_where_nobody_can_be_told(command: str, code: int, errors: str) -> None:
    """With standard error on a full disk, wrong settings ended with the code of a failure."""
    line = f'sleep 0.1; exec "{sys.executable}" -c "import sys; {MAIN}" {command} > /dev/null {errors}'
    done = subprocess.run(["bash", "-c", line], timeout=TIMEOUT_S, check=False)
    assert done.returncode == code


@COMMANDS
def test_a_fatal_signal_does_not_end_it_without_a_word(tmp_path: Path, started: list[Started], command: str) -> None:
    """A mapped file that was cut, or a sector that cannot be read, is one: SIGBUS."""
    one = Started(tmp_path, command)
    started.append(one)
    one.wait_ready()
    one.process.send_signal(signal.SIGBUS)
    assert one.process.wait(TIMEOUT_S) == -signal.SIGBUS
    said = one.errors.read_text()
    assert "Fatal Python error: Bus error" in said
    assert "Current thread" in said


@COMMANDS
def test_closed_terminal_ends_it_in_good_order(tmp_path: Path, started: list[Started], command: str) -> None:
    """SIGHUP of a terminal that goes is no crash. Whoever runs the tests may be under nohup."""
    one = Started(tmp_path, command, before="import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)")
    started.append(one)
    one.wait_ready()
    assert one.ends_well_at(signal.SIGHUP)


@COMMANDS
def test_hangup_that_nohup_ignores_stays_ignored(tmp_path: Path, started: list[Started], command: str) -> None:
    """`nohup headrace serve &` outlives its terminal."""
    one = Started(tmp_path, command, before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    started.append(one)
    one.wait_ready()
    one.process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert one.process.poll() is None
    assert one.ends_well_at(signal.SIGTERM)


@COMMANDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_during_the_start_is_a_stop(
    tmp_path: Path, started: list[Started], command: str, number: signal.Signals
) -> None:
    """Also while modules are loaded: exit code 0, no traceback."""
    module = f"headrace.cli.{command}"
    before = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        f"import {module}; wanted = {module}.read_settings; "
        f"{module}.read_settings = lambda *a: (wanted(*a), os.kill(os.getpid(), {int(number)}))[0]"
    )
    one = Started(tmp_path, command, before=before)
    started.append(one)
    assert one.process.wait(TIMEOUT_S) == 0, one.errors.read_text()
    assert one.errors.read_text() == ""
    assert not one.ready.exists()


@COMMANDS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_while_a_server_is_loaded_is_a_stop(tmp_path: Path, command: str, number: signal.Signals) -> None:
    """Before it has opened anything: exit code 0, as at any other time."""
    script = f"""
import os, runpy, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), {int(number)})
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run in the background of a shell
sys.meta_path.insert(0, Interrupting())
sys.argv = ["headrace", "{command}", "--data-dir", {str(tmp_path / "nowhere")!r}]
runpy.run_module("headrace", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "nowhere").exists()


@COMMANDS
def test_signals_in_a_row_are_one_stop(tmp_path: Path, started: list[Started], command: str) -> None:
    """C-LIFE-01: a terminal's Ctrl-C and a supervisor's SIGTERM; the second came while Python was on its way out."""
    one = Started(tmp_path, command, main="from headrace.__main__ import main; main()")
    started.append(one)
    one.wait_ready()
    one.process.send_signal(signal.SIGINT)
    while one.process.poll() is None:
        one.process.send_signal(signal.SIGTERM)
        time.sleep(0.005)
    assert one.process.returncode == 0


@COMMANDS
def test_signal_whose_exception_is_lost_is_a_stop(tmp_path: Path, started: list[Started], command: str) -> None:
    """It met a destructor, of which imports run many, and Python goes on: the start ends all the same."""
    module = f"headrace.cli.{command}"
    before = (
        "import os, signal; Lost = type('Lost', (), {'__del__': lambda self: os.kill(os.getpid(), signal.SIGTERM)}); "
        f"import {module}; wanted = {module}.read_settings; "
        f"{module}.read_settings = lambda *a: (wanted(*a), Lost())[0]"
    )
    one = Started(tmp_path, command, before=before)
    started.append(one)
    assert one.process.wait(TIMEOUT_S) == 0, one.errors.read_text()
    assert "Lost.__del__" in one.errors.read_text() or "<lambda>" in one.errors.read_text()
    assert not one.ready.exists()


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_while_the_program_is_loaded(handler: str, code: int) -> None:
    """It ends without a traceback; in a shell's background, where it is ignored, it stays so."""
    script = f"""
import os, runpy, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupting())
sys.argv = ["headrace", "--version"]
runpy.run_module("headrace", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("headrace ") == (code == 0)


def ask_ready(admin: str) -> tuple[int, str]:
    """Return status and text of /readyz."""
    host, _, port = admin.rpartition(":")
    connection = HTTPConnection(host, int(port), timeout=TIMEOUT_S)
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_directory_that_was_replaced_is_told_at_once_and_at_the_end(tmp_path: Path, started: list[Started]) -> None:
    """A second broker was started at the same path: no load balancer leads to the first, whose exit code says why."""
    one = Started(tmp_path, "serve")
    started.append(one)
    one.wait_ready()
    admin = json.loads(one.ready.read_text())["listeners"]["admin"]
    assert ask_ready(admin) == (200, "ready\n")
    (tmp_path / "data").rename(tmp_path / "moved away")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "commitlog").mkdir()
    deadline = time.monotonic() + TIMEOUT_S
    while (told := ask_ready(admin))[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert told[0] == 503
    assert told[1].startswith("data is not the directory that this broker has opened: another one was put in its place")
    one.process.terminate()
    assert one.process.wait(TIMEOUT_S) == 1
    assert one.errors.read_text().splitlines()[-1].startswith("headrace: data is not the directory that this broker")
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["commitlog"]


def test_ready_file_that_cannot_be_written_stops_what_was_started(tmp_path: Path, started: list[Started]) -> None:
    """Its disk may have got full: the text names it, and the store is closed."""
    one = Started(tmp_path, "serve", before="import os; os.mkdir(f'.ready.json.{os.getpid()}')")
    started.append(one)
    assert one.process.wait(TIMEOUT_S) == 2
    last = one.errors.read_text().splitlines()[-1]
    assert last == "headrace: --ready-file ready.json cannot be written: Is a directory"
    assert (tmp_path / "data" / "headrace" / "store.json").exists()
    assert not (tmp_path / "data" / "abort").exists()
