# Works with GNU make 3.81 (macOS) and newer. Windows has the same steps as plain commands in README.md.
SHELL         := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

VENV   ?= .venv
PROMPT ?= Tell me a story about a fox named Pip and a lantern.
MODEL  ?=
JOBS   ?= 2
ARGS   ?=

BIN       := $(VENV)/bin
PY        := $(BIN)/python
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
STORY     := wgpu_backend/bundled/story.gguf
PICTURES  := wgpu_backend/bundled/pictures
SECOND    := $(VENV)/swiftshader
DAWN      := $(VENV)/dawn

# The recipes read these as shell variables, and as they were typed, so that no quote or dollar sign in
# a prompt can break a command line.
override PROMPT := $(value PROMPT)
export PROMPT MODEL
# Compiled shaders of Mesa drivers stay with the environment they were compiled for.
export MESA_SHADER_CACHE_DIR := $(abspath $(VENV))/shader-cache

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  make run PROMPT=\"Tell me a story about a bear and a kite.\"   make test ARGS=\"-k rope\""

# What is installed follows pyproject.toml alone: the package is editable, its sources need no reinstall.
$(PY):
	@sh .ci/venv $(VENV)

$(RUN_STAMP): pyproject.toml | $(PY)
	@echo "Installing wgpu-backend into $(VENV) …"
	@$(PY) -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(DEV_STAMP): pyproject.toml | $(PY)
	@echo "Installing wgpu-backend and its development tools into $(VENV) …"
	@$(PY) -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $(RUN_STAMP) $@

.PHONY: setup
setup: $(DEV_STAMP) ## Make .venv with all that development needs

.PHONY: run
run: $(RUN_STAMP) ## Tell a story with the bundled model (PROMPT="…")
	@$(BIN)/wgpu-backend run story "$$PROMPT" </dev/null

# llvmpipe with one thread per process is faster for small dispatches, and the processes fill the cores.
# Most of the time goes into compiling, which takes LLVM a half or a third without its optimisations.
PYTEST := LP_NUM_THREADS=1 GALLIVM_PERF=nopt $(PY) -m pytest -n $(JOBS) --dist worksteal --timeout-method=thread

# LLVM compiles a kernel for four lanes in half the time that it takes for eight. Mesa's cache does not
# tell the code of one from that of the other, so each has a cache of its own.
FOUR_LANES := LP_NATIVE_VECTOR_WIDTH=128 MESA_SHADER_CACHE_DIR="$(MESA_SHADER_CACHE_DIR)-of-four"

# With a process for each core, the threads of OpenBLAS only spin while they wait for each other. Most
# shares do without them; the last two have them.
ONE_THREAD := OPENBLAS_NUM_THREADS=1

.PHONY: test
test: $(DEV_STAMP) ## Set up a GPU driver if there is none, and run a few cases of every test (ARGS="-k …")
	@$(PY) .ci/gpu_driver.py
	@$(ONE_THREAD) $(FOUR_LANES) $(PYTEST) --share=representative $(ARGS)

# Tests of servers whose models are in the process of the tests.
OF_SERVERS := $(patsubst %,tests/server/test_%.py,\
	anthropic llama_server ollama openai responses server slots structured)

# They choose the devices of their models themselves.
OF_ONE_DEVICE := $(addprefix --ignore=tests/engine/,test_host_memory.py test_placing.py test_sizes.py \
	test_two_devices.py)

# pytest ends with 5 when nothing matched, which is no failure if something did in another share.
.PHONY: test-all
test-all: $(DEV_STAMP) ## Run some of the cases that `make test` leaves out, and those for a second driver
	@$(PY) .ci/gpu_driver.py --second $(SECOND)
	@$(PY) .ci/naga.py build/naga
	@ran=; failed=; \
	share() { \
		name=$$1; shift; printf '\n%s:\n' "$$1"; shift; \
		env "$$@" $(PYTEST) --share=$$name $(ARGS); status=$$?; \
		if [ $$status != 5 ]; then ran=yes; fi; \
		if [ $$status != 5 ] && [ $$status != 0 ]; then failed="$$failed $$name"; fi; \
	}; \
	icd=$$(find $(abspath $(SECOND)) -name '*_icd.json' 2>/dev/null | head -n 1); \
	if [ -n "$$icd" ]; then share second "On the second driver" VK_DRIVER_FILES="$$icd"; fi; \
	share narrow "On four lanes, where the driver is a rasteriser" $(ONE_THREAD) $(FOUR_LANES); \
	share rest "All others"; \
	printf '\nWith layers on two devices:\n'; \
	$(PYTEST) --two-devices --share=representative -m "not gpu" tests/engine tests/llama \
		$(OF_SERVERS) $(OF_ONE_DEVICE) $(ARGS); status=$$?; \
	if [ $$status != 5 ]; then ran=yes; fi; \
	if [ $$status != 5 ] && [ $$status != 0 ]; then failed="$$failed two-devices"; fi; \
	if [ -n "$$failed" ]; then echo "failed shares of the tests:$$failed" >&2; exit 1; fi; \
	if [ -z "$$ran" ]; then echo "no test matched" >&2; exit 5; fi

# Apart from the environment, where it would be listed, and loaded, by every other test.
$(DAWN)/wgpudawn: pyproject.toml | $(DEV_STAMP)
	@$(PY) -m pip install -q --disable-pip-version-check --upgrade --no-deps --target $(DAWN) "wgpudawn>=0.32.0.4,<0.33"
	@touch $@

ON_DAWN := PYTHONPATH="$(abspath $(DAWN))" WGPU_BACKEND_IMPLEMENTATION=dawn

.PHONY: test-dawn
test-dawn: $(DAWN)/wgpudawn ## Run the device's tests, and a few of models, on Dawn, the other WebGPU
	@$(PY) .ci/gpu_driver.py
	@$(ON_DAWN) $(PYTEST) -m "not slow" tests/device tests/kernels/gpu/test_matrix.py \
		tests/ml/calibration/test_implementations.py $(ARGS) || [ $$? = 5 ]
	@$(ON_DAWN) $(ONE_THREAD) $(FOUR_LANES) $(PYTEST) --share=representative -m gpu \
		tests/engine tests/ml tests/models tests/nn $(ARGS) || [ $$? = 5 ]

.PHONY: test-dawn-all
test-dawn-all: $(DAWN)/wgpudawn ## Run what `make test` runs on a device, on Dawn
	@$(PY) .ci/gpu_driver.py
	@$(ON_DAWN) $(ONE_THREAD) $(FOUR_LANES) $(PYTEST) --share=representative -m gpu tests $(ARGS)

.PHONY: lint
lint: $(DEV_STAMP) ## Look for mistakes and departures from the style (ruff)
	@$(BIN)/ruff check .

.PHONY: types
types: $(DEV_STAMP) ## Check the types (pyright, strict)
	@$(BIN)/pyright --pythonpath $(PY)

.PHONY: format
format: $(DEV_STAMP) ## Format the sources in place (ruff)
	@$(BIN)/ruff format .

.PHONY: format-check
format-check: $(DEV_STAMP) ## Say which sources are not formatted
	@$(BIN)/ruff format --check .

.PHONY: check
check: format-check lint types test ## Formatting, lint, types and `make test`

.PHONY: bench
bench: $(RUN_STAMP) ## Measure the bundled model, or MODEL=file.gguf
	@$(BIN)/wgpu-backend bench "$${MODEL:-$(STORY)}" $(ARGS)

.PHONY: gpu-costs
gpu-costs: $(DEV_STAMP) ## Show what a GPU's compiler makes of the kernels, without a GPU (ARGS="--op linear")
	@$(PY) -m benchmarks.gpu_costs $(ARGS)

.PHONY: story-model
story-model: $(DEV_STAMP) ## Train the bundled model again (needs torch, which this installs)
	@$(PY) -m pip install -q --disable-pip-version-check torch
	@$(PY) examples/train_story_model/train.py --out $(STORY) $(ARGS)

.PHONY: picture-model
picture-model: $(DEV_STAMP) ## Train the bundled picture model again (needs torch, which this installs)
	@$(PY) -m pip install -q --disable-pip-version-check torch
	@$(PY) examples/train_picture_model/train.py --out $(PICTURES) $(ARGS)

.PHONY: clean
clean: ## Remove the environment, caches and built files
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
