# `make help` lists what there is. `make demo` and `make test` set everything up themselves.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3.11
# the Dagster UI: `make demo UI=0` ends instead of leaving it running
UI ?= 1
UI_PORT ?= 3000
# `make ui READ_ONLY=1`: a UI in which nothing can be launched, stopped or changed
READ_ONLY ?= 0
# how many runs of Dagster may have a Spark session at once; default: what the memory holds
SPARK_RUNS ?=
# processes that share the tests out, each with its own broker and Spark session (0: none but pytest itself)
WORKERS ?= 3
# more options for pytest: `make test PYTEST="-k registry"`
PYTEST ?=
# tests/shared/shares.py says which tests stay in one process
TESTS := -n $(WORKERS) --no-loadscope-reorder
STATE := $(or $(SWITCHYARD_STATE_DIR),.switchyard)
JARS := $(or $(SWITCHYARD_JARS_DIR),.switchyard/jars)
BIN := .venv/bin
STAMPS := .venv/.stamps
CHECK := orchestration/local/preflight.py
# a hash of the Scala sources and pyspark's version, as in pipelines/engine/jvm/jars.py. What is built from them has it in
# its name, so several checkouts can share the jars, and other changes of the lock file rebuild nothing
KEY := $(shell { cat $(sort $(wildcard pipelines/engine/jvm/*.scala)); \
  sed -n 's/^pyspark==\([^ ;]*\).*/\1/p' requirements.lock | tr -d '\n'; } | sha256sum | cut -c 1-12)
SCALA := $(JARS)/compiled/switchyard-$(KEY).jar
PYSPARK := .venv/lib/python3.11/site-packages/pyspark/jars
PLACE := $(shell printf %s '$(subst ','\'',$(abspath $(PYSPARK)))' | sha256sum | cut -c 1-8)
CLASSES := $(JARS)/spark-classes-$(KEY)-$(PLACE).jsa
# extras of pyproject.toml beside those in requirements.lock: `make setup EXTRAS=postgres`. Kept until another set-up names
# others (`EXTRAS=`: none)
EXTRAS ?= $(shell cat $(STAMPS)/extras 2>/dev/null)
LOCKS := requirements.lock $(EXTRAS:%=requirements-%.lock)
# without the archive of Spark's classes, which takes a minute to make, drivers start slower: `make setup ARCHIVE=0`
ARCHIVE ?= 1

export GX_ANALYTICS_ENABLED := false
export DAGSTER_DISABLE_TELEMETRY := yes
# a run starts an interpreter with Dagster and Spark in it: on two busy cores that takes longer than Dagster's 60 s
export DAGSTER_GRPC_TIMEOUT_SECONDS := 300
# where it is set, each process would compile all modules again: for the tests that takes 8 s of CPU time
export PYTHONDONTWRITEBYTECODE :=

##@ Start here
.PHONY: help setup demo demo-down test ui

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## a million trades, two versions, compared, switched and switched back; then the UI (UI=0: without)
	@UI=$(UI) UI_PORT=$(UI_PORT) $(BIN)/python -m demo

demo-down: setup ## stop what `make demo` left running
	@$(BIN)/python -m demo.down

test: setup ## all tests except the long ones and those with a browser: about 10 minutes on 2 cores
	@$(BIN)/pytest $(TESTS) -m "not (ui or long or cluster)" $(PYTEST)

# only their user can read what Dagster and its runs write. Whoever can connect may do all that the user may: from
# elsewhere, connect through a proxy with a login (docs/dagster.md)
ui: setup ## Dagster's UI on port UI_PORT (3000), for this machine alone; READ_ONLY=1: a UI that can't change anything
	@$(BIN)/python $(CHECK) ui-port=$(UI_PORT)
	@exec $(BIN)/switchyard ui --port $(UI_PORT) $(if $(filter-out 0,$(READ_ONLY)),--read-only) \
	  $(SPARK_RUNS:%=--spark-runs %)

##@ Set-up, each step only when its input changed
.PHONY: preflight steps FORCE
# two at once in one checkout would both write .venv. Which steps are left is decided once the lock is held
setup: ## the virtual environment, the packages and the jars
	@flock -n . true || echo "waiting for another set-up of this checkout"
	@flock . $(MAKE) --no-print-directory steps

steps: $(STAMPS)/project $(JARS)/.verified $(SCALA) $(if $(filter-out 0,$(ARCHIVE)),$(CLASSES))

# on every run: without these two nothing works, and the error would not name them
preflight:
	@$(PYTHON) -c '' 2>/dev/null || { echo "error: no $(PYTHON) on the path" >&2; \
	  echo "  install Python 3.11, or name it: make PYTHON=/path/to/python3.11 setup" >&2; exit 1; }
	@$(PYTHON) $(CHECK) python java

# uv takes packages from where pip does, of whose variable and files it reads nothing
MIRROR = index=$${UV_DEFAULT_INDEX:-$${UV_INDEX_URL:-$$($(BIN)/python -m pip config list 2>/dev/null \
  | sed -n "s/^\(:env:\|global\|install\)\.index-url='\(.*\)'$$/\2/p" | head -n 1 || true)}}; \
  [ -z "$$index" ] || export UV_DEFAULT_INDEX="$$index";

$(STAMPS)/uv: requirements-uv.lock | preflight
	@$(PYTHON) $(CHECK) disk
	@echo "setting up .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r $<
	@mkdir -p $(STAMPS) && touch $@

# changes only when the extras do
$(STAMPS)/extras: $(STAMPS)/uv FORCE
	@echo '$(EXTRAS)' | cmp -s - $@ || echo '$(EXTRAS)' > $@

$(STAMPS)/packages: $(LOCKS) $(STAMPS)/uv $(STAMPS)/extras | preflight
	@$(PYTHON) $(CHECK) disk
	@$(MIRROR) $(BIN)/uv pip sync --python $(BIN)/python --require-hashes --compile-bytecode $(LOCKS) || { \
	  echo "error: the packages of $(LOCKS) could not be installed" >&2; \
	  echo "  check the network, then run make setup again: it continues where it stopped. Behind a proxy, or from a mirror:" \
	    "see docs/deploying.md" >&2; exit 1; }
	@touch $@

$(STAMPS)/project: pyproject.toml $(STAMPS)/packages | preflight
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation --offline \
	  --config-settings editable_mode=compat -e .
	@$(BIN)/python -m compileall -q pipelines expectations orchestration
	@touch $@

$(JARS)/.verified: orchestration/local/jars.toml | $(STAMPS)/project
	@mkdir -p -m 700 $(STATE)
	@$(BIN)/switchyard jars --no-archive
	@touch $@

# both folders are replaced when their contents change. Their own times show that; the times of the stamps change with
# every change of a list. The recipe does nothing, but makes `make` look at the time again
$(JARS)/spark: $(JARS)/.verified
	@:
$(PYSPARK): $(STAMPS)/packages
	@:

$(SCALA): $(JARS)/spark | $(STAMPS)/project
	@$(BIN)/switchyard jars --no-archive

# Java uses it only with the jars that it was made with. Nothing needs it: a set-up that can't make it succeeds, and the
# next one tries again
$(CLASSES): $(SCALA) $(PYSPARK) $(if $(wildcard $(JARS)/broker-classes-*.jsa),,FORCE)
	@$(BIN)/switchyard jars || true

##@ To work on it
.PHONY: lint typecheck types test-types test-fast test-ui chromium test-long with-postgres with-hadoop test-cluster docs runbook bench wheel lock clean distclean
lint: setup ## ruff, and the direction of the imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

typecheck: types test-types ## mypy, strict; for tests, demo and benchmarks only the types of calls
types: setup
	@$(BIN)/mypy
test-types: setup
	@$(BIN)/mypy -p tests -p demo -p benchmarks --cache-dir .mypy_cache/tests --implicit-reexport --no-warn-unreachable \
	  $(addprefix --disable-error-code=,misc no-any-return redundant-expr unused-ignore)

test-fast: setup ## for each save: the tests that need neither broker nor Spark, without the slow ones
	@$(BIN)/pytest $(TESTS) -m "not (broker or spark or e2e or ui or long or cluster or slow)" $(PYTEST)

test-ui: setup chromium ## the tests that look at the UI with a browser (chromium)
	@$(BIN)/pytest -m ui $(PYTEST)

chromium:
	@command -v chromium >/dev/null || { echo "error: no chromium on the path" >&2; \
	  echo "  install it (Debian: apt-get install chromium)" >&2; exit 1; }

test-long: setup ## the life of each app, the demo, a running Dagster, the commands of docs/runbook.md and docs/tutorial.md, Kafka Streams, more kills and resets
	@$(BIN)/pytest $(TESTS) -m long $(PYTEST)

# the extra stays
with-postgres:
	@$(MAKE) setup EXTRAS='$(sort $(EXTRAS) postgres)'

# the hosts of these tests can't fetch them
with-hadoop: with-postgres
	@$(BIN)/python -m tests.cluster.yarn

# two processes, each in namespaces of its own: whatever happens to it, the kernel ends all that it has started
NAMESPACES := unshare --net --mount --pid --fork --kill-child --mount-proc
test-cluster: with-hadoop ## hosts that are network namespaces, with Spark, Dagster and operators on them: needs root, Postgres and a C compiler (tcc)
	@$(BIN)/pytest --tx '2*popen//python=$(NAMESPACES) $(BIN)/python' --dist loadscope --no-loadscope-reorder -m cluster $(PYTEST)

# the variable: without a notice about the next version of MkDocs, which this doesn't use
docs: setup ## the documents as a site in build/docs, with a page for each command; a dead link is an error
	@$(BIN)/python docs/hooks/pages.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/docs/index.html"

runbook: setup ## write into docs/runbook.md and docs/tutorial.md what their commands print now
	@SWITCHYARD_RUNBOOK=write $(BIN)/pytest tests/e2e/test_runbook.py tests/e2e/test_tutorial.py $(PYTEST)

bench: setup ## how fast history is read, beside Flink, Kafka Streams and plain Spark, too; how long a switch, a reset and a recovery take; idle releases; executors; a large registry
	@$(BIN)/python -m benchmarks
	@$(BIN)/python -m benchmarks --density sparse --records 1000000
	@$(BIN)/python -m benchmarks apps
	@$(BIN)/python -m benchmarks switch
	@$(BIN)/python -m benchmarks reset
	@$(BIN)/python -m benchmarks commands
	@$(BIN)/python -m benchmarks latency
	@$(BIN)/python -m benchmarks fleet
	@$(BIN)/python -m benchmarks executors
	@$(BIN)/python -m benchmarks registry
	@$(BIN)/python -m benchmarks recovery
	@$(BIN)/python -m benchmarks race

# setuptools would pack what an earlier build has left
wheel: setup ## the package as a wheel in dist, which works without this checkout
	@rm -rf build/lib build/bdist.*
	@$(BIN)/uv build -q --wheel --no-build-isolation --offline --python $(BIN)/python --out-dir dist .
	@ls dist/*.whl

COMPILE = $(BIN)/uv pip compile pyproject.toml --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
  --no-annotate -q
lock: $(STAMPS)/uv ## resolve pyproject.toml into the lock files
	@$(MIRROR) $(COMPILE) --extra demo --group dev -o requirements.lock
	@awk '/^[a-z]/ {mine = /^uv==/} mine' requirements.lock > requirements-uv.lock
	@$(MIRROR) $(COMPILE) --extra postgres -c requirements.lock | \
	  awk 'NR == FNR {known[$$1]; next} /^[a-z]/ {mine = !($$1 in known)} mine' requirements.lock - > requirements-postgres.lock

# drivers are stopped before the brokers: otherwise they would wait for a broker for ever, and find no checkpoint
clean: ## caches, and all state of the embedded broker, its releases and the demo (stopped first); keeps .venv and the jars
	@if [ -x $(BIN)/switchyard ]; then $(BIN)/python -m orchestration.local.running $(STATE) $(STATE)/demo \
	  && $(BIN)/python -m demo.down && $(BIN)/switchyard down; fi
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	@cd $(STATE) 2>/dev/null && rm -rf broker checkpoints code dagster data-docs demo demo-report.json evidence logs run spark spill tables || true
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## also .venv and the jars: the next make setup downloads again
	@rm -rf .venv $(JARS)
