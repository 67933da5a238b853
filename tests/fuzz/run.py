"""Hands one group of targets to libFuzzer by way of atheris: ``make fuzz``; README.md says more.

The first argument is the group, the second the folder of its corpus, the others are libFuzzer's.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(
    include=[
        f"headrace.{part}" for part in ("broker", "format", "net", "nsq", "registry", "remoting", "spark", "store")
    ]
):
    from tests.fuzz import targets

MAX_BYTES: Final = 16 * 1024


def main() -> None:
    """Fuzz until libFuzzer's own arguments say that it is enough, or something is found."""
    logging.disable()  # a start of a damaged store has much to say
    group, corpus, *others = sys.argv[1:]
    targets.write_corpus(group, Path(corpus))
    atheris.Setup([sys.argv[0], f"-max_len={MAX_BYTES}", corpus, *others], partial(targets.run, group))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
