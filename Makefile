# The commands of the README. Each makes the environment that it needs and can be run on its own.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SOURCES := $(shell find src haiprof page -type f -not -name '*.pyc' -not -path 'page/node_modules/*' \
             -not -name page.html 2>/dev/null) page/src/page.html \
           CMakeLists.txt pyproject.toml haiprof.pth haiprof.start _haiprof_boot.py

.PHONY: help demo test test-jobs test-without-data test-steady test-qemu test-peers test-pythons diagnose-bench wheels gpu-wheel page docs test-docs lint format fuzz bench bench-large soak sanitize clean
help:            ## show this list
	@sed -n 's/^\([a-z-]*\):.*##/\1:/p' $(MAKEFILE_LIST)

demo: $(VENV)/installed  ## train a small network under haiprof and write a report
	$(BIN)/haiprof run --log-dir demo --report -- $(BIN)/python examples/train_digits.py

# Four files at a time, each test of a file after the other: most of them wait for programs.
TESTS := $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder
# The files with a marker: to collect all tests takes each worker as long as some of these.
marked = $(shell grep -rlE '$(1)' tests --include='test_*.py')

test: $(VENV)/installed  ## run the tests but those of whole jobs and under the sanitizers
	$(TESTS)

test-jobs: $(VENV)/installed  ## whole jobs: by launchers, in containers, on several hosts, beside others
	$(TESTS) -m jobs $(call marked,mark\.jobs)

# Those that real traces and machines are looked at in, as in a checkout with nothing beside it.
WITHOUT_DATA := answers common export findings host show sources trace uncore views
test-without-data: $(VENV)/installed  ## the tests that look for real data again, as if none were here
	HAIPROF_TEST_DATA=/nonexistent $(TESTS) --of-data $(addprefix tests/,$(WITHOUT_DATA))

# Installed outside of the environment, in which it would shuffle the tests of every other command.
ROUNDS ?= 5
test-steady: $(VENV)/installed  ## the tests, five times beside four busy processes, then in random order; hours
	for round in $$(seq $(ROUNDS)); do $(BIN)/python tests/busy.py 4 $(TESTS) || exit; done
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/random-order pytest-randomly
	PYTHONPATH=build/random-order $(BIN)/pytest -n 6

test-qemu: $(VENV)/installed  ## emulated machines: uncore drivers, AArch64; needs Debian and its QEMU
	$(BIN)/pytest tests/qemu -m qemu

test-peers: $(VENV)/installed  ## torch-tb-profiler, HTA, Megatron, DeepSpeed, trackers and frameworks themselves; installs them
	$(BIN)/pytest tests/peers -m peers

test-pythons: $(VENV)/installed  ## jobs of other Pythons, free-threaded too; builds for each that is here
	$(BIN)/pytest -m pythons tests/control/test_pythons.py tests/beside/test_free_threaded.py \
	  tests/stacks/test_pythons.py tests/wheels

# Two of the programs' styles need packages that nothing else does.
TRACES := $(or $(HAIPROF_TEST_DATA),../shared/data)
diagnose-bench: $(VENV)/installed  ## planted faults, an hour on two cores; the score goes into docs/diagnosis.md
	$(BIN)/python -m pip install --quiet --group faults
	PYTHONPATH=tests $(BIN)/python -m faults.bench --healthy --keep build/faults --page docs/diagnosis.md
	if [ -d $(TRACES)/traces ]; then PYTHONPATH=tests $(BIN)/python -m faults.bench --traces $(TRACES) \
		--seeds 0,1,2,3 --keep build/faults --page docs/diagnosis.md; fi

PYTHONS ?= $(PYTHON)
MACHINE ?= $(shell uname -m)
wheels:          ## sdist and manylinux_2_28 wheels, for PYTHONS and MACHINE (x86_64, aarch64): build/wheels
	$(PYTHON) wheels/make.py --machine $(MACHINE) build/wheels $(PYTHONS)

gpu-wheel:       ## haiprof for the machine of tests/gpu/run.sh, and what that lacks: build/gpu-wheel
	$(PYTHON) tests/gpu/wheel.py build/gpu-wheel

# They end with a table of their own, which says more than that of pytest-benchmark.
BENCHMARKS := $(BIN)/pytest benchmarks --benchmark-quiet

bench: $(VENV)/installed  ## run the benchmarks; results in build/bench.*
	mkdir -p build
	$(BENCHMARKS) -m 'not soak and not large' --benchmark-json build/bench.json

bench-large: $(VENV)/installed  ## 4 million events, 1 024 ranks; results in build/bench-large.*
	mkdir -p build
	$(BENCHMARKS) -m large --benchmark-json build/bench-large.json

soak: $(VENV)/installed  ## ten minutes of records; results in build/soak.*
	mkdir -p build
	$(BENCHMARKS) -m soak --benchmark-json build/soak.json

FUZZ_SECONDS ?= 300
fuzz: $(VENV)/installed  ## five minutes each of mutated rings, traces, perfd messages, segments and runs
	FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest tests/fuzz -m 'sanitizers or not sanitizers'

page: $(VENV)/dependencies  ## build the template of the report: haiprof/show/page/page.html
	$(BIN)/python page/make.py

# Material is made for MkDocs 1, and says so in each build.
docs: $(VENV)/site build/gallery  ## build the site in build/site; its gallery and notebook run jobs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test-docs: docs  ## the site: search, gallery, notebook, links between its pages
	$(BIN)/pytest tests/website -m site

build/gallery: $(VENV)/installed website/gallery.py $(wildcard examples/*.py)
	rm -rf $@
	$(BIN)/python -P website/gallery.py $@
	touch $@

lint: $(VENV)/linters $(VENV)/installed  ## check style and types
	$(BIN)/python page/make.py check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/opened_by_path.py
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h' '*.c')

format: $(VENV)/linters  ## bring all files into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h' '*.c')

sanitize: $(VENV)/installed  ## the native code under the thread, address and undefined-behaviour sanitizers
	$(BIN)/pytest -n 2 --dist loadgroup -m sanitizers $(call marked,sanitizers|SANITIZERS)

clean:           ## remove what the commands above made
	rm -rf build $(VENV) demo haiprof-logs

$(VENV)/dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group test
	touch $@

$(VENV)/site: $(VENV)/dependencies
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

$(VENV)/linters: $(VENV)/dependencies
	$(BIN)/python -m pip install --quiet --group lint
	touch $@

$(VENV)/installed: $(VENV)/dependencies $(SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation '.[report]'
	touch $@
