"""Hands the targets to libFuzzer by way of atheris: ``make fuzz``; README.md says more.

The first argument is the folder of the corpus, the others are libFuzzer's.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(
    include=[f"headrace.{part}" for part in ("broker", "format", "net", "nsq", "remoting", "spark", "store")]
):
    from tests.fuzz import targets

MAX_BYTES: Final = 16 * 1024


def main() -> None:
    """Fuzz until libFuzzer's own arguments say that it is enough, or something is found."""
    logging.disable()  # a start of a damaged store has much to say
    targets.write_corpus(Path(sys.argv[1]))
    atheris.Setup([sys.argv[0], f"-max_len={MAX_BYTES}", *sys.argv[1:]], targets.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
