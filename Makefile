# Every target does its own set-up, in a virtual environment of its own: nothing is expected but Python.
PYTHON ?= python3
VENV   ?= .venv
# What `make demo` passes on, for example: make demo DEMO="--steps 3 --no-serve"
DEMO   ?=
# What `make bench` passes on, for a quick look: make bench BENCH="--events 100000 --growth 10000,100000 --out /tmp/r.md"
BENCH  ?=
# Another allocator to test against: make standin TORCH=2.9.0, then STANDIN_TORCH=2.9.0 for pytest.
TORCH  ?= 2.13.0
# Which allocator the twelve trainings are tested against as well.
NEWEST_TORCH ?= 2.15.0
# What test-standin runs in, one after the other.
TORCHES ?= 2.6.0 2.9.0 2.11.0 2.13.0 2.14.1 2.15.0
# What test-integrations runs in, one after the other: groups of pyproject.toml.
INTEGRATIONS ?= integrations integrations-oldest

BIN   := $(VENV)/bin
# Some 7,000 tests on busy cores: one of another process's turns comes late now and then, and one alone failed
# two whole runs. What fails runs once more, alone; both outcomes are printed, and whatever needed it is mended.
TESTS = $(BIN)/pytest -n auto --dist loadgroup || { test $$? -eq 1 && $(BIN)/python scripts/again.py; }
READY := $(VENV)/.vramscope-ready
TOOLS := $(VENV)/.vramscope-tools

.DEFAULT_GOAL := help
.PHONY: attack dist docs help setup demo looks pictures quick test check bench bench-dashboard bench-live bench-leaks bench-left-on bench-damage bench-fleet bench-overhead bench-predict bench-predict-peers bench-programs bench-published bench-ranks-page bench-reruns bench-scrape bench-soak bench-strategies bench-upload canary d3 soak-threads speedscope standin typescript test-all test-integrations test-matrix test-standin test-ray format browser allocator

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(TOOLS)  ## the virtual environment with everything in it

# By uv, in a third of pip's time, and by pip where uv cannot: it reads no settings of pip, such as another index. All is
# compiled here: the tests make an error of what a compiler warns of in other people's files.
INSTALL = $(BIN)/python -m uv pip install -q --compile-bytecode --python $(BIN)/python $(1) || $(BIN)/python -m pip install -qq $(1)

# torch first and pinned: what comes is this machine's own build, and the examples behave as described.
$(READY): pyproject.toml setup.py
	@echo "setting up $(VENV): PyTorch and the dashboard, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade "pip>=25.1"
	$(BIN)/python -m pip install -qq torch==2.13.0
	$(BIN)/python -m pip install -qq "uv>=0.9" || echo "no uv: pip installs everything"
	$(call INSTALL,--editable ".[dashboard]")
	@touch $@

$(TOOLS): $(READY)
	$(call INSTALL,--group dev)
	@touch $@

demo: $(READY)  ## train a small transformer for real and watch its memory in the browser
	$(BIN)/vramscope demo $(DEMO)

pictures: $(TOOLS) browser  ## the pictures of the documentation, from the samples
	$(BIN)/python scripts/pictures.py
	$(BIN)/python scripts/moving_picture.py

looks: $(TOOLS) browser  ## every page at five widths, at 200 % and in colour deficiencies, on one sheet each
	$(BIN)/python scripts/looks.py

test: $(TOOLS) browser allocator  ## all tests
	@$(TESTS)

test-all: $(TOOLS) browser allocator  ## all tests, with those that are marked exhaustive
	@VRAMSCOPE_TESTS=all; export VRAMSCOPE_TESTS; $(TESTS)

check: $(TOOLS) browser allocator  ## format, lint, types, import contracts, structure, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/structure.py
	$(BIN)/python scripts/generate_questions.py --check
	$(BIN)/python scripts/schemas.py --check
	$(MAKE) --no-print-directory typescript
	@$(TESTS)

quick: $(TOOLS)  ## form, types, and the nearest tests of what has changed: make quick, or make quick FILE…
	@$(BIN)/python scripts/quick.py $(filter-out quick,$(MAKECMDGOALS))

bench: $(TOOLS)  ## measure us beside the other readers of snapshots, into benchmarks/RESULTS.md
	$(BIN)/python benchmarks/readers.py $(BENCH)

bench-dashboard: $(TOOLS) browser d3  ## the dashboard in a browser: ten tasks by clicks, then one and five million events
	$(BIN)/python benchmarks/dashboard.py --events 1000000,5000000 $(BENCH)

bench-ranks-page: $(TOOLS) browser  ## the page of all ranks, 1,024 of 1,000 steps, in a browser, into benchmarks/RANKS_PAGE.md
	$(BIN)/python benchmarks/ranks_page.py --out benchmarks/RANKS_PAGE.md $(BENCH)

bench-live: $(TOOLS) browser  ## the dashboard beside a training: lag, memory, steps with and without a viewer
	$(BIN)/python benchmarks/dashboard_live.py $(BENCH)

bench-leaks: $(TOOLS)  ## seeded leaks and clean loops: what is found, by which step
	$(BIN)/python benchmarks/leaks.py $(BENCH)

bench-damage: $(TOOLS)  ## thousands of damaged recordings: is any shown as if it were whole?
	$(BIN)/python benchmarks/damage.py $(BENCH)

attack: $(TOOLS)  ## hostile files, requests, arguments and programs, bounded and on this machine, into benchmarks/ATTACK.md
	$(BIN)/python benchmarks/attack.py --out benchmarks/ATTACK.md $(BENCH)

# NANOGPT=<its checkout>; models of transformers are run where PYTHONPATH has that package.
bench-strategies: $(TOOLS) allocator  ## what fit says about strategies, against genuine runs, into benchmarks/STRATEGIES.md
	$(BIN)/python benchmarks/strategies.py $(BENCH)

bench-fleet: $(TOOLS)  ## all ranks of jobs of 64, 1,024 and 10,000 compared, into benchmarks/FLEET.md
	$(BIN)/python benchmarks/fleet.py --out benchmarks/FLEET.md $(BENCH)

bench-upload: $(TOOLS)  ## what recording to a store costs a step, and whether it arrives, into benchmarks/UPLOAD.md
	$(BIN)/python benchmarks/upload.py --out benchmarks/UPLOAD.md $(BENCH)

bench-scrape: $(TOOLS)  ## what a scrape of metrics costs the training process, as a share of 15 s
	$(BIN)/python benchmarks/scrape.py

bench-soak: $(TOOLS) allocator  ## half an hour at 25,000 events a second with a viewer: what is lost, what grows
	PYTHONPATH=. .cache/standin/2.13.0/python benchmarks/soak.py --viewer $(BIN)/vramscope $(BENCH)

# What `make soak-threads` passes on, for a quick look: make soak-threads BENCH="--seconds 10 --tries 1"
soak-threads: $(TOOLS) allocator  ## eight threads that train at once, recorded, ten times on each device
	$(BIN)/python benchmarks/soak_threads.py --device simulated --tries 10 $(BENCH)
	PYTHONPATH=. .cache/standin/2.13.0/python benchmarks/soak_threads.py --device cuda --tries 10 $(BENCH)

bench-overhead: $(TOOLS) allocator  ## what recording costs a step, into benchmarks/OVERHEAD.md
	.cache/standin/2.13.0/python benchmarks/overhead.py --out benchmarks/OVERHEAD.md $(BENCH)

bench-left-on: $(TOOLS) allocator  ## forecasts, peaks and leaks of every="auto" beside all events, into benchmarks/LEFT_ON.md and LEFT_ON_PROGRAMS.md
	.cache/standin/2.13.0/python benchmarks/left_on.py --out benchmarks/LEFT_ON.md $(BENCH)

# What `make bench-programs` needs: checkouts of nanoGPT, minGPT and pytorch/examples in PROGRAMS=<folder>.
bench-programs: $(TOOLS) allocator  ## what recording costs real programs, into benchmarks/OVERHEAD_PROGRAMS.md
	rm -f benchmarks/OVERHEAD_PROGRAMS.md
	STANDIN_DEVICES=0 .cache/standin/2.13.0/python benchmarks/overhead_programs.py $(PROGRAMS) --out benchmarks/OVERHEAD_PROGRAMS.md $(BENCH)
	.cache/standin/2.13.0/python benchmarks/overhead_programs.py $(PROGRAMS) --out benchmarks/OVERHEAD_PROGRAMS.md $(BENCH)

bench-predict: $(TOOLS)  ## predictions against torch's genuine allocator, into benchmarks/PREDICTION.md
	for torch in 2.13.0 2.14.1 2.15.0; do $(BIN)/python tests/standin/build.py --torch $$torch || exit 1; done
	$(BIN)/python benchmarks/prediction.py --out benchmarks/PREDICTION.md $(BENCH)

bench-published: $(TOOLS)  ## predictions beside what others measured on real cards, into docs/published.md
	$(BIN)/python benchmarks/published.py $(BENCH)

bench-reruns: $(TOOLS) allocator  ## what fit --rerun says about changes, against genuine runs of them
	$(BIN)/python benchmarks/reruns.py $(BENCH)

bench-predict-peers: $(TOOLS) allocator  ## predictions beside MemTracker and formulas, into benchmarks/PREDICTION_PEERS.md
	$(BIN)/python benchmarks/prediction_peers.py $(BENCH)

standin: $(TOOLS)  ## torch's genuine CUDA allocator without a GPU, for the tests marked standin (0.5 GB)
	$(BIN)/python tests/standin/build.py --torch $(TORCH)

test-standin: $(TOOLS)  ## the CUDA tests on the genuine allocators of several versions of torch
	for torch in $(TORCHES); do \
	  $(BIN)/python tests/standin/build.py --torch $$torch && STANDIN_TORCH=$$torch $(BIN)/pytest -q -m standin || exit 1; \
	done

# What `make test-matrix` passes on, for a part: make test-matrix MATRIX="--python 3.13" or MATRIX="--torch 2.15.0 --only truth"
MATRIX ?=
test-matrix: $(TOOLS)  ## the tests on every Python and with every torch, which takes hours, into docs/versions.md
	$(BIN)/python scripts/versions.py $(MATRIX)

# What `make canary` passes on, for another version: make canary CANARY="--torch 2.14.1 --checked 2.13.0"
CANARY ?=
canary: $(TOOLS)  ## what of the newest torch of the index differs from the checked one: private functions, snapshots (0.5 GB)
	$(BIN)/python scripts/canary.py $(CANARY)

# Ray has its own environment: it is too large for the one that every other test runs in.
test-ray:  ## the Ray engine on a cluster of three nodes, of which one is lost
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install -qq --upgrade "pip>=25.1"
	.venv-ray/bin/python -m pip install -qq --editable ".[ray,remote]" "moto[server]" pytest pytest-timeout
	.venv-ray/bin/pytest -q --noconftest tests/ray

# The viewer that a test opens our export in: 0.3 MB of npm, without what it depends on.
speedscope:
	@test -d .cache/speedscope/package || { mkdir -p .cache/speedscope && cd .cache/speedscope \
	  && npm pack --silent speedscope@1.25.0 >/dev/null && tar xzf speedscope-1.25.0.tgz; } \
	  || echo "speedscope cannot be downloaded: its test will be skipped"

# The types of the dashboard's scripts; scripts/browser/shared.d.ts has what they share.
typescript:  ## check the types of the dashboard's scripts
	@test -d .cache/typescript/package || { mkdir -p .cache/typescript && cd .cache/typescript \
	  && npm install --silent --no-save --prefix package typescript@7.0.2 >/dev/null; } \
	  || echo "TypeScript cannot be downloaded: the types of the scripts are not checked"
	@test ! -d .cache/typescript/package || node .cache/typescript/package/node_modules/.bin/tsc -p scripts/browser/jsconfig.json

# What torch's viewer takes from a CDN; the viewer itself is in no package (tests/integrations/test_memory_viz.py).
d3:
	@test -d .cache/d3/package || { mkdir -p .cache/d3 && cd .cache/d3 \
	  && npm pack --silent d3@7.9.0 >/dev/null && tar xzf d3-7.9.0.tgz; } \
	  || echo "d3 cannot be downloaded: the test of torch's viewer will be skipped"

# Environments of their own: Ray and old versions would move the pins of the one that every other test runs in.
# uv chooses their versions in 20 s, where pip gives up on torchtitan beside Ray; torch comes
# from pip, as everywhere, so that it is this machine's own build.
test-integrations: speedscope d3  ## trainers, loggers, metrics and agents with the real packages, newest and oldest
	@set -e; for which in $(INTEGRATIONS); do \
	  began=$$(date +%s); python=.venv-$$which/bin/python; \
	  $(PYTHON) -m venv .venv-$$which; \
	  $$python -m pip install -qq --upgrade "pip>=25.1" "uv>=0.9"; \
	  $$python -m pip install -qq torch==2.13.0; \
	  $$python -m uv pip install -q --python $$python --editable ".[dashboard]" --group $$which; \
	  installed=$$(date +%s); \
	  .venv-$$which/bin/pytest -q -n auto --dist loadgroup -o filterwarnings=default tests/integrations; \
	  echo "$$which: installed in $$((installed - began)) s, tested in $$(($$(date +%s) - installed)) s"; \
	done

dist: $(TOOLS)  ## source distribution and wheel into dist/, checked as the package index does
	$(BIN)/python -m pip install -qq --group release
	rm -rf dist build
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	@tar tzf dist/*.tar.gz | grep -q /tests/packaging/test_release.py && tar tzf dist/*.tar.gz | grep -q /docs/start.md

docs: $(TOOLS)  ## the site of the documents, into .cache/site, without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(TOOLS)  ## put the code into the shape that check wants
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The browser tests drive Debian's chromium; where it can neither be found nor installed they are skipped, saying so.
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; } \
	  || echo "no chromium and no way to install it: the browser tests will be skipped"

# The CUDA tests run torch's genuine allocator over a stand-in; where it cannot be built they are skipped, saying so.
allocator: $(TOOLS)
	@for torch in $(TORCH) $(NEWEST_TORCH); do \
	  $(BIN)/python tests/standin/build.py --torch $$torch || echo "no stand-in for CUDA could be built: its tests will be skipped"; \
	done
