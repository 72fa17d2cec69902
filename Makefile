# Two commands do everything: `make simulate` and `make test`. Each sets up `.venv` first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: simulate test test-all test-flowers test-upgrades soak drill test-times test-value test-processors mutants \
    mutation lint lock dist sbom bench gpu docs docs-serve deploy-demo clean
.DEFAULT_GOAL := simulate

# A CPU build of PyTorch that fits any machine; on a machine with a GPU, set TORCH to the build that you want.
TORCH ?= torch==2.13.0

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: $(PYTHON) is older than 3.11; run 'make PYTHON=/path/to/python3.11 ...'" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras, renewed when the project's dependencies change. pip would compile on one core what it
# installs, and that takes half of its time: here all cores compile, and other packages' tests are left out.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile "$(TORCH)"
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[$*]"
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true  # of the rest, Python compiles what it imports
	@touch $@

simulate: $(VENV)/.installed-simulation
	$(BIN)/fedprivacy simulate

# One thread in each process. Bytecode is kept, whatever the environment says: the tests start a hundred processes, and
# compiling takes each of them a second. More processes than two cores where some tests mostly wait. ORDER=7 runs the
# tests in another order, with other random numbers.
ORDER ?=
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder \
    $(ORDER:%=--order %)

# Three lanes, see docs/explanation/testing.md: a coffee, a change that lands, an hour.
test: $(VENV)/.installed-test
	$(PYTEST) --numprocesses 3 --lane quick --budget quick
	@$(BIN)/fedprivacy doctor
	@echo "All tests passed. Next: 'make simulate' trains ten hospitals; 'make test-all' proves every setting, too."

# Last comes what starts Ray: its node gives up after 15 seconds, and beside other tests it needs longer.
test-all: $(VENV)/.installed-test
	$(PYTEST) --numprocesses 4 --lane full -m "not alone" --budget full
	$(PYTEST) --numprocesses 0 --lane full -m alone
	@echo "All tests passed. Next: 'make deploy-demo' runs three hospitals on real hosts' software."

# What touches Flower, under the oldest and the newest of its versions that fedprivacy works with. Each has an environment
# with that Flower and what it alone needs; the rest is .venv's.
FLOWERS ?= 1.41.0 1.42.0
FLOWER_TESTS ?= tests/test_architecture.py tests/flower tests/server $(addprefix tests/deploy/test_,app.py inspection.py \
    programs.py submission.py deploy_demo.py incidents.py flwr_run.py)

$(VENV)/flowers/%/.installed: $(VENV)/.installed-test
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/python -c 'import site; print(*site.getsitepackages(), sep="\n")' > \
	    "$$($(@D)/bin/python -c 'import site; print(site.getsitepackages()[0])')/rest.pth"
	$(@D)/bin/python -m pip install --quiet "flwr==$*"
	$(@D)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

test-flowers: $(FLOWERS:%=$(VENV)/flowers/%/.installed)
	@for flower in $(FLOWERS); do \
	    echo "With Flower $$flower:"; \
	    $(PYTEST:$(BIN)/python=$(VENV)/flowers/$$flower/bin/python) --numprocesses 2 --lane full $(FLOWER_TESTS) || exit 1; \
	done

# Hosts of one deployment that go from the Flower of .venv to another, one after the other, and are used at each step.
test-upgrades: $(FLOWERS:%=$(VENV)/flowers/%/.installed)
	@for flower in $(FLOWERS); do \
	    FEDPRIVACY_OTHER_ENVIRONMENT=$(CURDIR)/$(VENV)/flowers/$$flower OMP_NUM_THREADS=1 \
	        $(BIN)/python -m pytest --quiet tests/deploy/flowers.py || exit 1; \
	done

# A part of it by itself: make soak SLICE=3/10. Hypothesis' examples are those of SEED: other ones with SEED=7.
SLICE ?= 1/1
SEED ?= 0
soak: $(VENV)/.installed-test
	$(PYTEST) --numprocesses 0 --lane soak --slice $(SLICE) -m alone || [ $$? -eq 5 ]  # 5: a slice without such a test
	$(PYTEST) --numprocesses 3 --lane soak --slice $(SLICE) --hypothesis-seed $(SEED) -m "not alone"
	@echo "Slice $(SLICE) of the soak passed. 'make test-processors' repeats on other kinds of processors what they decide."

# Faults of a deployment, done to real processes on this host; ends with what was lost, how long it took, what was said.
drill: $(VENV)/.installed-test
	$(BIN)/python -m pytest --quiet tests/deploy/drill.py

# Where the time of a lane goes: make test-times LANE=quick
LANE ?= full
test-times: $(VENV)/.installed-test
	rm -rf build/times
	$(PYTEST) --numprocesses 2 --lane $(LANE) --times build/times
	$(BIN)/python -m tests.times build/times

# What each test alone shows, and the cheapest tests that show all: an hour and a half on two cores.
test-value: $(VENV)/.installed-test
	rm -rf build/value
	$(PYTEST) --numprocesses 2 --lane full -m "not alone" --reached build/value --times build/value
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.value build/value

# What processors decide, on other kinds that this one can pretend to be: tests/support/processors.py lists them.
KINDS = avx2 avx2-not-strict compatible generic
DECIDED = $(addprefix tests/gradients/test_,invariance.py equal_rows.py memory.py clipped_sum.py \
    pieces.py scores.py stacked.py persons.py) \
    $(addprefix tests/training/test_,dpsgd.py cohort.py) tests/mechanisms/test_lattice_noise.py tests/privacy/test_chaos.py

test-processors: $(VENV)/.installed-test
	@for kind in $(KINDS); do \
	    echo "On $$kind:"; \
	    OMP_NUM_THREADS=1 $(BIN)/python -m tests.support.processors $$kind \
	        $(BIN)/python -m pytest --quiet --numprocesses 2 --lane quick $(DECIDED) || exit 1; \
	done

# Bugs that would weaken a guarantee, planted one at a time in memory: two minutes and a half.
mutants: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.privacy.bugs

# Every small change of the modules that carry the guarantee: an hour. See docs/explanation/testing.md.
mutation: $(VENV)/.installed-test $(VENV)/.installed-mutation
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutation --out runs/mutation

lint: $(VENV)/.installed-test $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/oxlint --deny-warnings fedprivacy/dashboard/page
	$(BIN)/zizmor --quiet --offline --strict-collection .github

# Versions and hashes of all that a node and a server install, PyTorch excepted. Renew them with UPGRADE=--upgrade.
LOCKS = fedprivacy/deploy/requirements
LOCK = $(BIN)/uv pip compile --quiet --config-file .ci/lock.toml --universal --python-version 3.11 --generate-hashes \
    --no-emit-package torch --annotation-style line --custom-compile-command 'make lock' $(UPGRADE) pyproject.toml
lock: $(VENV)/.installed-node
	$(LOCK) --extra node --output-file $(LOCKS)/node.txt
	$(LOCK) --extra figures --extra postgres --constraints $(LOCKS)/node.txt --output-file $(LOCKS)/server.txt

# What a release consists of. The same bytes from the same sources, whenever they are built.
DIST = dist
dist: $(VENV)/.installed-node
	rm -rf $(DIST)
	$(BIN)/uv build --quiet --out-dir $(DIST)

# A bill of materials of what a hospital's host installs. NODE=path takes an environment that is there.
NODE = build/node
$(NODE)/bin/fedprivacy:
	$(PYTHON) -m venv $(NODE)
	$(NODE)/bin/pip install --quiet --require-hashes --no-deps --requirement $(LOCKS)/node.txt
	$(NODE)/bin/pip install --quiet "$(TORCH)"
	$(NODE)/bin/pip install --quiet .
sbom: $(VENV)/.installed-release | $(NODE)/bin/fedprivacy
	@mkdir -p $(DIST)
	$(BIN)/cyclonedx-py environment $(NODE) --pyproject pyproject.toml --mc-type library --spec-version 1.6 \
	    --output-reproducible --output-file $(DIST)/fedprivacy-node.cdx.json

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.engines
	$(BIN)/python -m benchmarks.simulation
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.questions
	$(BIN)/python -m benchmarks.gradients
	$(BIN)/python -m benchmarks.accountant
	$(BIN)/python -m benchmarks.accounting_share
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.audit
	$(BIN)/python -m benchmarks.messages

# Nine minutes on a machine with a GPU, without a network. It sets up nothing: bring a torch that sees the GPU.
DEVICE ?= cuda
GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
gpu:
	$(GPU_PYTHON) -m benchmarks.gpu --device $(DEVICE)

# The documentation as a site, which can be read and searched from a disk: no network, no server.
docs: $(VENV)/.installed-simulation $(VENV)/.installed-docs
	rm -rf site
	mkdir -p site/pages
	$(BIN)/python docs/site/pages.py site/pages
	$(BIN)/python -m sphinx --quiet --fail-on-warning -b html site/pages site/html
	@echo "Built. Next: open site/html/index.html, or 'make docs-serve' for other machines' browsers."

docs-serve: docs
	$(BIN)/python -m http.server --directory site/html 8000

deploy-demo: $(VENV)/.installed-simulation
	$(BIN)/fedprivacy deploy demo --app .

clean:
	rm -rf $(VENV)
