# Everything a developer runs. Each target sets up `.venv` when it is missing or older than the lock.
#
# Two locks pin and hash all that `setup` installs: first what builds packages, then everything else. After a change of dependencies: `make lock`. To move every pin
# to its newest release: `make lock LOCK_FLAGS=--upgrade`.

PYTHON ?= python3
LOCK_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOCK := requirements/dev.lock
BUILD_LOCK := requirements/build.lock
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
  --custom-compile-command 'make lock' --no-emit-index-url --no-emit-find-links --quiet

# The parts of the tests, of which a few run side by side: most of them wait a lot. Whatever is told at once comes
# first, then the longest.
PARTS := lint test-spark test-streams test-late-faults test-processes test-clusters test-early-faults
SPARK_TESTS := tests/spark tests/project/test_documents.py
CLUSTER_TESTS := tests/cluster
PROCESS_TESTS := tests/broker tests/cli tests/client tests/console $(sort $(wildcard tests/project/test_example*.py))
SPARK_CLASSES := build/spark/classes.jsa
VERDICTS := build/tests
PYTEST = $(BIN)/python -m pytest --quiet -o cache_dir=.pytest_cache/$@ --junitxml=$(VERDICTS)/$@.xml

.PHONY: setup lock proto etcd browser test $(PARTS) docs demo serve bench peers soak faults proofs mutants clean help

setup: $(STAMP) ## create .venv and install the locked dependencies and the project into it

$(STAMP): $(LOCK) $(BUILD_LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  "Headwater needs Python 3.11 or newer, $(PYTHON) is %d.%d: make setup PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes --only-binary :all: -r $(BUILD_LOCK)
	$(PIP_INSTALL) --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation -r $(LOCK)
	$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## write the locks anew from pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(PIP_INSTALL) uv
	$(COMPILE) --group build $(LOCK_FLAGS) -o $(BUILD_LOCK)
	$(COMPILE) pyproject.toml --extra broker --extra console --extra spark --group dev $(LOCK_FLAGS) -o $(LOCK)

proto: $(STAMP) ## generate the messages of the broker's protocol, and of etcd's
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/headwater/v1/broker.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/headwater/cluster/etcd/etcd.proto

lint: $(STAMP) ## ruff and mypy, both strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict headwater pyspark_headwater.py benchmarks docs/pages.py examples tests
	$(BIN)/mypy --strict --platform darwin headwater/embedded/kqueue.py # which has parts that Linux does not

# Clusters are proved with the etcd of the system. The one among the Python packages is of a version that can corrupt its own
# data when it is killed, which is what most of these proofs do to it: it serves for `hw cluster up` alone.
APT_ETCD := DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends etcd-server

etcd: ## install the system's etcd, where this is root on Debian or the like
	@command -v etcd > /dev/null || { test "$$(id -u)" = 0 && { $(APT_ETCD) || { apt-get update -qq && $(APT_ETCD); }; }; } > /dev/null 2>&1 || \
	  echo "There is no etcd here, and none can be installed: the proofs of clusters are left out. Install etcd-server to have them."

# The console is proved in a real browser, the system's.
APT_BROWSER := DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium chromium-driver

browser: ## install the system's Chromium and its driver, where this is root on Debian or the like
	@{ command -v chromium && command -v chromedriver; } > /dev/null || \
	  { test "$$(id -u)" = 0 && { $(APT_BROWSER) || { apt-get update -qq && $(APT_BROWSER); }; }; } > /dev/null 2>&1 || \
	  echo "There is no Chromium here, and none can be installed: the console is not proved in a browser. Install chromium and chromium-driver to have it."

test: $(STAMP) etcd browser ## lint, the tests, and the short form of every fault proof
	@rm -rf $(VERDICTS)
	@$(MAKE) --no-print-directory --keep-going --jobs=3 $(PARTS) || { $(BIN)/python -m tests.support.verdict $(VERDICTS); exit 1; }

test-streams: $(STAMP) ## the tests that start neither Spark nor servers, but those that all kinds of stores share
	@$(PYTEST) $(addprefix --ignore=,$(SPARK_TESTS) $(CLUSTER_TESTS) $(PROCESS_TESTS))

test-processes: $(STAMP) ## the tests that start brokers, browsers and commands
	@$(PYTEST) $(PROCESS_TESTS)

test-clusters: $(STAMP) ## the tests that start clusters and etcd
	@$(PYTEST) $(CLUSTER_TESTS)

test-spark: $(STAMP) ## the tests that start Spark
	@$(PYTEST) $(SPARK_TESTS)

test-spark test-processes test-early-faults test-late-faults: $(SPARK_CLASSES)

# Most of what Spark does in a test is to start: with its classes in an archive that takes half the time.
$(SPARK_CLASSES): $(STAMP)
	@$(BIN)/python -c 'from tests.support.spark_classes import main; main()' 2> /dev/null # Spark's chatter

# One seed, so that a red run is about the change at hand; `make faults` draws its own.
test-early-faults: FAULT_ROWS := 1-13
test-late-faults: FAULT_ROWS := 14-31
test-early-faults test-late-faults: $(STAMP)
	@$(BIN)/python -m tests.faults all --quick --seed 1 --rows $(FAULT_ROWS) --json $(VERDICTS)/$@.json

docs: $(STAMP) ## make a site of the documents, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo: $(STAMP) ## a tour of Headwater in the terminal, in about a minute; it leaves its data in .demo
	@rm -rf .demo
	$(BIN)/hw tour .demo

serve: $(STAMP) ## serve the data of `make demo` at hw://127.0.0.1:6174, with the console at http://127.0.0.1:6175
	@test -d .demo/store || $(MAKE) --no-print-directory demo
	$(BIN)/hw broker .demo/store --console 127.0.0.1:6175

bench: $(STAMP) ## measure everything against its peers
	@missed=0; for name in engine embedded broker cluster spark console; do $(BIN)/python -m benchmarks $$name || missed=1; done; exit $$missed

peers: ## fetch what the broker and Spark are measured against: Kafka, and what Spark reads it by (needs Maven), and NATS (needs Go)
	mvn --quiet --batch-mode --file benchmarks/peers.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.peers/kafka
	mvn --quiet --batch-mode --file benchmarks/peers-spark.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.peers/spark-kafka
	GOBIN=$(CURDIR)/.peers go install github.com/nats-io/nats-server/v2@v2.12.1

soak: $(STAMP) ## a cluster with faults of all kinds for ten minutes; SOAK_FLAGS="--for 8h --seed 7" for longer, or again
	$(BIN)/python -m tests.faults soak --table $(SOAK_FLAGS)

faults: $(STAMP) ## every fault proof in full; takes hours
	$(BIN)/python -m tests.faults all

# Each proof leaves its record when it ends, and those that are recorded for the code as it is are not run again: so it
# can be interrupted. PROOF_FLAGS="--rows 1-13 --force" chooses, or runs them again; "--missing" runs those without any
# record. A record names its commit.
PROOF_BUDGET := 2h
PROOF_FLAGS ?=
PROOFS := docs/proofs

proofs: $(STAMP) ## every fault proof in full, two side by side, each for two hours at most; writes docs/proofs.md
	$(BIN)/python -m tests.faults all --budget $(PROOF_BUDGET) --jobs 2 --into $(PROOFS) $(PROOF_FLAGS); \
	  status=$$?; $(BIN)/python -m tests.faults.report $(PROOFS)/*.json > $(PROOFS).tmp && mv $(PROOFS).tmp docs/proofs.md; exit $$status

mutants: $(STAMP) ## take promises away one by one and see that tests notice; takes hours
	$(BIN)/python -m tests.mutants --json build/mutants.json

clean: ## remove everything that is made, .venv included
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .demo .bench-* benchmarks/results examples/node/node_modules
	find headwater benchmarks examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
