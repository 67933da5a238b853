"""docs/spark/tutorial.md as a notebook: each block runs after the one before it and prints what the page shows."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import testing
from tests.support.notebook import run_page
from tests.support.spark_servers import environment
from tests.support.toolchain import cannot_run

PAGE = Path(__file__).parents[2] / "docs" / "spark" / "tutorial.md"
RUN_SECONDS = 400.0


@pytest.mark.timeout(2 * RUN_SECONDS)
def test_every_block_prints_what_the_page_shows(tmp_path: Path) -> None:
    """Issue 5: the tutorial is true."""
    if importlib.util.find_spec("gnsq") is None:
        cannot_run("the tutorial publishes with gnsq: pip install -e '.[interop]'")
    text = PAGE.read_text()
    with testing.broker(store__segment_bytes=16 << 20) as broker:
        usual = {"127.0.0.1:4150": broker.nsq_tcp, "127.0.0.1:9876": broker.registry}
        blocks = run_page(PAGE, usual, cwd=tmp_path, seconds=RUN_SECONDS)
        assert len(blocks) > 5, "where are the blocks?"
        for block in blocks:
            assert block.printed.rstrip("\n") == (block.shown or "").rstrip("\n"), f"after:\n{block.code}"
        for command in re.findall(r"^    (headrace job .*?)(?:  #.*)?$", text, re.MULTILINE):
            words = shlex.split(command.replace("127.0.0.1:9876", broker.registry))
            program = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
            ran = subprocess.run(
                program,
                cwd=tmp_path,
                env=environment(tmp_path),
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
                check=False,
            )
            assert ran.returncode == 0, f"{command}:\n{ran.stdout}\n{ran.stderr[-3000:]}"
        assert (tmp_path / "report" / "report.html").is_file()
