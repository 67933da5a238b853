"""Run a packaged job with ``spark-submit``, on any master::

    spark-submit --master spark://host:7077 "$(python -m headrace.spark.submit --path)" archive --servers ... --to ...

Options, summary and exit codes are those of ``headrace job``; master and settings come from ``spark-submit``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PATH_FLAG: Final = "--path"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job that the arguments name and return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == [PATH_FLAG]:
        sys.stdout.write(f"{Path(__file__).resolve()}\n")
        return 0
    # This file is a program like ``headrace``, which happens to lie where spark-submit users look for it; nothing of
    # the package imports it, so it may know the commands.
    program = importlib.import_module("headrace.cli.program")
    exit_code = program.run(["job", *given])
    assert isinstance(exit_code, int)
    return exit_code


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    # Python puts the folder of a script first on its path: our modules would stand before others of the same name.
    sys.path[:] = [entry for entry in sys.path if not entry or str(Path(entry).resolve()) != here]
    sys.exit(main())
