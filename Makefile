# Every target sets itself up: a virtual environment in .venv, from PyPI and nothing else.
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 500
START ?= 1
SECONDS ?= 120
JOBS ?= 3

.PHONY: run serve test check format bench interop soak simulate chaos messages setup clean
.DEFAULT_GOAL := run

# What a node needs to run.
.venv/.runtime: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Moldau needs Python 3.11 or newer; say which with PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ echo "Could not make a virtual environment. On Debian: apt install python3-venv"; exit 1; }
	@echo "Installing Moldau into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# What pipelines need besides: Spark, and a Java for machines that have none.
.venv/.spark: .venv/.runtime
	@echo "Installing Spark into .venv: 1.3 GB on disk, a few minutes, only once ..."
	@$(BIN)/python -m pip install --quiet --editable '.[spark]'
	@touch $@

# What its developers need besides.
.venv/.development: .venv/.spark
	@echo "Installing what tests and checks need ..."
	@$(BIN)/python -m pip install --quiet --editable '.[spark]' --group dev
	@touch $@

setup: .venv/.development

# Everything at work: a node, orders that come in, a pipeline on Spark.
run: .venv/.spark
	@$(BIN)/moldau demo $(ARGS)

serve: .venv/.runtime
	$(BIN)/moldau serve $(ARGS)

# Tests wait for nodes more than they compute, so JOBS of them run at once, a file at a time.
# Spark's have a process of their own: a JVM and PySpark's signal handlers stay in it to the end.
test: .venv/.development
	$(BIN)/python -m pytest tests --ignore=tests/interop --ignore=tests/spark --ignore=tests/chaos -m "not slow" \
		--numprocesses $(JOBS) --dist loadfile $(ARGS)
	$(BIN)/python -m pytest tests/spark -m "not slow" $(ARGS)

check: .venv/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_layering.py

# The types of requests and responses, from the schemas of the versions that are served.
messages: .venv/.development
	$(BIN)/python tools/generate_messages.py

format: .venv/.development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.development
	$(BIN)/python -m bench.run $(ARGS)

interop: .venv/.development
	$(BIN)/python -m pytest tests/interop -m "not slow" $(ARGS)

simulate: .venv/.development
	$(BIN)/python -m moldau.testing.simulation --seeds $(SEEDS) --start $(START) --jobs $(JOBS) $(ARGS)

# Real processes in network namespaces, with disks of their own, under every kind of fault. Needs root.
chaos: .venv/.development
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(ARGS)

# The full numbers of the long proofs, of which `make test` runs a sample; writes docs/proof/.
soak: .venv/.development
	$(BIN)/python -m tests.soak $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis moldau-data
