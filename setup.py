"""Compile every ``.pyx`` under ``src/headrace`` beside its source.

``HEADRACE_QUICK=1`` compiles without optimising, six times faster: to see whether it compiles and installs.
``HEADRACE_DEBUG=1`` turns on bounds, overflow-free-index and None checks (``make build-debug``).
``HEADRACE_FUZZ=1`` adds what the fuzzer wants to see, and AddressSanitizer; needs clang (``make fuzz``).
``HEADRACE_ONLY=a.b,c.d`` compiles only the named modules, for a quick edit-and-run cycle.
``HEADRACE_JOBS=2`` compiles so many at a time; without it as many as there are processors. ``build_ext --parallel`` and
``DIST_EXTRA_CONFIG`` win for the C compiler.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
SOURCE = Path("src")
DEBUG = os.environ.get("HEADRACE_DEBUG") == "1"
QUICK = os.environ.get("HEADRACE_QUICK") == "1"
FUZZ = os.environ.get("HEADRACE_FUZZ") == "1"
JOBS = int(os.environ.get("HEADRACE_JOBS") or os.cpu_count() or 1)
ONLY = {name for name in os.environ.get("HEADRACE_ONLY", "").split(",") if name}


def find_flags() -> list[str]:
    if FUZZ:
        return ["-O1", "-g", "-fsanitize=address,fuzzer-no-link", "-Wno-unused-function"]
    if QUICK:
        return ["-O0", "-g0"]
    return ["-O1", "-g0"] if DEBUG else ["-O3", "-g0", "-fno-plt"]


def find_extensions() -> list[Extension]:
    """One extension per ``.pyx``; its module name is its path."""
    extensions = []
    for path in sorted((ROOT / SOURCE).rglob("*.pyx")):
        relative = path.relative_to(ROOT)
        name = ".".join(relative.relative_to(SOURCE).with_suffix("").parts)
        if ONLY and name not in ONLY:
            continue
        extensions.append(
            Extension(
                name,
                [str(relative)],
                extra_compile_args=find_flags(),
            )
        )
    return extensions


# Where Cython's processes are not forked, each imports this file.
if __name__ == "__main__":
    setup(
        ext_modules=cythonize(
            find_extensions(),
            include_path=[str(SOURCE)],
            nthreads=JOBS if JOBS > 1 else 0,
            force=DEBUG or bool(os.environ.get("HEADRACE_FORCE")),
            compiler_directives={
                "language_level": 3,
                "boundscheck": DEBUG,
                "wraparound": False,
                "initializedcheck": DEBUG,
                "nonecheck": DEBUG,
                "cdivision": True,
                "embedsignature": True,
            },
        ),
        options={"build_ext": {"parallel": JOBS}},
        package_dir={"": str(SOURCE)},
    )
