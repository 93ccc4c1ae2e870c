# Everything runs in a virtual environment of its own; nothing is installed outside this folder.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-vllm test-vllm-full lint types contracts unit unit-pure native chaos loadtest soak calibrate test-gpu bench-start bench-prompt bench-proxy bench-decisions bench-stall bench-agent bench-redis bench-leaving bench-accepting bench-picker bench-index docs lock clean

help: ## what each command does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo ## a fleet of simulated replicas, traffic under four policies, then a router to try (ARGS=--once ends by itself)
	@exec $(BIN)/warmroute demo --with-parent $(ARGS)

test: lint types contracts unit ## lint, types, import contracts and every test but the real engine's

test-vllm: $(VENV)/.test ## the whole path against two real vLLM replicas (CPU build; installs 3.4 GB once)
	@tests/vllm/install.sh .venv-vllm
	@$(BIN)/python -m pytest tests/vllm -m vllm --timeout 560 $(ARGS)

test-vllm-full: $(VENV)/.test ## generated requests, faults and wrong set-ups at real engines: ids, hashes, hits and reasons are exact
	@tests/vllm/install.sh .venv-vllm
	@$(BIN)/python -m pytest tests/vllm -m vllm_full --timeout 1800 $(ARGS)

.PHONY: test-browser test-ops screenshot
test-browser: $(VENV)/.browser ## the dashboard in a real browser (the system's Chromium), against a real fleet
	@$(BIN)/python -m pytest tests/browser -m browser --timeout 300 $(ARGS)

test-ops: $(VENV)/.test ## alert rules and Grafana's expressions by Prometheus' promtool (Debian's package prometheus)
	@$(BIN)/python -m pytest tests/ops -m ops --timeout 300 $(ARGS)

screenshot: $(VENV)/.browser ## take the dashboard's pictures for the documents anew, from the demo's fleet
	@$(BIN)/python -m router.tools.screenshot docs/images $(ARGS)

lint: $(VENV)/.test ## ruff
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.test ## mypy --strict
	@$(BIN)/mypy

contracts: $(VENV)/.test ## who may import whom (import-linter)
	@$(BIN)/lint-imports --no-cache

unit: $(VENV)/.test ## pytest
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --ignore tests/browser -m "not vllm and not vllm_full and not browser and not ops" $(ARGS)

unit-pure: $(VENV)/.test ## the tests of what is compiled or has a native core, again in pure Python
	@WARMROUTE_NATIVE=no $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder \
	    tests/proxy tests/telemetry tests/request tests/index tests/placement tests/scheduling tests/native $(ARGS)

native: $(VENV)/.native ## compile anew what is compiled and was changed

chaos: $(VENV)/.test ## faults of every kind under traffic for five minutes, then block for block (ARGS="--seed N" replays)
	@exec $(BIN)/python -m router.tools.chaos $(ARGS)

loadtest: $(VENV)/.test ## load on a local fleet under every policy, with a report (FULL=1: all workloads; TARGET=URL: a running system)
	@exec $(BIN)/python -m router.tools.load $(if $(TARGET),--target $(TARGET)) $(if $(FULL),--full) $(ARGS)

.PHONY: bench-generator
bench-generator: $(VENV)/.test ## what a process of the load generators sends on a core, and whether its percentiles are true (its limits fail it)
	@$(BIN)/python -m loadtest.bench.generator $(ARGS)

soak: $(VENV)/.test ## churn under traffic for an hour (ARGS="--minutes 10": short): replicas, routers, Redis, clients; leaks, lost requests, hit rate
	@exec $(BIN)/python -m router.tools.soak $(ARGS)

calibrate: $(VENV)/.test ## the latency model of a running engine, for the simulators: ARGS="http://engine:8000 --model NAME"
	@exec $(BIN)/python -m loadtest.calibrate $(ARGS)

test-gpu: $(VENV)/.test ## cost against round robin over real engines on a GPU, and their latency model; skips where there is none
	@exec $(BIN)/python -m router.tools.gpu $(ARGS)

bench-start: $(VENV)/.test ## how long a router that starts reads 100 replicas of 50,000 blocks, and its memory (limit: 15 s)
	@exec $(BIN)/python -m router.tools.bench_start $(ARGS)

bench-prompt: $(VENV)/.test ## what a prompt's chain costs: next turn of a long chat, fresh tokens, memory
	@$(BIN)/python -m loadtest.bench.prompt $(ARGS)

bench-index: $(VENV)/.test ## the index and a decision: time, memory, events/s; ARGS="--dynamo PYTHON": beside Dynamo's RadixTree
	@$(BIN)/python -m loadtest.bench.index $(ARGS)

bench-proxy: $(VENV)/.test ## what the data plane costs: requests/s, latency, streams, where the time goes; ARGS=--hold: memory, --observability: what taking note costs
	@$(BIN)/python -m loadtest.bench.proxy $(ARGS)

bench-decisions: $(VENV)/.test ## memory of decisions, ledger and metrics after 100,000 decisions (limit: 60 MB)
	@$(BIN)/python -m loadtest.bench.decisions $(ARGS)

bench-stall: $(VENV)/.test ## health checks while 16 prompts of 100,000 fresh tokens come in at once (limit: p99 of 50 ms)
	@$(BIN)/python -m loadtest.bench.stall $(ARGS)

bench-accepting: $(VENV)/.test ## how evenly workers share connections: one socket for all, or one each (SO_REUSEPORT)
	@$(BIN)/python -m loadtest.bench.accepting $(ARGS)

bench-leaving: $(VENV)/.test ## what clients at hand send when their request is cancelled: FIN or RST, and what tells that they are gone
	@$(BIN)/python -m loadtest.bench.leaving $(ARGS)

bench-picker: $(VENV)/.test ## what Envoy's question to the picker costs: latency, CPU, streams (its limits fail it)
	@$(BIN)/python -m loadtest.bench.picker $(ARGS)

.PHONY: bench-placement
bench-placement: $(VENV)/.test ## what placement gives on a trace (ARGS="--trace FILE") and on generated traffic, as tables, in some hours
	@exec $(BIN)/python -m router.tools.bench_placement $(ARGS)

bench-agent: $(VENV)/.test ## an agent beside 50,000 block events/s: CPU, frame to Redis, bytes a block (its limits fail it)
	@$(BIN)/python -m loadtest.bench.agent $(ARGS)

# Two sets of packages share the environment: what the demo needs, and with it what the tests need.
$(VENV)/.demo: locks/demo.txt | $(VENV)/.native
	@echo "installing what the demo needs into $(VENV)"
	@$(PIP) install --require-hashes -r locks/demo.txt
	@touch $@

$(VENV)/.test: locks/test.txt | $(VENV)/.native
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install --require-hashes -r locks/test.txt
	@touch $@ $(VENV)/.demo

# The modules that are compiled, as router/native/compiled.py lists them, and what compiles them.
COMPILED := $(patsubst %,%.py,$(subst .,/,$(shell sed -n 's/^    "\(router\..*\)",$$/\1/p' router/native/compiled.py)))
NATIVE := native_build.py native_mypyc.py $(wildcard router/native/*.[ch] router/native/*.py) $(COMPILED)

$(VENV)/.native: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "building the project into $(VENV), its native cores where a C compiler is"
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/.browser: locks/browser.txt $(VENV)/.test
	@echo "installing what tests in a browser need into $(VENV)"
	@$(PIP) install --require-hashes -r locks/browser.txt
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 with venv is needed; point PYTHON at one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

bench-redis: $(VENV)/.test ## bytes that a block takes in Redis, in snapshots and in streams (limits: 24 and 16)
	@$(BIN)/python -m router.tools.bench_redis $(ARGS)

docs: $(VENV)/.test ## write the documents' reference tables, the chart's schema, dashboards and alerts anew
	@$(BIN)/python -m router.tools.reference docs/*.md
	@$(BIN)/python -m router.tools.chart_schema helm/values.schema.json
	@$(BIN)/python -m router.tools.grafana helm/files
	@$(BIN)/python -m router.tools.alerts helm/files

# The router's image has what discovery in Kubernetes needs.
lock: ## resolve locks/*.txt anew from pyproject.toml
	@$(PYTHON) -m venv .cache/uv && .cache/uv/bin/python -m pip install --quiet uv
	@for extra in router picker agent demo test browser; do \
		more=; [ $$extra != router ] || more="--extra k8s"; \
		.cache/uv/bin/uv pip compile --quiet --universal --upgrade --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --extra $$extra $$more pyproject.toml -o locks/$$extra.txt || exit 1; done

clean: ## remove the environments
	@rm -rf $(VENV) .venv-vllm .cache dist
