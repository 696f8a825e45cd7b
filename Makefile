# Every job of the project; `make help` lists them. Targets that need the packages install them first.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
RANKS ?= 1
ANNOTATED_RUN ?= laptop

VENV := .venv
PY := $(VENV)/bin/python
SPEAKS := $(VENV)/.translates# all that translating needs is installed; .ready: everything
READY := $(VENV)/.ready
SCRIPT := the_annotated_transformer.py
NOTEBOOK := build/the_annotated_transformer.ipynb
EXECUTED := build/the_annotated_transformer.executed.ipynb
.PRECIOUS: $(NOTEBOOK)  # it may hold edits

# A sentence may hold quotes, dollars and umlauts: it reaches the program through the environment, where
# neither make nor the shell reads it.
override TEXT := $(value TEXT)
export TEXT

.PHONY: help setup lock notebook py lab html page blog bare check-published pdf test test-all lint format \
  train resume translate evaluate curves export convert results experiments views bench mutants sheets clean FORCE

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# On Linux the usual PyTorch brings gigabytes of CUDA. Without an NVIDIA GPU take the CPU build, unless its
# index is out of reach.
ifeq ($(shell uname -s)$(shell command -v nvidia-smi),Linux)
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
endif
BIOME := npx --yes @biomejs/biome@2.6.8
TORCH := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.txt)

# pip compiles nothing; Python compiles each module when it is first used, and must be allowed to keep
# that: otherwise every call takes two seconds more.
unexport PYTHONDONTWRITEBYTECODE

setup: $(READY) ## Build the virtual environment .venv (TORCH_INDEX=… names another index for torch)

$(SPEAKS): requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than Python 3.11: name another one, as in make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made, see above; if ensurepip is missing: on Debian and Ubuntu install the package python3-venv"; exit 1; }
ifneq ($(TORCH_INDEX),)
	$(PY) -m pip install --no-compile --retries 1 --index-url $(TORCH_INDEX) $(TORCH) $(if $(filter file,$(origin TORCH_INDEX)),|| echo "no CPU build of $(TORCH) there: taking the usual one with gigabytes of CUDA (TORCH_INDEX=… names another index)")
endif
	sed '/^$$/q' requirements.txt | $(PY) -m pip install --no-compile -c constraints.txt -r /dev/stdin
	@touch $@

$(READY): $(SPEAKS)
	$(PY) -m pip install --no-compile -c constraints.txt -r requirements.txt
	@touch $@

lock: $(if $(wildcard $(READY)),,$(READY)) ## Copy the versions in requirements.txt to constraints.txt, pyproject.toml and the script
	$(PY) -m pip install --quiet uv
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
	  requirements.txt -o constraints.txt
	$(PY) -m tools.versions

# The notebook and the page ----------------------------------------------------------------------------

# Each file is made again only if something that it is made of has changed: another prose keeps the outputs of
# the code, another style asks for the page alone. The first rule runs always, since it must not lose edits of
# the notebook; it writes only what has changed.
$(NOTEBOOK): $(READY) FORCE
	@$(PY) -m tools.page.notebook make $(SCRIPT) $@

notebook: $(NOTEBOOK) ## Write build/the_annotated_transformer.ipynb, which is self-contained

py: $(READY) ## Bring edits of that notebook back into the script
	$(PY) -m tools.page.notebook merge $(NOTEBOOK) $(SCRIPT)

# How the notebook runs: its level, PyTorch, the corpus.
build/run: FORCE
	@mkdir -p build
	@echo "$(ANNOTATED_RUN) $(TORCH) $${MULTI30K_DIR-}" > $@.now
	@cmp -s $@.now $@ || cp $@.now $@

CORPUS := $(wildcard .data/multi30k/*)
$(EXECUTED): $(NOTEBOOK) build/run $(CORPUS) $(wildcard pretrained/*.json pretrained/*.safetensors results/views/*.json)
	ANNOTATED_RUN=$(ANNOTATED_RUN) $(PY) -m tools.page.execute run $(NOTEBOOK) $@ \
	  $(if $(filter-out $(NOTEBOOK),$?),,--keep-outputs)

PAGE_IS_OF := $(wildcard $(addprefix tools/page/,*.* */*.* */*/*.*) images/* results/learning.json) pyproject.toml LICENSE
build/index.html: $(EXECUTED) $(filter-out %.pyc,$(PAGE_IS_OF))
	$(PY) -m tools.page.build make $(EXECUTED) $@

html: build/index.html ## Run the notebook and write the page build/index.html (ANNOTATED_RUN=smoke is quick)

docs/transformer.py: $(READY) $(SCRIPT) tools/page/bare.py
	$(PY) -m tools.page.bare make $(SCRIPT) $@

bare: docs/transformer.py ## Write docs/transformer.py, the model alone: it trains the copy task

blog: docs/transformer.py $(EXECUTED) ## Run the notebook and publish it in docs/ (needs Multi30k)
	$(PY) -m tools.page.build publish $(EXECUTED) docs

ifdef MODEL
page: $(READY)
	$(PY) -m tools.page.own make "$(MODEL)"
else
page: docs/transformer.py $(NOTEBOOK) ## Publish changed text or style with the outputs in docs/; MODEL=runs/mine: one file with your model
	$(PY) -m tools.page.execute keep $(NOTEBOOK) docs/$(notdir $(NOTEBOOK)) build/published.ipynb
	$(PY) -m tools.page.build publish build/published.ipynb docs
endif

# JUPYTER_CONFIG_PATH adds one setting, "open a script as a notebook", to those of the user, and changes
# none of them. Kernels are looked for in the virtual environment first.
lab: $(READY) ## Open the script itself as a notebook in JupyterLab
	@$(PY) -m jupytext_config --settings-file build/lab/labconfig/default_setting_overrides.json set-default-viewer python
	env -u JUPYTER_PATH JUPYTER_PREFER_ENV_PATH=1 \
	  JUPYTER_CONFIG_PATH="$(CURDIR)/build/lab:$(CURDIR)/tools/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	  $(PY) -m jupyterlab $(ARGS) $(SCRIPT)

check-published: ## Check that docs/ is up to date with the script
	@$(PYTHON) -c 'import hashlib; print(hashlib.sha256(open("$(SCRIPT)", "rb").read()).hexdigest())' | \
	  grep -qf - docs/index.html || { echo "docs/ is older than $(SCRIPT): make blog makes it anew"; exit 1; }

# The page of the reader's own run, where there is one; else the published page.
PAGE ?= $(firstword $(wildcard build/index.html) docs/index.html)
CHROMIUM ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
PDF := build/the_annotated_transformer.pdf
pdf: ## Print the page to build/the_annotated_transformer.pdf (needs Chromium; PAGE=… names a page)
	@[ -n "$(CHROMIUM)" ] || { echo "no Chromium here: install it, or print the page from your browser"; exit 1; }
	@mkdir -p build
	@rm -f $(PDF)
	"$(CHROMIUM)" --headless --no-sandbox --disable-gpu --no-pdf-header-footer --print-to-pdf=$(PDF) "$(PAGE)"
	@[ -s $(PDF) ] || { echo "$(CHROMIUM) has written no PDF"; exit 1; }

WORKERS ?= --numprocesses logical --maxprocesses 8 --dist worksteal
test: $(READY) ## Run the fast tests
	$(PY) -m pytest $(WORKERS) -m "not slow" $(ARGS)

test-all: $(READY) ## Run every test
	$(PY) -m pytest $(WORKERS) $(ARGS)

lint: $(READY) ## Check style and layout of the code (of JavaScript if node is installed)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@if $(BIOME) --version >/dev/null 2>&1; then $(BIOME) check; else echo "SKIPPED: JavaScript is not checked, since there is no node, or npx cannot fetch Biome"; fi

format: $(READY) ## Fix style and layout
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .
	@if $(BIOME) --version >/dev/null 2>&1; then $(BIOME) check --write; else echo "SKIPPED: JavaScript stays as it is, since there is no node, or npx cannot fetch Biome"; fi

train: $(READY) ## Train a translator (RANKS=2 uses two processes, ARGS="…" passes options on)
	$(PY) $(if $(filter-out 1,$(RANKS)),-m torch.distributed.run --standalone --nproc-per-node $(RANKS)) $(SCRIPT) train $(ARGS)

resume: $(READY) ## Resume training: ARGS="runs/multi30k-de-en" (RANKS=2 uses two processes)
	$(PY) $(if $(filter-out 1,$(RANKS)),-m torch.distributed.run --standalone --nproc-per-node $(RANKS)) $(SCRIPT) resume $(ARGS)

translate: $(SPEAKS) ## Translate TEXT="…", or standard input line by line
	@if [ -n "$$TEXT" ]; then printf '%s\n' "$$TEXT" | $(PY) $(SCRIPT) translate $(ARGS); else $(PY) $(SCRIPT) translate $(ARGS); fi

evaluate: $(READY) ## Score the trained model on the test sets
	$(PY) $(SCRIPT) evaluate $(ARGS)

curves: $(READY) ## Draw the learning curves of a run, finished or not: ARGS="runs/multi30k-de-en"
	$(PY) -m tools.learning_curves draw $(ARGS)

export: $(READY) ## Quantise a model or run to int8 for distribution: ARGS="MODEL FOLDER"
	$(PY) -m tools.models round $(ARGS)

convert: $(READY) ## Convert a model of the 2018 or 2022 edition to the current format: ARGS="SOURCE FOLDER --words WORDS.json"
	$(PY) -m tools.models convert $(ARGS)

# Records of results: each step makes only what is not on record, and goes on where it was stopped.
RESULTS := $(PY) -m tools.results
results: $(READY) ## Train the rows of the tables, score each once, write results (days on a CPU)
	$(RESULTS).train run
	for step in validate test steps; do $(RESULTS).score $$step || exit; done
	$(RESULTS).ship pretrained
	$(MAKE) views

experiments: $(READY) ## Run the small experiments in the text, write results (an hour or two)
	for step in copying translating checks; do $(RESULTS).faults $$step || exit; done
	for step in warmups lengths heads length_cost; do $(RESULTS).experiments $$step || exit; done
	$(RESULTS).particles measure
	for step in train time; do $(RESULTS).language_models $$step || exit; done
	$(MAKE) views

bench: $(READY) ## Compare speed with other implementations, on a GPU if CUDA_VISIBLE_DEVICES names one (an hour, quiet machine)
	$(PY) -m pip install --quiet ctranslate2==4.8.5
	$(RESULTS).speed run

views: $(READY) ## Write the tables of script and README, and the charts, from the records of results
	$(PY) -m tools.views

mutants: $(READY) ## Make random changes in Parts 1 to 4, and list those that no test catches (ARGS=SEED; minutes)
	$(PY) -m pip install --quiet --no-compile -c constraints.txt cosmic-ray==8.7.0
	$(RESULTS).mutants $(or $(ARGS),$$RANDOM)

# The course: exercises/README.md is the guide for teachers.
sheets: $(READY) ## Release the sheets of the course with nbgrader: docs/course, and its folder build/course
	$(PY) -m exercises.course.sheets make

clean: ## Remove what was built; keeps .venv, .data and runs
	@[ ! -f $(NOTEBOOK) ] || $(PY) -m tools.page.notebook make $(SCRIPT) $(NOTEBOOK)  # refuses where edits would be lost
	rm -rf build .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
