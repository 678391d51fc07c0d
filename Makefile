# make train   builds everything into .venv and trains the example on 2 ranks
# make test    builds what is missing and runs all tests
# make wheel   one wheel for all Pythons and TensorFlows, in dist/
# make bench   the library's benchmarks; make bench-peers compares with Horovod and MPI
PYTHON ?= python3
NP ?= 2
VENV := .venv
VENV15 := .venv-2.15
VENV_MPICH := .venv-mpich
BIN := $(VENV)/bin
CMAKE_FLAGS := -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMDDP_BUILD_TESTS=ON $(if $(CI),-DSMDDP_WERROR=ON)
PIP_FLAGS := --quiet --disable-pip-version-check

# Open MPI refuses to run as root unless told twice; containers often are root.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
endif
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PYTHONPATH := $(CURDIR)

.PHONY: train test build lint format wheel bench bench-peers clean venv-2.15 venv-mpich

train: build
	$(BIN)/mpirun -np $(NP) --oversubscribe $(BIN)/python examples/train_digits.py

test: build venv-2.15 venv-mpich
	$(BIN)/python -m pytest

$(VENV)/.ready: requirements/build.txt requirements/run.txt requirements/tf-2.21.txt requirements/tf-keras.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) $(foreach f,$(filter-out %tf-keras.txt,$^),-r $(f))
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/tf-keras.txt
	touch $@

# TensorFlow 2.15 exists for Python 3.11 and older; without it the tests for it say so and skip.
$(VENV15)/.ready: requirements/run.txt requirements/tf-2.15.txt
	$(PYTHON) -m venv $(VENV15)
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(VENV15)/bin/python -m pip install $(PIP_FLAGS) $(foreach f,$^,-r $(f)); fi
	touch $@

# MPICH has a mpirun of its own, so it lives in an environment of its own.
$(VENV_MPICH)/.ready: requirements/mpich.txt
	$(PYTHON) -m venv $(VENV_MPICH)
	$(VENV_MPICH)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

venv-2.15: $(VENV15)/.ready
venv-mpich: $(VENV_MPICH)/.ready

build: $(VENV)/.ready
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S ops -B build $(CMAKE_FLAGS) >build.log 2>&1 || (cat build.log; false)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build --parallel >build.log 2>&1 || (cat build.log; false)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --install build --prefix $(CURDIR) >>build.log

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find ops tests/cpp benchmarks -name '*.h' -o -name '*.cc' -o -name '*.c' | xargs $(BIN)/clang-format --dry-run -Werror

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find ops tests/cpp benchmarks -name '*.h' -o -name '*.cc' -o -name '*.c' | xargs $(BIN)/clang-format -i

wheel: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps -w dist .
	@# The name of TensorFlow's library stays in the ops, to be found in the user's process.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair -w dist \
	  --exclude libtensorflow_framework.so.2 dist/*-linux_x86_64.whl \
	  || echo "auditwheel finds no manylinux tag for it; the wheel keeps linux_x86_64"
	@ls dist

bench: build
	$(BIN)/python -m pip install $(PIP_FLAGS) -r requirements/bench.txt
	$(BIN)/python benchmarks/run.py

bench-peers: build
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf build build.log dist smddp_tf/lib *.egg-info
