# `make PYTHON=python3 test` uses an interpreter that has everything and installs nothing;
# without PYTHON, .venv is set up from constraints.txt first.
BOOTSTRAP ?= python3
ifeq ($(origin PYTHON),command line)
ENV :=
ENV_ALL :=
else
PYTHON := .venv/bin/python
ENV := .venv/.installed
ENV_ALL := .venv/.installed-all
endif

# Two pytest workers share two cores, so each keeps to one thread; each has half of the files, where tests
# share what is compiled and built, and takes from the other when it is done.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal

# The checkout itself is what runs, installed or not.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: demo test test-all test-gpu sanitize check format fuzz bench bench-compare

demo: $(ENV)
	$(PYTHON) examples/ema_prices.py
	$(PYTHON) examples/kernels.py
	$(PYTHON) examples/train_languages.py

# Three processes: Triton's interpreter and its compiler exclude each other.
APART = --ignore=tests/interpreter --ignore=tests/compile --ignore=tests/gpu

test: check
	$(PYTEST) $(APART) -m "not slow"
	TRITON_INTERPRET=1 $(PYTEST) tests/interpreter -m "not slow"
	$(PYTEST) tests/compile -m "not slow"

test-all: check $(ENV_ALL)
	$(PYTEST) $(APART)
	TRITON_INTERPRET=1 $(PYTEST) tests/interpreter
	$(PYTEST) tests/compile
	$(PYTHON) -m pytest benchmarks --benchmark-disable

# On a machine with a GPU: make PYTHON=python3 test-gpu
test-gpu: $(ENV)
	GPU_REPORT=build/gpu-tests.json $(PYTHON) -m pytest -m gpu tests/gpu tests/models

# compute-sanitizer's memcheck, racecheck and initcheck on a GPU, in about two minutes; or what stands in.
sanitize: $(ENV)
	$(PYTHON) -m tests.gpu.sanitize

check: $(ENV)
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/project/test_style.py tests/project/test_layering.py

format: $(ENV)
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

# Random operators, recurrences and calls against the loop; the smallest that is wrong is printed as a program.
N ?= 1000
fuzz: $(ENV)
	$(PYTHON) -m tests.fuzz $(N)

# On a GPU what docs/performance.md shows: times as JSON, then figures and tables; else the reference's times.
bench: $(ENV)
	@if $(PYTHON) -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then \
		$(PYTHON) benchmarks/scan.py && $(PYTHON) benchmarks/grid.py && $(PYTHON) benchmarks/figures.py; \
	else \
		$(PYTHON) -m pytest benchmarks/test_reference.py --benchmark-only --benchmark-group-by=func,param:steps && \
		$(PYTHON) -m pytest benchmarks/test_launch.py --benchmark-only --benchmark-group-by=func; \
	fi

# What got worse between two results: make bench-compare OLD=a.json NEW=b.json
bench-compare: $(ENV)
	$(PYTHON) benchmarks/compare.py $(OLD) $(NEW)

# setuptools comes first, so that the editable build runs with the pinned one and not with a fresh download.
.venv/.installed: pyproject.toml constraints.txt
	$(BOOTSTRAP) -m venv .venv
	.venv/bin/python -m pip install -q -c constraints.txt setuptools wheel
	.venv/bin/python -m pip install -q -c constraints.txt --no-build-isolation -e ".[test,demo]"
	touch $@

# What loads other people's models is compared with their code, which only `make test-all` needs.
.venv/.installed-all: .venv/.installed
	.venv/bin/python -m pip install -q -c constraints.txt --no-build-isolation -e ".[transformers]"
	touch $@
