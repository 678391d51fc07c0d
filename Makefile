# make train   builds everything into .venv and trains the example on NP (2) ranks
# make test    builds what is missing and runs the tests, most of them on one TensorFlow each
# make test-quick  a part of them, for the inner loop: C++, one process, and order
# make test-all  all tests on the newest and the oldest TensorFlow, all of them on tf_keras too, and a
#              part on the versions in between
# make coverage  make test, and which of the package's files its tests run little of
# make test-torch  all tests of PyTorch's backend, of which make test runs a part; train-torch trains
#              its examples on NP ranks
# make test-sagemaker  SageMaker's own toolkit starts jobs on two hosts of namespaces; needs root and apt-get
# make test-elastic-hosts  elastic jobs on hosts of namespaces, which end, are cut off, come and go
# make test-ray  hvd.run() with the real Ray
# make test-containers  jobs in containers of docker/Dockerfile's image, which must have been built
# make soak    100,000 simulated schedules and 1,300 random programs, against wrong numbers; takes long
# make faults  1,000 jobs of which a rank is killed, stopped, slowed ...; writes docs/reliability.md
# make elastic  500 faults of elastic jobs while they train, and 60 between hosts of namespaces, for
#              which it needs root; writes docs/elastic-faults.md and docs/elastic-faults-hosts.md
# make equality  trains with every feature and compares with one process; writes docs/equality.md
# make wheel   one wheel for all Pythons and TensorFlows, in dist/
# make cuda    builds with kernels for GPUs, into build/cuda/lib, and tests that; needs no GPU and no CUDA
# make wheels  wheels for manylinux_2_28, x86-64 and 64-bit ARM, in wheelhouse/; make test-wheels runs
#              the C++ tests as those are compiled
# make tidy    clang-tidy on the C++ files that differ from the commit SINCE (HEAD)
# make sanitize  the C++ tests under ThreadSanitizer, AddressSanitizer and UBSan
# make options  writes the table of docs/options.md from the comments beside the defaults
# make docs    the pages of docs/ and the API reference as HTML, in build/docs/
# make bench   the library's benchmarks; make bench-peers compares with Horovod and MPI
#
# Needs python3 (3.10 to 3.13), g++ and make; the rest comes from PyPI. PYTHON=... names another
# Python.
PYTHON ?= python3
NP ?= 2
VENV := .venv
VENV15 := .venv-2.15
BETWEEN := 2.18 2.20 2.22
VENVS_BETWEEN := $(BETWEEN:%=.venv-%)
VENV_MPICH := .venv-mpich
VENV_TORCH := .venv-torch
VENV_DOCS := .venv-docs
VENV_WHEELS := .venv-wheels
VENV_CUDA := .venv-cuda
VENV_SAGEMAKER := .venv-sagemaker
VENV_RAY := .venv-ray
BIN := $(VENV)/bin
CMAKE_FLAGS := -G Ninja -DCMAKE_BUILD_TYPE=Release -DSMDDP_BUILD_TESTS=ON $(if $(CI),-DSMDDP_WERROR=ON,-DSMDDP_WERROR=OFF)
PIP_FLAGS := --quiet --disable-pip-version-check
# So many tests at a time, each as soon as another has ended: of two, one core would be idle while
# one waits.
TESTS_AT_A_TIME ?= 3
PARALLEL = -n $(TESTS_AT_A_TIME) --dist load --maxschedchunk 1
# The venv's cmake and ninja come before any other.
WITH_TOOLS := PATH="$(CURDIR)/$(BIN):$$PATH"
CPP_FILES = find ops tests benchmarks -name '*.h' -o -name '*.cc' -o -name '*.c' -o -name '*.cu'

# Open MPI refuses to run as root unless told twice; containers often are root.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
endif
export TF_CPP_MIN_LOG_LEVEL ?= 2
export PYTHONPATH := $(CURDIR)
# Containers often set it; each rank would then compile the package anew, which takes 0.13 s of a core.
unexport PYTHONDONTWRITEBYTECODE

WHEEL_MACHINES ?= x86_64 aarch64
SANITIZERS ?= thread address undefined

.PHONY: train train-torch prepare test coverage tidy test-elastic-hosts test-torch test-torch-suite test-quick test-all test-tf-keras test-between test-sagemaker test-ray test-containers soak soak-schedules soak-programs soak-derivatives soak-trainings faults elastic equality sanitize build build-tests lint format \
  wheel wheels test-wheels cuda bench bench-peers options docs clean distclean

train: build
	$(BIN)/mpirun -np $(NP) --oversubscribe --bind-to none $(BIN)/python examples/train_digits.py

# What the tests need. pip, which uses one core, installs while the compiler runs.
prepare:
	$(MAKE) --jobs 2 build-tests $(VENV15)/.ready $(VENV_MPICH)/.ready $(VENV_TORCH)/.ready
	$(MAKE) wheel

test: prepare
	$(BIN)/python -m pytest $(PARALLEL) --short

# Ranks are measured too, which costs a tenth of the time; so `make test` does without.
coverage: prepare
	$(BIN)/python -m pytest $(PARALLEL) --short --cov --cov-report=json:build/coverage.json

train-torch: build $(VENV_TORCH)/.libraries-ready
	$(VENV_TORCH)/bin/mpirun -np $(NP) --oversubscribe --bind-to none $(VENV_TORCH)/bin/python examples/torch_digits.py
	$(VENV_TORCH)/bin/mpirun -np $(NP) --oversubscribe --bind-to none $(VENV_TORCH)/bin/python examples/lightning_digits.py

# All of them, with the libraries that train on PyTorch; `make test` has a part.
test-torch: build $(VENV_TORCH)/.libraries-ready
	$(BIN)/python -m pytest $(PARALLEL) tests/pytorch

test-torch-suite: build $(VENV_TORCH)/.libraries-ready
	$(VENV_TORCH)/bin/python tests/pytorch/own_suite.py

test-quick: build-tests
	$(BIN)/python -m pytest $(PARALLEL) tests/test_cpp.py tests/python tests/multirank/test_order.py -k 'not tf2.15'

test-all: prepare $(VENV_TORCH)/.libraries-ready
	$(BIN)/python -m pytest $(PARALLEL)
	$(MAKE) test-tf-keras test-between test-ray

test-tf-keras: build
	SMDDP_TEST_ALL_KERASES=1 $(BIN)/python -m pytest $(PARALLEL) -k tf_keras

test-between: build $(VENVS_BETWEEN:=/.ready)
	SMDDP_TEST_TENSORFLOWS="$(BETWEEN)" $(BIN)/python -m pytest $(PARALLEL) $(addprefix tests/multirank/test_,$(addsuffix .py, \
	  collectives exchange tape order jit handover gradients_in_loops gpu_stream))

test-sagemaker: wheel $(VENV_SAGEMAKER)/.ready
	$(BIN)/python -m pytest tests/hosts/sagemaker_toolkit.py

test-ray: build $(VENV_RAY)/.ready
	$(BIN)/python -m pytest tests/launch/test_run_on_ray.py

test-elastic-hosts: build
	$(BIN)/python -m pytest tests/hosts/elastic_hosts.py

test-containers: $(VENV)/.ready
	$(BIN)/python -m pytest tests/hosts/containers.py

soak: soak-schedules soak-programs soak-derivatives soak-trainings

# A schedule that fails prints its seed: build/smddp_simulate --seed N --verbose runs it again.
soak-schedules: build-tests
	build/smddp_simulate --schedules 100000 --jobs $$(nproc)

soak-programs: build
	$(BIN)/python tests/programs/soak.py --programs 1000

soak-derivatives: build
	$(BIN)/python tests/derivatives/soak.py --programs 300

soak-trainings: build
	SMDDP_TEST_ALL_KERASES=1 SMDDP_TEST_TRAININGS=100 $(BIN)/python -m pytest tests/multirank/test_random_trainings.py

equality: build $(VENV15)/.ready
	$(BIN)/python tests/multirank/equality.py --write docs/equality.md

faults: build
	$(BIN)/python tests/faults/run.py --runs 1000 --jobs 2 --write docs/reliability.md

elastic: build
	$(BIN)/python tests/elastic/storm.py --faults 500 --write docs/elastic-faults.md
	$(BIN)/python tests/elastic/storm.py --hosts --faults 60 --write docs/elastic-faults-hosts.md
	$(BIN)/python tests/elastic/many_changes.py

# ---- environments: made once, and again when their requirements change ----

$(VENV)/.ready: requirements/build.txt requirements/run.txt requirements/tf-2.21.txt requirements/tf-keras.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_FLAGS) $(foreach f,$(filter-out %tf-keras.txt,$^),-r $(f))
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/tf-keras.txt
	touch $@

# TensorFlow 2.15 has wheels up to Python 3.11; without it the tests that want it say so and skip.
$(VENV15)/.ready: requirements/run.txt requirements/tf-2.15.txt
	$(PYTHON) -m venv $(VENV15)
	if $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then \
	  $(VENV15)/bin/python -m pip install $(PIP_FLAGS) $(foreach f,$^,-r $(f)); \
	else echo "$$($(PYTHON) --version) has no TensorFlow 2.15: its tests will be skipped"; fi
	touch $@

$(VENVS_BETWEEN:=/.ready): .venv-%/.ready: requirements/run.txt requirements/tf-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_FLAGS) $(foreach f,$^,-r $(f))
	touch $@

# PyTorch has an environment without TensorFlow, which must not be needed.
$(VENV_TORCH)/.ready: requirements/run.txt requirements/torch.txt
	$(PYTHON) -m venv $(VENV_TORCH)
	$(VENV_TORCH)/bin/python -m pip install $(PIP_FLAGS) $(foreach f,$^,-r $(f))
	touch $@

# Lightning and others, which train on it; only `make test-torch` and `make train-torch` need them.
$(VENV_TORCH)/.libraries-ready: requirements/torch-libraries.txt $(VENV_TORCH)/.ready
	$(VENV_TORCH)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# MPICH has a mpirun of its own, so it lives in an environment of its own.
$(VENV_MPICH)/.ready: requirements/mpich.txt
	$(PYTHON) -m venv $(VENV_MPICH)
	$(VENV_MPICH)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# TensorFlow is not needed (docs/conf.py), so this environment is small and made in a minute.
$(VENV_DOCS)/.ready: requirements/docs.txt
	$(PYTHON) -m venv $(VENV_DOCS)
	$(VENV_DOCS)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# A C++ compiler with the headers of older C libraries; only `make wheels` needs it.
$(VENV_WHEELS)/.ready: requirements/wheels.txt
	$(PYTHON) -m venv $(VENV_WHEELS)
	$(VENV_WHEELS)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# Ray, which is large; only `make test-ray` needs it.
$(VENV_RAY)/.ready: requirements/ray.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# CUDA's compiler; only `make cuda` and `make wheels` need it.
$(VENV_CUDA)/.ready: requirements/cuda.txt
	$(PYTHON) -m venv $(VENV_CUDA)
	$(VENV_CUDA)/bin/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# sshd is unpacked into the environment, and used by the hosts of the tests only.
$(VENV_SAGEMAKER)/.ready: requirements/sagemaker.txt requirements/sagemaker-tensorflow.txt requirements/sagemaker-sdk.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install $(PIP_FLAGS) -r $(word 1,$^)
	$(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r $(word 2,$^)
	rm -rf $(@D)/sdk3 && $(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps --target $(@D)/sdk3 -r $(word 3,$^)
	mkdir -p $(@D)/debian && cd $(@D)/debian && apt-get download openssh-server libwrap0 && \
	  for package in *.deb; do dpkg -x $$package ../sshd; done
	touch $@

$(VENV)/.bench-ready: requirements/bench.txt $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

$(VENV)/.tidy-ready: requirements/tidy.txt $(VENV)/.ready
	$(BIN)/python -m pip install $(PIP_FLAGS) -r $<
	touch $@

# ---- native code: CMake knows what is out of date; its output is shown when it fails ----

# The .pth file lets scripts anywhere import the package with the environment's Python; bin/smddprun is
# what installing the package would put there.
build: $(VENV)/.ready
	$(WITH_TOOLS) cmake -S ops -B build $(CMAKE_FLAGS) >build.log 2>&1 || (cat build.log; false)
	$(WITH_TOOLS) cmake --build build --parallel --target smddp smddp_tf >build.log 2>&1 || (cat build.log; false)
	$(WITH_TOOLS) cmake --install build --prefix $(CURDIR) >>build.log
	echo $(CURDIR) >$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/smddp_tf_checkout.pth
	printf '#!%s\nimport sys\n\nfrom smddp_tf.launch.__main__ import main\n\nsys.exit(main())\n' \
	  $(CURDIR)/$(BIN)/python >$(BIN)/smddprun && chmod +x $(BIN)/smddprun

build-tests: build
	$(WITH_TOOLS) cmake --build build --parallel >build.log 2>&1 || (cat build.log; false)

# libtensorflow_framework.so.2 stays a name, to be found in the user's process. build/lib.* is
# setuptools' copy of the package: a module that was removed must not live on there.
wheel: build
	rm -rf build/lib.* build/bdist.* dist
	$(WITH_TOOLS) SMDDP_BUILD_FOLDER=$(CURDIR)/build $(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --no-build-isolation -w dist .
	if $(WITH_TOOLS) $(BIN)/auditwheel repair --exclude libtensorflow_framework.so.2 -w dist/repaired dist/*.whl >build.log 2>&1; \
	then mv -f dist/repaired/*.whl dist && rm -f dist/*-linux_*.whl; \
	else cat build.log; echo "no manylinux tag; the wheel keeps linux"; fi
	rm -rf dist/repaired
	ls dist

# Wheels for other systems are compiled here, for both machines, by a compiler that has the symbols of
# older C libraries (ops/cmake/zig.cmake); it builds its C++ library at its first use, which takes
# minutes. auditwheel names the lowest tag that a library's symbols allow, and can be asked for a
# certain one on that machine only; the last command wants at most 2_28, and makes that the tag.
ZIG = CMAKE_TOOLCHAIN_FILE=$(CURDIR)/ops/cmake/zig.cmake ZIG_GLOBAL_CACHE_DIR=$(CURDIR)/$(VENV_WHEELS)/cache \
  SMDDP_ZIG=$$($(VENV_WHEELS)/bin/python -c 'import ziglang; print(ziglang.__path__[0] + "/zig")')

# The kernels for GPUs in them are CUDA 12's, whatever nvcc is here.
NVRTC = SMDDP_NVRTC=$$(ls $(CURDIR)/$(VENV_CUDA)/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12)

wheels: $(VENV)/.ready $(VENV_WHEELS)/.ready $(VENV_CUDA)/.ready
	rm -rf wheelhouse build/lib.* build/bdist.*
	for machine in $(WHEEL_MACHINES); do \
	  { $(WITH_TOOLS) $(ZIG) $(NVRTC) SMDDP_WHEEL_MACHINE=$$machine _PYTHON_HOST_PLATFORM=linux-$$machine \
	      $(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --no-build-isolation -w wheelhouse/$$machine . && \
	    $(WITH_TOOLS) $(BIN)/auditwheel repair --exclude libtensorflow_framework.so.2 -w wheelhouse wheelhouse/$$machine/*.whl && \
	    $(BIN)/python -m wheel tags --remove --platform-tag manylinux_2_28_$$machine \
	      wheelhouse/*-manylinux_2_2[0-8]_$$machine.whl; \
	  } >build.log 2>&1 || { cat build.log; exit 1; }; \
	  rm -rf wheelhouse/$$machine; \
	done
	ls wheelhouse

# The C++ tests, compiled as the wheels are. Those of another machine run under Debian's qemu-user,
# with that machine's C library (libc6-arm64-cross).
test-wheels: $(VENV)/.ready $(VENV_WHEELS)/.ready
	for machine in $(WHEEL_MACHINES); do \
	  echo "== $$machine"; folder=build/zig-$$machine; \
	  { $(WITH_TOOLS) $(ZIG) SMDDP_WHEEL_MACHINE=$$machine cmake -S ops -B $$folder $(CMAKE_FLAGS) && \
	    $(WITH_TOOLS) $(ZIG) cmake --build $$folder --parallel --target smddp_cpp_tests; \
	  } >build.log 2>&1 || { cat build.log; exit 1; }; \
	  run="qemu-$$machine -L /usr/$$machine-linux-gnu"; \
	  if [ $$machine = $$(uname -m) ]; then run=; fi; \
	  $$run $$folder/smddp_cpp_tests || exit 1; \
	done

# The library with kernels for GPUs in it; SMDDP_LIBRARY_DIR=build/cuda/lib has a script take that one.
# It must open, say what it has, and pass every test on the simulated GPU, and on the machine's
# where it has one.
cuda: build-tests $(VENV15)/.ready $(VENV_CUDA)/.ready
	{ $(WITH_TOOLS) $(NVRTC) cmake -S ops -B build/cuda $(CMAKE_FLAGS) -DSMDDP_CUDA=on && \
	  $(WITH_TOOLS) cmake --build build/cuda --parallel && \
	  $(WITH_TOOLS) cmake --install build/cuda --prefix $(CURDIR)/build/cuda/prefix; } >build.log 2>&1 || (cat build.log; false)
	rm -rf build/cuda/lib && mv build/cuda/prefix/smddp_tf/lib build/cuda/lib
	build/cuda/smddp_cpp_tests
	SMDDP_LIBRARY_DIR=$(CURDIR)/build/cuda/lib $(BIN)/python -m smddp_tf --version | grep 'sm_70.*sm_90'
	SMDDP_LIBRARY_DIR=$(CURDIR)/build/cuda/lib $(BIN)/python -m pytest $(PARALLEL) tests/gpu $(addprefix tests/multirank/test_,gpu.py tape.py)

# ---- checks ----

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(PYTHON) docs/wrap.py --check
	$(CPP_FILES) | xargs $(BIN)/clang-format --dry-run -Werror

# SINCE: the commit to compare with; what is not committed counts too.
SINCE ?= HEAD
tidy: build-tests $(VENV)/.tidy-ready
	git diff --name-only --diff-filter=d $(SINCE) -- '*.cc' | xargs -r $(BIN)/clang-tidy -p build --quiet

format: $(VENV)/.ready options
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(PYTHON) docs/wrap.py
	$(CPP_FILES) | xargs $(BIN)/clang-format -i

# A build folder for each, kept for the next time. The thread sanitizer of older compilers knows no
# address space as random as newer kernels make it, so it gets one that is not. Some tests fork, and
# threads begin in the child.
sanitize: $(VENV)/.ready
	for sanitizer in $(SANITIZERS); do \
	  echo "== $$sanitizer"; folder=build/sanitize-$$sanitizer; \
	  { $(WITH_TOOLS) cmake -S ops -B $$folder $(CMAKE_FLAGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSMDDP_SANITIZE=$$sanitizer && \
	    $(WITH_TOOLS) cmake --build $$folder --parallel --target smddp_cpp_tests; } >build.log 2>&1 || { cat build.log; exit 1; }; \
	  TSAN_OPTIONS=die_after_fork=0 setarch -R $$folder/smddp_cpp_tests || exit 1; \
	done

# ---- documentation: a folder for each version; index.html leads to the newest ----

DOCS := build/docs
DOCS_VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' smddp_tf/_version.py)

options:
	$(PYTHON) docs/write_options.py

docs: $(VENV_DOCS)/.ready
	rm -rf $(DOCS)/$(DOCS_VERSION)
	$(VENV_DOCS)/bin/sphinx-build -E -W --keep-going --quiet -d $(DOCS)/.doctrees docs $(DOCS)/$(DOCS_VERSION)
	@newest=$$(ls $(DOCS) | grep -v index.html | sort -V | tail -n 1); \
	  echo "<!doctype html><title>smddp_tf</title><meta http-equiv=refresh content='0; url=$$newest/index.html'>" \
	  "<a href='$$newest/index.html'>smddp_tf $$newest</a>" >$(DOCS)/index.html
	@echo "open $(DOCS)/index.html"

bench: build $(VENV)/.bench-ready
	$(BIN)/python benchmarks/run.py

bench-peers: build $(VENV)/.bench-ready
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf build build.log dist wheelhouse smddp_tf/lib *.egg-info

# The environments too: everything that a fresh clone does not have.
distclean: clean
	rm -rf $(VENV) $(VENV15) $(VENVS_BETWEEN) $(VENV_MPICH) $(VENV_TORCH) $(VENV_DOCS) $(VENV_WHEELS) $(VENV_SAGEMAKER) $(VENV_CUDA) $(VENV_RAY)
