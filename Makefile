# Every job of the project; `make help` lists them. Targets that need the packages install them first.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
RANKS ?= 1

VENV := .venv
PY := $(VENV)/bin/python
# Two marks: what translating needs is installed; everything is.
CAN_TRANSLATE := $(VENV)/.translates
READY := $(VENV)/.ready
SCRIPT := the_annotated_transformer.py
NOTEBOOK := build/the_annotated_transformer.ipynb
EXECUTED := build/the_annotated_transformer.executed.ipynb

# A sentence may hold quotes, dollars and umlauts: it reaches the program through the environment, where
# neither make nor the shell reads it.
override TEXT := $(value TEXT)
export TEXT

.PHONY: setup lock notebook py execute html blog lab pdf test test-all lint format train resume translate \
  evaluate results sheets clean help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

$(CAN_TRANSLATE): requirements.txt constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is missing or older than Python 3.11: name another one, as in make setup PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made, see above; if ensurepip is missing: on Debian and Ubuntu install the package python3-venv"; exit 1; }
ifneq ($(TORCH_INDEX),)
	$(PY) -m pip install --no-compile --retries 1 --index-url $(TORCH_INDEX) $(TORCH) $(if $(filter file,$(origin TORCH_INDEX)),|| echo "no CPU build of $(TORCH) there: taking the usual one with gigabytes of CUDA (TORCH_INDEX=… names another index)")
endif
	sed '/^$$/q' requirements.txt | $(PY) -m pip install --no-compile -c constraints.txt -r /dev/stdin
	@touch $@

$(READY): $(CAN_TRANSLATE)
	$(PY) -m pip install --no-compile -c constraints.txt -r requirements.txt
	@touch $@

# An old environment will do; only where there is none is one made first, for its pip.
lock: $(if $(wildcard $(READY)),,$(READY)) ## Write constraints.txt anew, from the versions in requirements.txt
	$(PY) -m pip install --quiet uv
	$(PY) -m uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header \
	  requirements.txt -o constraints.txt

# The notebook and the page ----------------------------------------------------------------------------

notebook: $(READY) ## Write build/the_annotated_transformer.ipynb, which is self-contained
	@$(PY) -m tools.page.notebook make $(SCRIPT) $(NOTEBOOK)

py: $(READY) ## Bring edits of that notebook back into the script
	@$(PY) -m tools.page.notebook back $(NOTEBOOK) $(SCRIPT)

# Only what has changed runs; tools/page/execute.py says what that is.
execute: notebook ## Run the notebook (ANNOTATED_RUN=smoke is quick)
	$(PY) -m tools.page.execute run $(NOTEBOOK) $(EXECUTED)

html: execute ## Run the notebook and write a preview of the page, build/index.html
	$(PY) -m tools.page.build make $(EXECUTED) build/index.html

# In a fresh clone the published notebook has the outputs.
blog: notebook ## Run the notebook and publish page, notebook and the model alone in docs/ (needs Multi30k)
	$(PY) -m tools.page.execute run $(NOTEBOOK) $(EXECUTED) docs/$(notdir $(NOTEBOOK))
	$(PY) -m tools.page.build publish $(EXECUTED) docs
	$(PY) -m tools.page.bare make $(SCRIPT) docs/transformer.py

# JUPYTER_CONFIG_PATH adds one setting, "open a script as a notebook", to those of the user, and changes
# none of them. Kernels are looked for in the virtual environment first.
lab: $(READY) ## Open the script itself as a notebook in JupyterLab
	@$(PY) -m jupytext_config --settings-file build/lab/labconfig/default_setting_overrides.json set-default-viewer python
	env -u JUPYTER_PATH JUPYTER_PREFER_ENV_PATH=1 \
	  JUPYTER_CONFIG_PATH="$(CURDIR)/build/lab:$(CURDIR)/tools/lab$${JUPYTER_CONFIG_PATH:+:$$JUPYTER_CONFIG_PATH}" \
	  $(PY) -m jupyterlab $(ARGS) $(SCRIPT)

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

RANKED := $(if $(filter-out 1,$(RANKS)),-m torch.distributed.run --standalone --nproc-per-node $(RANKS))
train: $(READY) ## Train a translator (RANKS=2 uses two processes, ARGS="…" passes options on)
	$(PY) $(RANKED) $(SCRIPT) train $(ARGS)

resume: $(READY) ## Resume training: ARGS="runs/multi30k-de-en" (RANKS=2 uses two processes)
	$(PY) $(RANKED) $(SCRIPT) resume $(ARGS)

translate: $(CAN_TRANSLATE) ## Translate TEXT="…", or standard input line by line
	@if [ -n "$$TEXT" ]; then printf '%s\n' "$$TEXT" | $(PY) $(SCRIPT) translate $(ARGS); else $(PY) $(SCRIPT) translate $(ARGS); fi

evaluate: $(READY) ## Score the trained model on the test sets
	$(PY) $(SCRIPT) evaluate $(ARGS)

results: $(READY) ## Measure what is not on record (days on a CPU), or the rows ARGS="…"; write tables and charts
	$(PY) -m tools.results $(ARGS)

# The course: exercises/README.md is the guide for teachers.
sheets: $(READY) ## For teachers: write docs/course (FOLDER=… also leaves a new folder for nbgrader)
	$(PY) -m exercises.course.sheets make $(if $(FOLDER),--course "$(FOLDER)")

clean: ## Remove what was built; keeps .venv, .data and runs
	@[ ! -f $(NOTEBOOK) ] || [ -f $(READY) ] || \
	  { echo "$(NOTEBOOK) may have edits, and without .venv nothing can tell: make setup, or delete it first"; exit 1; }
	@[ ! -f $(NOTEBOOK) ] || $(MAKE) --no-print-directory notebook  # refuses where edits would be lost
	rm -rf build .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
