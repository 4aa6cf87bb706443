# The README's two commands are `make demo` and `make test`. Each sets up what it needs in .venv,
# on a machine that has Python 3.12 or newer and a package index, and nothing else.

.DEFAULT_GOAL := help
BIN := .venv/bin

# Where bytecode is not to be written next to the sources, it goes here. Without any, each of the
# processes that run the tests compiles pytest, Hypothesis and all that they import.
ifdef PYTHONDONTWRITEBYTECODE
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.pytest_cache/bytecode
endif

help:            ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/ready   ## .venv from the lock file (the other targets call this)

.venv/ready: pyproject.toml requirements.lock .ci/setup .ci/uv.txt
	@.ci/setup requirements.lock && touch .venv/ready .venv/demo

# The demo needs a tenth of it. An environment that has everything keeps everything.
.venv/demo: pyproject.toml requirements.demo.lock .ci/setup .ci/uv.txt
	@if [ -e .venv/ready ]; then $(MAKE) --no-print-directory setup; else .ci/setup requirements.demo.lock; fi && touch .venv/demo

demo: .venv/demo ## a small agent asks, a person decides, the tool runs: under 15 s
	@$(BIN)/ayes demo

test: setup      ## every test that is not long, in a browser too if there is one (6 to 10 minutes on two cores)
	@.ci/tests -n 5

quick: setup     ## the tests of schemas, ledger, projections and consumers that need no broker (under a minute)
	@$(BIN)/pytest -n 3 --quick -rfE tests/schemas tests/ledger tests/projections tests/consumers

test-long: setup ## what takes long: each race 80 times, ten times the examples of each property, whole simulations, killed programs, three nodes, every page in every theme (12 to 20 minutes)
	@.ci/tests -n 2 -m long --timeout 900; status=$$?; \
	  .ci/tests -n 2 -m "hypothesis and not long" --hypothesis-profile=thorough --timeout 900 || status=1; \
	  RACES=80 .ci/tests -n 2 --timeout 900 tests/promises/races/test_races.py || status=1; exit $$status

screenshots: setup ## pictures of every page of the console for docs/console.md, made in a browser
	@PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/promises/browser/screenshots.py docs/pictures

test-bench: setup ## the tests of the benchmarks and of the pages made from their results
	@.ci/tests -n 2 tests/bench

check: setup     ## lint, types and folder order (a minute and a half; seconds with mypy's cache)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

bench: setup     ## measure ours and its floor, in under 10 minutes; ONLY=cycle for one workload, FACTS=1000000, PEERS=DIR for other systems
	@BENCH_DATE=$${BENCH_DATE:-$$(date +%F)} $(BIN)/python -m bench $(ONLY) $(if $(FACTS),--facts $(FACTS)) $(if $(PEERS),--peers $(PEERS)) $(if $(JSON),--json)

floods: setup    ## what one login at full speed leaves the others; ONLY=facts for one flood, SECONDS=30 each
	@$(BIN)/python -m bench.floods $(ONLY) --seconds $(or $(SECONDS),30)

growth: setup    ## how cost grows with the log and with processes; FACTS=10000,100000, PACKED=1, JSON=1
	@BENCH_DATE=$${BENCH_DATE:-$$(date +%F)} $(BIN)/python -m bench.growth $(if $(FACTS),--facts $(FACTS)) $(if $(PACKED),--packed) $(if $(JSON),--json)

year: setup      ## a year of a packed log in about MINUTES=60: memory, starts after kill -9, every tenth conversation read back; RECORDED=FILE, JSON=1
	@BENCH_DATE=$${BENCH_DATE:-$$(date +%F)} $(BIN)/python -m bench.year --minutes $(or $(MINUTES),60) $(if $(RECORDED),--recorded $(RECORDED)) $(if $(JSON),--json)

charts: setup    ## a chart for each workload into docs/charts, from RESULTS="bench.jsonl growth.jsonl"
	@$(BIN)/python -m bench.charts $(RESULTS) docs/charts

chaos: setup     ## kill, pause and cut off three nodes, one server and all programs; MINUTES=20, SEED=1, SERVERS=3 or 1 alone, PACKED=1 packs the log meanwhile, REPORT=docs/faults.md
	@status=0; for servers in $(or $(SERVERS),3 1); do \
	  PYTHONPATH=$(CURDIR):$(CURDIR)/tests/support $(BIN)/python tests/promises/chaos/chaos.py --servers $$servers --minutes $(or $(MINUTES),20) \
	    --seed $(or $(SEED),1) $(if $(PACKED),--packed) $(if $(REPORT),--report $(REPORT)) || status=1; done; exit $$status

kills: setup     ## kill -9 one server's programs repeatedly: with all recorded conversations, a lake sync 300 times, a notifier and copiers 200 times, a witness and a sealer 1,000 times, agents that call agents
	@CHAOS=1 $(BIN)/pytest -m "" tests/promises/races/test_crash.py tests/promises/races/test_one_server.py -n 0
	@CHAOS=1 $(BIN)/pytest -m "" tests/bench/test_rehearsal.py -n 0 -k real
	@KILLS=100 $(BIN)/pytest -m "" tests/ops/test_writer.py -n 0 -k killed
	@NOTIFIER_KILLS=200 $(BIN)/pytest -m "" tests/promises/races/test_notifier_kills.py -n 0 -s
	@COPIER_KILLS=200 $(BIN)/pytest -m "" tests/promises/races/test_copier_kills.py -n 0
	@WITNESS_KILLS=1000 SEALER_KILLS=1000 $(BIN)/pytest -m "" tests/ops/test_cosigning.py tests/ops/test_sealing.py -n 0 -k killed
	@SUB_AGENTS=200 $(BIN)/pytest -m "" tests/promises/races/test_sub_agents_killed.py -n 0 -s

flips: setup     ## bytes that rot on disk: EVERY=1 byte of each fact that lives long, on one server and NODES=30 times on three nodes; then TIMES=1000 honest events on 2.15.0 and 2.15.1
	@PYTHONPATH=.:tests/support $(BIN)/python tests/promises/chaos/flips.py --every $(or $(EVERY),1)
	@PYTHONPATH=.:tests/support $(BIN)/python tests/promises/chaos/flips.py --nodes $(or $(NODES),30)
	@for version in 2.15.0 2.15.1; do NATS_SERVER_BIN=$$(.ci/nats $$version) PYTHONPATH=.:tests/support \
	  $(BIN)/python tests/promises/chaos/honest.py $(or $(TIMES),1000) || exit 1; done
	@AYES_TEST_OLD_NATS_SERVER=$$(.ci/nats 2.14.6) $(BIN)/pytest tests/ops/test_server.py -n 0 -k older

races: setup     ## every pair of endings at once, and nine calls that spend of one budget, TIMES=200 times each
	@RACES=$(or $(TIMES),200) $(BIN)/pytest -m "" tests/promises/races/test_races.py tests/consumers/test_budgets.py -n 0 --timeout 0

power: setup     ## 20 power failures while clients write; root only, as each disk is a loop device
	@POWER_FAILURES=$(or $(FAILURES),20) $(BIN)/pytest -m "" tests/promises/chaos/test_power.py -n 0 -s

sim: setup       ## SEEDS=1000 simulated worlds of CALLS=200 on a hostile broker, then planted bugs; SEED=123 replays one
	@PYTHONPATH=.:tests/support:tests/promises/sim $(BIN)/python tests/promises/sim/simulate.py --calls $(or $(CALLS),200) \
	  $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100) --bugs)

conformance: setup ## what needs more than the locked environment: reference libraries in JavaScript, Go, an environment for each framework; says what it skips
	@.ci/go || echo "Go is not installed: the tests with it skip" >&2
	@CONFORMANCE=1 .ci/tests -m "" -n 2 --timeout 600 tests/projections/test_ai_sdk.py tests/projections/test_ai_sdk_ui.py \
	  tests/docs/test_schemas.py tests/docs/test_receipt_page.py tests/interfaces/access/test_openid.py tests/interfaces/access/test_groups.py \
	  tests/promises/contract tests/adapters/test_frameworks.py

properties: setup ## 20,000 examples of each property of the rules that void facts (half an hour), 1,000 of every other one
	@$(BIN)/pytest tests/ledger/test_validity.py -n 2 --timeout 0 --hypothesis-profile=properties
	@$(BIN)/pytest -m hypothesis -n 2 --timeout 0 --hypothesis-profile=many
	@CONTENT_EXAMPLES=2000 $(BIN)/pytest -m "" tests/projections/test_content.py -n 2 --timeout 0

cluster: setup   ## CALLS=5000 calls on three nodes on this machine, then a node after the other upgraded, replaced, added
	@AYES_TEST_CALLS=$(or $(CALLS),5000) AYES_TEST_OUTAGE_S=20 $(BIN)/pytest -m "" -n 0 --timeout 900 \
	  tests/promises/races/test_cluster.py tests/promises/races/test_elections.py tests/ops/test_cluster_*.py

# `setup` installs uv into .venv/uv where there is none on PATH.
.venv/tools/ready lock: export PATH := $(PATH):$(CURDIR)/.venv/uv/bin
# The extras in the container image.
IMAGE := dev web notify push webhooks absence slack mcp inbox metrics otel copies

.venv/tools/ready: .ci/tools.txt .venv/ready
	@uv venv --quiet --allow-existing --python $(BIN)/python .venv/tools
	@VIRTUAL_ENV=.venv/tools uv pip sync --quiet --require-hashes .ci/tools.txt && touch .venv/tools/ready

images: .venv/tools/ready ## build the container image, and start image, compose file, units and chart as far as this machine can; BASE=image
	@AYES_IMAGE_BASE=$(BASE) $(BIN)/pytest -m "" -n 0 -s --timeout 1800 tests/deploy

sbom: .venv/tools/ready ## what the container image is made of, as CycloneDX, into dist/
	@mkdir -p dist && .venv/tools/bin/cyclonedx-py requirements requirements.image.lock --pyproject pyproject.toml \
	  --output-reproducible --output-file dist/ayes.cdx.json

site: .venv/tools/ready ## the documentation as pages for a web server or a folder, into dist/site
	@.venv/tools/bin/python docs/site/build.py dist/site

lock: setup      ## resolve pyproject.toml again into requirements.lock
	@uv pip compile --universal --generate-hashes --all-extras --group test --python-version 3.12 \
	  --custom-compile-command 'make lock' --no-emit-index-url --upgrade --quiet -o requirements.lock pyproject.toml
	@uv pip compile --universal --generate-hashes --extra dev --extra web --group build --python-version 3.12 \
	  --custom-compile-command 'make lock' --no-emit-index-url -c requirements.lock --quiet -o requirements.demo.lock pyproject.toml
	@uv pip compile --universal --generate-hashes $(addprefix --extra ,$(IMAGE)) --python-version 3.12 \
	  --custom-compile-command 'make lock' --no-emit-index-url -c requirements.lock --quiet -o requirements.image.lock pyproject.toml
	@uv pip compile --universal --generate-hashes --group tools --python-version 3.12 \
	  --custom-compile-command 'make lock' --no-emit-index-url --upgrade --quiet -o .ci/tools.txt
	@echo uv | uv pip compile --universal --generate-hashes --python-version 3.12 \
	  --custom-compile-command 'make lock' --no-emit-index-url --upgrade --quiet -o .ci/uv.txt -

clean:           ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

.PHONY: help setup demo test quick test-long test-bench check bench growth year charts screenshots chaos conformance flips kills races power sim properties cluster images sbom site lock clean
