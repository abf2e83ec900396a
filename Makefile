# Two commands do everything: `make demo` and `make test`. Each works as the only
# one on a fresh clone. `make help` lists the rest.
PYTHON ?= python3
# Else each process of the tests compiles every module that it imports: half a second of processor
# time for each node, five for each worker.
unexport PYTHONDONTWRITEBYTECODE
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests side by side; `base/tests/support/lanes.py` says which. Without `-n`, one by one.
WORKERS ?= auto
PYTEST = $(BIN)/pytest -n $(WORKERS) --durations=20 --durations-min=2
# Its tests take as long as they take.
UNHURRIED := -o faulthandler_timeout=0
# Tests whose bounds of time are figures of the product, to the letter and one by one.
TIMED := $(addprefix cluster-tests/processes/test_,failover.py flapping_link.py held_loop.py isolated_master.py lazy.py shutdown.py)
# Cases that `test` plays in no more than four of six ways (`cluster-tests/processes/support/halves.py`).
PLAYED := $(addprefix cluster-tests/processes/test_,queue_suites.py pulls.py length_limits.py)
# How long each fuzzer of `make evidence` goes on, and `make chaos`.
MINUTES ?= 10
# What `make seeds` simulates: with those of `make test`, ten thousand.
SEEDS ?= 200:10000
# What the seed of `make chaos` is; each run draws its own without it.
SEED ?=
CHAOS_PATH := cluster-tests/support:cluster-tests/processes/support:base/tests/support:gm/tests/support

.PHONY: help demo test long seeds quick evidence evidence-pipeline chaos check check-style check-types check-generated check-layout
.PHONY: format bench bench-storage cluster proto clean
.DEFAULT_GOAL := help

help:      ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## three nodes, 100 000 messages, the master killed half way: what was lost?
	@$(BIN)/ringmq demo $(ARGS)

# `check` has played the tests of the layout; with them, each worker would parse all sources again.
# Where ARGS chooses tests by path or name, they may be meant.
PLAYED_BY_CHECK = $(if $(findstring cluster-tests/tidy,$(ARGS))$(filter -k%,$(ARGS)),,--ignore=cluster-tests/tidy)

test: $(STAMP) check ## every check, and every test but those of `long`
	@$(PYTEST) -m 'not compute' $(PLAYED_BY_CHECK) $(ARGS)

long: WORKERS = logical
long: $(STAMP) ## what `test` takes a slice of: seeds, interleavings, power cuts, Spark's jobs; ten minutes of two processors
	@$(PYTEST) -m compute $(ARGS)
	@$(MAKE) --no-print-directory seeds

seeds: $(STAMP) ## SEEDS of simulated rings, beyond those of `test`
	@$(BIN)/python cluster-tests/simulation/run.py --seeds $(SEEDS)

quick: WORKERS = logical
quick: $(STAMP) ## the tests that take no time, in less than a minute
	@$(PYTEST) -m 'not slow and not docker' $(ARGS)

evidence: $(STAMP) ## the seeds, cases and fuzzers of `test`, many more of them, its times to the letter: some hours
	@RINGMQ_EXHAUSTIVE=1 $(PYTEST) -n 1 cluster-tests/simulation/test_explorer.py $(UNHURRIED) $(ARGS) # 18 GB each
	@RINGMQ_EXHAUSTIVE=1 $(PYTEST) node/tests/resources/test_memory.py $(PLAYED) $(UNHURRIED) $(ARGS)
	@RINGMQ_EXHAUSTIVE=1 $(PYTEST) -n 0 $(TIMED) $(ARGS)
	@$(MAKE) --no-print-directory seeds SEEDS=0:1000000
	@$(BIN)/python cluster-tests/simulation/run.py --planted
	@$(BIN)/python -m node.tests.queue.whole.fuzz_queue --seconds $$(($(MINUTES) * 60))
	@$(BIN)/python -m node.tests.storage.engine.fuzz_engine --seconds $$(($(MINUTES) * 60))
	@PYTHONPATH=base/tests/support $(BIN)/python -m node.tests.storage.queue.fuzz_recovery --minutes $(MINUTES)
	@PYTHONPATH=base/tests/support:wire/tests/support \
		$(BIN)/python -m wire.tests.fuzz_wire --seconds $$(($(MINUTES) * 60))
	@RINGMQ_EXHAUSTIVE=1 $(PYTEST) -n 0 cluster-tests/processes/test_fuzzed_port.py $(UNHURRIED) $(ARGS)
	@$(BIN)/python -m bench soak

evidence-pipeline: $(STAMP) ## what the pipeline's tests take a slice of, in full: an hour
	@RINGMQ_EXHAUSTIVE=1 $(PYTEST) -n 0 pipeline/tests cluster-tests/docker/test_spark_up.py $(UNHURRIED) $(ARGS)

chaos: $(STAMP) ## MINUTES of faults, drawn from SEED, against real nodes in namespaces
	@PYTHONPATH=$(CHAOS_PATH) $(BIN)/python -m chaos --minutes $(MINUTES) \
		$(if $(SEED),--seed $(SEED)) $(ARGS)

check: $(STAMP) ## format, lint, types, imports, generated code, links in the docs
	@$(MAKE) --no-print-directory --jobs --output-sync=target \
		check-style check-types check-generated check-layout

check-style: $(STAMP)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

check-types: $(STAMP)
	@$(BIN)/mypy

check-generated: $(STAMP)
	@$(BIN)/python proto/generate.py --check

check-layout: $(STAMP)
	@$(BIN)/pytest -q -r '' cluster-tests/tidy

format: $(STAMP) ## rewrite what `check` would complain about
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## three of our nodes beside three of RabbitMQ's, in one run: about seven minutes
	@$(BIN)/python -m bench $(ARGS)

bench-storage: $(STAMP) ## the storage engine alone, beside the bare disk and RabbitMQ's
	@$(BIN)/python -m bench storage $(ARGS)

cluster: $(STAMP) ## a cluster of three local nodes that stays up
	@$(BIN)/ringmq cluster up $(ARGS)

proto: $(STAMP) ## generate the code from proto/
	@$(BIN)/python proto/generate.py

clean:     ## remove what the other commands made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
