# `make` alone explains the targets. Each target makes the environment it needs, once; the stamp is
# named after the content of pyproject.toml, so nothing is repeated until that changes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
export PYTHON
# many short processes start here: each would compile all modules again
unexport PYTHONDONTWRITEBYTECODE

key = $(shell { cat $(1); echo "$(CURDIR)"; } | cksum | tr ' ' -)
READY := .venv/.ready-$(call key,pyproject.toml tools/setup.sh)
DOCS_READY := .docs/.ready-$(call key,pyproject.toml tools/setup.sh)
LOWEST_READY := .lowest/.ready-$(call key,pyproject.toml tools/setup.sh tools/lowest.py)
FLINK_READY := .peers/flink/.ready-$(call key,tools/peers-flink.txt tools/setup.sh)
BIN := .venv/bin
EXAMPLES := vwap market recommender integration lending advertising
# Spark starts Java by JAVA_HOME and its Python workers by PYSPARK_PYTHON
WITH_SPARK = JAVA_HOME="$$(tools/java.sh)"; export JAVA_HOME PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python";

# Most tests wait for the disk: they write where /dev/shm has 4 GB free, unless TMPDIR says where
SCRATCH = if [ -z "$${TMPDIR:-}" ] && [ "$$(df --output=avail -BG /dev/shm 2>/dev/null | tail -n 1 | tr -dc 0-9)" -ge 4 ] 2>/dev/null; then \
	TMPDIR=$$(mktemp -d /dev/shm/icestream-tests.XXXXXX); export TMPDIR; trap 'rm -rf "$$TMPDIR"' EXIT; fi;

# Tests run a JVM for seconds: its first compiler and its simplest collector take two thirds of the time
SHORT_JVM = export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC";

.PHONY: help
help: ## explain the targets
	@echo "Icestream: stateful streaming queries on Spark with state far larger than memory"
	@echo
	@echo "usage: make TARGET [ARGS='...'] [PYTHON=python3.12]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-19s %s\n", $$1, $$2 }'

$(READY): | pyproject.toml
	@tools/setup.sh .venv -e '.[dev]'
	@$(BIN)/icestream warm
	@rm -f .venv/.ready-* && touch $@

# the site reads the sources and imports nothing of them
$(DOCS_READY): | pyproject.toml
	@tools/setup.sh .docs $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@rm -f .docs/.ready-* && touch $@

$(LOWEST_READY): | pyproject.toml
	@tools/setup.sh .lowest -e '.[dev]' $$($(PYTHON) tools/lowest.py pyspark pyarrow pandas)
	@rm -f .lowest/.ready-* && touch $@

$(FLINK_READY): | tools/peers-flink.txt
	@tools/setup.sh .peers/flink -r tools/peers-flink.txt
	@rm -f .peers/flink/.ready-* && touch $@

.PHONY: install
install: $(READY) ## make .venv with Icestream and all tools in it

.PHONY: demo
demo: $(READY) ## run the call centres on this machine; ARGS=lending runs an application of examples/
	@$(WITH_SPARK) $(if $(filter $(EXAMPLES),$(firstword $(ARGS))),$(BIN)/python -m examples,$(BIN)/icestream demo) $(ARGS)

.PHONY: bench
bench: $(READY) ## measure the window claim on this machine; ARGS='--list' names all claims
	@$(WITH_SPARK) $(BIN)/python -m bench $(or $(ARGS),windows)

.PHONY: figures
figures: ## list the stored results of benches, and how much code changed since
	@$(PYTHON) tools/figures.py $(ARGS)

.PHONY: docs
docs: $(DOCS_READY) ## build the site into build/site; ARGS=serve shows it while you write
	@NO_MKDOCS_2_WARNING=1 .docs/bin/mkdocs --quiet $(or $(ARGS),build)

.PHONY: doctor
doctor: $(READY) ## check Java, memory and disk of this machine
	@$(WITH_SPARK) $(BIN)/icestream doctor $(ARGS)

.PHONY: test
test: $(READY) ## run the tests in four processes, without those marked slow or cluster
	@$(WITH_SPARK) $(SHORT_JVM) $(SCRATCH) $(BIN)/python -m pytest -n 4 --dist loadscope -m "not slow and not cluster" --durations=25 $(ARGS)

.PHONY: test-kernels-plain
test-kernels-plain: $(READY) ## run the tests of kernels as plain Python, for debuggers and coverage
	@NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest tests/kernels -n 2 $(ARGS)

.PHONY: test-slow
test-slow: $(READY) ## run the tests marked slow
	@$(WITH_SPARK) $(BIN)/python -m pytest -m "slow and not cluster" $(ARGS)

.PHONY: test-random
test-random: $(READY) ## run thousands of random queries in one process, and hundreds on Spark, beside oracles
	@$(WITH_SPARK) $(SHORT_JVM) $(BIN)/python -m pytest tests/runtime/test_random_windows.py tests/runtime/test_spark_random.py $(ARGS)

.PHONY: test-cluster
test-cluster: $(READY) ## run the tests on a Spark cluster of several processes, with executors lost
	@$(WITH_SPARK) $(BIN)/python -m pytest tests/cluster -m cluster $(ARGS)

.PHONY: test-kill
test-kill: $(READY) ## kill queries on Spark 50 times each, and compare their tables; ARGS="--kills N" for another number
	@$(WITH_SPARK) $(BIN)/python -m pytest tests/kill $(ARGS)

.PHONY: test-install
test-install: $(READY) ## install the wheel into an empty environment; run all commands, demo and tutorial there
	@$(WITH_SPARK) $(BIN)/python -m pytest tests/install $(ARGS)

# PySpark 4.1 leaves sockets open, and its corr() divides by zero; later versions do not
.PHONY: test-lowest
test-lowest: $(LOWEST_READY) ## run the tests on Spark with the lowest versions of PySpark, Arrow and pandas that are allowed
	@$(WITH_SPARK) export PYSPARK_PYTHON="$(CURDIR)/.lowest/bin/python"; $(SHORT_JVM) $(SCRATCH) .lowest/bin/python -m pytest -n 2 --dist loadscope -m "spark and not slow and not cluster" -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning --deselect 'tests/runtime/test_spark_oracle.py::test_oracle_rows_equal_those_of_sparks_batch_engine[pairs and choices]' $(ARGS)

.PHONY: soak
soak: $(READY) ## torment all demo queries for half an hour; ARGS='--size small' for three minutes
	@$(WITH_SPARK) $(BIN)/python -m bench soak $(or $(ARGS),--size full)

.PHONY: check
check: $(READY) ## check style, types, imports, names, numbers in documents and dead code; all, also where one fails
	@failed=; \
	echo "check: ruff"; $(BIN)/ruff check --quiet --output-format=concise . || failed+=" style"; \
	$(BIN)/ruff format --check --quiet --output-format=concise . || failed+=" format"; \
	echo "check: mypy"; $(BIN)/python -m mypy --no-error-summary || failed+=" types"; \
	echo "check: imports"; report=$$($(BIN)/lint-imports --no-cache --no-logo 2>&1) || { echo "$$report"; failed+=" imports"; }; \
	echo "check: names"; $(BIN)/python tools/class_names.py || failed+=" names"; \
	echo "check: numbers"; $(BIN)/python tools/document_numbers.py || failed+=" numbers"; \
	echo "check: dead code"; $(BIN)/python tools/reachability.py --check || failed+=" dead-code"; \
	[ -z "$$failed" ] || { echo "check: failed:$$failed"; exit 1; }

.PHONY: format
format: $(READY) ## rewrite the code in the house style
	@$(BIN)/ruff check --quiet --fix-only . ; $(BIN)/ruff format --quiet .

.PHONY: release
release: $(READY) ## build wheel, sdist and machine code, and try the wheels in an empty environment
	@$(WITH_SPARK) tools/release.sh $(CURDIR)/$(BIN)/python

.PHONY: peers
peers: $(FLINK_READY) ## make .peers/flink, the environment of the Flink that bench compares with

.PHONY: clean
clean: ## remove caches and builds, not the environments
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	@find src bench examples tests -name __pycache__ -type d -prune -exec rm -rf {} +
