# Needs python3 (3.11 or later, with venv), make and a package index that pip knows. No root.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
# One thread a process: more of them only wait for each other.
WORKERS ?= 2
THREADS ?= 1

VENV := .venv
BIN := $(VENV)/bin
OLD := .venv-519
SERVED := .venv-vllm
BESIDE := .venv-sglang
CLIENTS := .venv-clients
# Tests that were compiled once are not compiled again, whatever the environment says: ten seconds of each process.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup environments servers browser demo test test-device test-benchmarks test-scale test-slow test-519 test-clients test-vllm test-vllm-ray test-sglang test-vllm-matrix test-vllm-mixed test-vllm-upstream test-nightly nightly fuzz fuzz-vllm wheel-test crash-test soak soak-short soak-serve soak-serve-short gpu load results-check real reference docs lint format types imports check clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

PIP = -m pip install --quiet --disable-pip-version-check

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) "$(TORCH)" --editable ".[all]"
	touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python $(PIP) "$(TORCH)" --editable ".[dev]"
	touch $@ $(VENV)/installed

# The other environments lie over these packages: a line of a .pth file adds a folder, with its own .pth files.
PACKAGES = -c "import sysconfig; print(sysconfig.get_path('purelib'))"
LAY_OVER = for base in $(1); do $$base/bin/python $(PACKAGES) | sed "s/.*/import site; site.addsitedir('&')/"; done

# An older transformers over the packages of the first environment: nothing else is installed twice. torchvision goes
# with it, so that the full processors, which need it, are tested here and their parts alone in the first.
$(OLD)/installed: $(VENV)/installed-dev
	test -x $(OLD)/bin/python || $(PYTHON) -m venv $(OLD)
	$(call LAY_OVER,$(VENV)) > "$$($(OLD)/bin/python $(PACKAGES))/base.pth"
	$(OLD)/bin/python $(PIP) "transformers==5.19.*"
	$(OLD)/bin/python $(PIP) --no-deps "$(TORCHVISION)"
	$(OLD)/bin/python -c "import transformers; assert transformers.__version__.startswith('5.19.'), transformers.__version__"
	touch $@

# vLLM over both, whose torch and transformers it can use. What it brings for sound is built for CUDA, fails beside a CPU
# build of torch, and is not needed; torchvision is, with two operators declared (tests/vllm/operators.py says why).
$(SERVED)/installed: pyproject.toml $(OLD)/installed tests/vllm/operators.py
	test -x $(SERVED)/bin/python || $(PYTHON) -m venv $(SERVED)
	packages="$$($(SERVED)/bin/python $(PACKAGES))" && $(call LAY_OVER,$(OLD) $(VENV)) > "$$packages/base.pth" && \
		cp tests/vllm/operators.py "$$packages/torchvision_operators.py" && \
		echo "import torchvision_operators" > "$$packages/torchvision_operators.pth"
	$(SERVED)/bin/python $(PIP) "$(TORCH)" --editable ".[vllm]"
	$(SERVED)/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes torchaudio torchcodec
	touch $@

# SGLang's wheel and what it imports, without the packages that it asks for beside them: those are built for CUDA. They
# lie over the second environment's, whose transformers and torchvision are SGLang's own release or near it. Kernels that
# have no build for a CPU are stood in for by a module that raises when one is called.
$(BESIDE)/installed: pyproject.toml $(OLD)/installed tests/sglang/packages.txt tests/sglang/stubs/sgl_kernel.py tests/vllm/operators.py
	test -x $(BESIDE)/bin/python || $(PYTHON) -m venv $(BESIDE)
	packages="$$($(BESIDE)/bin/python $(PACKAGES))" && $(call LAY_OVER,$(OLD) $(VENV)) > "$$packages/base.pth" && \
		cp tests/sglang/stubs/sgl_kernel.py "$$packages/sgl_kernel.py" && \
		cp tests/vllm/operators.py "$$packages/torchvision_operators.py" && \
		echo "import torchvision_operators" > "$$packages/torchvision_operators.pth"
	$(BESIDE)/bin/python $(PIP) --no-deps --requirement tests/sglang/packages.txt
	$(BESIDE)/bin/python $(PIP) --no-deps --editable .
	touch $@

# The clients of others, and what they import beside ours: their bounds on common packages exclude each other.
$(CLIENTS)/installed: $(VENV)/installed-dev tests/clients/packages.txt
	test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	$(call LAY_OVER,$(VENV)) > "$$($(CLIENTS)/bin/python $(PACKAGES))/base.pth"
	$(CLIENTS)/bin/python $(PIP) --no-deps --requirement tests/clients/packages.txt
	touch $@

environments: $(OLD)/installed $(SERVED)/installed $(BESIDE)/installed $(CLIENTS)/installed  ## Make the environments of the engines' and clients' tests

setup: $(VENV)/installed-dev  ## Make .venv with everything for development

servers:  ## Install redis-server for the remote tier's tests, where apt can; without it they are skipped
	command -v redis-server >/dev/null || command -v valkey-server >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; } || \
		echo "no redis-server here: its tests will be skipped"

browser:  ## Install Chromium for the page's tests, where apt can; without it they are skipped
	command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } || \
		echo "no Chromium here: the page's tests will be skipped"

demo: $(VENV)/installed  ## Set everything up and run the demo
	$(BIN)/emblema demo

test: $(VENV)/installed-dev servers  ## Set everything up and run the fast tests
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow and not nightly" tests

DEVICE = not nightly
# On a machine with a GPU EMBLEMA_TEST_DEVICE=cuda runs the same there, and with `make test` all the rest.
test-device: export EMBLEMA_TEST_DEVICE ?= fake
test-device: $(VENV)/installed-dev  ## Hold a device to what the CPU answers; without one, a stand-in that torch takes for one
	$(PYTEST) -n $(WORKERS) -m "$(DEVICE)" tests/device

test-benchmarks: $(VENV)/installed-dev  ## Run the fast tests of the benchmarks and of the training
	$(PYTEST) -n $(WORKERS) --dist loadfile -m "not slow and not nightly" benchmarks/tests training/tests

$(VENV)/installed-ray: $(VENV)/installed-dev
	$(BIN)/python $(PIP) 'ray[serve]>=2.60,<2.61'
	touch $@

test-scale: $(VENV)/installed-ray  ## Run real replicas behind Ray Serve, on loopback: two that are killed, and the router
	$(PYTEST) tests/serve/ray/test_router.py tests/serve/ray/test_cluster.py

# Files of the longest tests go first: by default files of few tests go last, and one worker waits. pytest leaves with 5
# where it finds no test.
test-slow: $(VENV)/installed-dev servers browser  ## Run the slow tests, the wheel's excepted
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow and not nightly" --ignore=tests/e2e/test_wheel.py benchmarks/tests training/tests tests || [ $$? -eq 5 ]

test-nightly: $(VENV)/installed-dev servers browser  ## Run the tests that are too long for every commit
	$(PYTEST) -n $(WORKERS) --dist loadfile -m nightly benchmarks/tests training/tests tests || [ $$? -eq 5 ]

NIGHTLY ?= tests device results fuzz crash soaks scale transformers ray sglang vllm-fuzz vllm-matrix vllm-mixed vllm-upstream
nightly:  ## Run what is too long for every commit, hours in all; NIGHTLY="fuzz soaks" chooses: list in CONTRIBUTING.md
	bash .ci/nightly $(NIGHTLY)

test-519: $(OLD)/installed  ## Run the adapter tests on transformers 5.19, with torchvision
	OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(OLD)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow and not nightly" tests/models

test-clients: $(CLIENTS)/installed  ## Let eight client libraries talk to a server, in an environment of their own
	OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(CLIENTS)/bin/python -m pytest -n 0 -W ignore tests/clients

# One thread a process: exact comparisons. vLLM keeps one engine, run in one way, a process; two of them at once.
MATRIX = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(SERVED)/bin/python -m tests.vllm.matrix --at-once $(WORKERS)
test-vllm: $(SERVED)/installed  ## Run the plugin's tests inside vLLM, on a CPU, in an environment of their own
	$(MATRIX)

# A CPU runs other kernels than users do: torch's own attention, and none of SGLang's kernels.
SGLANG = not slow and not nightly
test-sglang: $(BESIDE)/installed  ## Run the plugin's tests inside SGLang, on a CPU: other kernels than users run
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BESIDE)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "$(SGLANG)" tests/sglang

test-vllm-matrix: $(SERVED)/installed  ## The same with every model runner, scheduling and number of tokens a step: hours
	$(MATRIX) --whole

MIXED_REQUESTS ?= 1000
test-vllm-mixed: $(SERVED)/installed  ## Send a thousand mixed requests to a server in each of eight ways: hours
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(SERVED)/bin/python -m tests.vllm.mixed --requests $(MIXED_REQUESTS)

test-vllm-upstream: $(SERVED)/installed  ## Run vLLM's own tests with the plugin installed and without it: hours
	$(SERVED)/bin/python -m tests.vllm.upstream --at-once $(WORKERS)

# A fresh seed for each way of running vLLM, which is printed; FUZZ_VLLM_SEED=… draws the same again.
FUZZ_VLLM_STEPS ?= 1000
FUZZ_VLLM_SEED ?= fresh
fuzz-vllm: $(SERVED)/installed  ## A thousand steps of chance inside vLLM, on both runners, with either scheduling
	for runner in v1 v2; do for scheduling in sync async; do \
		EMBLEMA_FUZZ_STEPS=$(FUZZ_VLLM_STEPS) EMBLEMA_FUZZ_SEED=$(FUZZ_VLLM_SEED) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
			$(SERVED)/bin/python -m pytest -s -q tests/vllm/test_served_fuzz.py --vllm-runner $$runner --vllm-scheduling $$scheduling || exit 1; \
	done; done

# `ray[llm]` would bring a vLLM built for CUDA; these are what it needs beside the one that is there.
test-vllm-ray: $(SERVED)/installed  ## Run vLLM replicas behind Ray Serve's own LLM application, with our connector
	$(SERVED)/bin/python $(PIP) 'ray[serve]>=2.60,<2.61' pyarrow
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(SERVED)/bin/python -m pytest tests/vllm/test_served_ray.py

wheel-test: $(VENV)/installed-dev  ## Build the wheel and run its demo outside the repository
	$(PYTEST) -m slow tests/e2e/test_wheel.py

crash-test: $(VENV)/installed-dev  ## Kill a writing process 200 times and look at the store: report in build
	mkdir -p build
	$(BIN)/python -m tests.store.disk.crash --rounds 200 --json build/crash.json

SOAK = $(BIN)/python -m benchmarks soak --plain
soak: $(VENV)/installed-dev  ## Ask a stream of 100,000 frames all the way and kill it twice
	OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(SOAK)

soak-short: $(VENV)/installed-dev  ## About two minutes of the soak, held to the same
	OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(SOAK) --minutes 2

SOAK_SERVE = OMP_NUM_THREADS=$(THREADS) HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks soak-serve --plain
soak-serve: $(VENV)/installed-dev  ## Load a server with all that clients do for 30 minutes
	$(SOAK_SERVE)

soak-serve-short: $(VENV)/installed-dev  ## Two minutes of that, held to the same
	$(SOAK_SERVE) --minutes 2

FUZZ_SECONDS ?= 120
FUZZ_SEED ?= 0
fuzz: $(VENV)/installed-dev  ## Fuzz the file format, the index, request bodies and pictures for two minutes (Linux on x86-64)
	$(BIN)/python $(PIP) --editable ".[fuzz]"
	OMP_NUM_THREADS=1 PYTHONPATH=src:. $(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

TRAFFIC_SEED ?= 715601984
GPU_SHAPE ?= qwen2.5-vl-7b
gpu: $(VENV)/installed-dev  ## Half an hour on a GPU, with a torch that knows it (TORCH=torch): report in build/gpu, resumes
	mkdir -p build/gpu
	test -s build/gpu/suite.txt || { EMBLEMA_TEST_DEVICE=cuda timeout 480 env $(PYTEST) -v --tb=short -n 4 --dist loadfile \
		-m "not slow and not nightly" tests > build/gpu/suite.part 2>&1; mv build/gpu/suite.part build/gpu/suite.txt; }
	tail -n 20 build/gpu/suite.txt
	$(BIN)/python -m benchmarks gpu --shape $(GPU_SHAPE) --minutes 20 --report build/gpu --plain

load: $(VENV)/installed-dev  ## Send requests on pages that recur or do not to each server that is installed: report in build/load
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks load --seed $(TRAFFIC_SEED) --report build/load --plain

RESULTS_MODEL = --model reference
results-check: $(VENV)/installed-dev  ## Hold docs/results.md to its figures, and these to a small sample measured again
	OMP_NUM_THREADS=$(THREADS) $(BIN)/python -m benchmarks results --check --items 2 $(RESULTS_MODEL) --plain

MODEL ?= reference
TEACHER = $(if $(filter-out reference,$(MODEL)),--teacher src/emblema/assets/reference)
ROOM = $(if $(filter reference-stream,$(MODEL)),training.streams,$(if $(filter reference-hybrid,$(MODEL)),training.hybrids,training))
NAMED = $(if $(filter training,$(ROOM)),--model $(MODEL))
reference: $(VENV)/installed-dev  ## Train a bundled model again, in its place (MODEL=reference-mha): up to 80 minutes, resumes
	$(BIN)/python -m $(ROOM).train $(NAMED) $(if $(NAMED),$(TEACHER)) --resume
	$(BIN)/python -m $(ROOM).card $(NAMED)

docs: $(VENV)/installed-dev  ## Build the site into build/site; a warning is an error
	$(BIN)/python -m mkdocs build --strict --quiet

lint: $(VENV)/installed-dev  ## Check style with ruff
	$(BIN)/ruff check .

format: $(VENV)/installed-dev  ## Let ruff mend what it can
	$(BIN)/ruff check --fix .

types: $(VENV)/installed-dev  ## Check types with mypy
	$(BIN)/mypy

imports: $(VENV)/installed-dev  ## Check that imports point down
	$(BIN)/lint-imports

check: lint types imports test  ## Everything before a commit

clean:  ## Remove environments and caches
	rm -rf $(VENV) $(OLD) $(SERVED) $(BESIDE) $(CLIENTS) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist

# Seeds are chosen before the run that a page shows; other seeds are for trying.
REAL = $(BIN)/python -m benchmarks
REAL_OWN = blind,query-25%,patch-6%,patch-25%
REAL_OTHERS = epic-8,mpic-32,cacheblend-15,vlcache-15,full-reuse
real: $(VENV)/installed-dev  ## Measure every method on small pretrained models beside re-prefill, hours
	mkdir -p build/real
	for run in "smollm2-135m 3701 3721" "gemma3-270m 3702 3722"; do set -- $$run; \
		$(REAL) real --model $$1 --seed $$2 --episodes 40 --least 2 --most 5 --methods "$(REAL_OWN)" --report build/real/$$1.json || exit 1; \
		$(REAL) real --model $$1 --seed $$2 --episodes 23 --every --least 2 --most 5 --methods "$(REAL_OWN)" --others "$(REAL_OTHERS)" --report build/real/$$1-first.json || exit 1; \
		$(REAL) real --model $$1 --seed $$3 --episodes 70 --every --least 2 --most 5 --methods query-25%,patch-25%,blind --anchors head --records build/real/$$1.jsonl || exit 1; \
		$(REAL) real-bound build/real/$$1.jsonl --seed 3731 --method patch-25% --report build/real/$$1-bound.json || exit 1; \
	done
	for run in "subsets 3761" "chat 3762"; do set -- $$run; shape=$$1; \
		$(REAL) real-traffic --model smollm2-135m --shape $$shape --requests 200 --seed $$2 --least 2 --most 5 --report build/real/$$shape.json || exit 1; \
		$(REAL) real-traffic --model smollm2-135m --shape $$shape --requests 36 --seed 3752 --least 18 --most 24 --report build/real/$$shape-long.json || exit 1; \
	done
	$(REAL) real-speed --model smollm2-135m --seed 3741 --report build/real/speed.json
	$(REAL) real-page build/real/*.json
