# Every target sets up what it needs. `make help` lists them.
#
#   make PYTHON=/path/to/python3.12 run     another interpreter
#   make WORKERS=1 run                      fewer notebooks at a time
#   make ARGS="05 07 -p seed 3" run         some notebooks, other parameters
#   make ARGS=--resume run                  only what has not succeeded yet, or has changed
#   make GPU=1 run                          TensorFlow with its CUDA libraries (Linux, NVIDIA)
#   make AUTHOR=1 lab                       the notebooks themselves, not your copies

PYTHON ?= python3
WORKERS ?=
ARGS ?=
GPU ?=
AUTHOR ?=

here := $(shell cd "$$(dirname "$(strip $(MAKEFILE_LIST))")" && pwd -P)
targets := run test test-versions test-browser lab sync site seeds ranges mutants audit bench links lock clean help

.DEFAULT_GOAL := help
.PHONY: $(targets)

ifneq ($(here),$(realpath .))
# Called as `make -f /elsewhere/Makefile`: start again in the checkout, where relative names hold.
# (GNU Make splits absolute names at spaces; relative ones have none.)
$(targets):
	@$(MAKE) --no-print-directory -C "$(here)" -f Makefile $@
else

python := .venv/bin/python
export JUPYTER_PREFER_ENV_PATH := 1
workers := $(if $(WORKERS),--workers $(WORKERS))
# What the environment was built for. An interpreter path inside it is absolute, so a moved checkout needs a new one.
state := $(here)|$(if $(GPU),gpu,cpu)

ifneq ($(shell cat .venv/state 2>/dev/null),$(state))
.PHONY: .venv/state
endif

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 22

run: .venv/state  ## execute every notebook into build/executed/, with a report
	@$(python) -m tapelab run $(workers) $(ARGS)

test: .venv/state  ## lint, unit tests, the notebooks' own tests, without the longest (ARGS=whole: all; units, learner, notebooks: these)
	@bash ci/test.sh $(ARGS)

test-versions: .venv/state  ## unit tests on TensorFlow 2.19, 2.20 and 2.21, each in its own environment
	@bash ci/test_versions.sh $(ARGS)

test-browser: .venv/state  ## the site and JupyterLab in a real browser (needs Chromium; ARGS=--every: all notebooks)
	@bash ci/test_browser.sh $(ARGS)

lab: .venv/state  ## open JupyterLab on your copies of the notebooks, in tapelab-work/ (loopback only, with a token)
	@$(python) -m tapelab lab $(if $(AUTHOR),--author) $(ARGS)

sync: .venv/state  ## regenerate notebooks and generated text from the sources, execute, store the outputs
	@$(python) -m tapelab sync $(workers) $(ARGS)

site: .venv/state  ## build the static site into build/site/, from the stored outputs
	@$(python) -m tapelab site && echo "build/site/index.html"

seeds: .venv/state  ## execute every notebook with each of the seeds 0 to 9, into build/seeds/
	@$(python) -m tapelab run $(workers) --sweep seed=0..9 --output build/seeds $(ARGS)

ranges: .venv/state  ## execute every notebook at both ends of each parameter's range and once in between (hours; ARGS=17: one)
	@$(python) ci/ranges.py $(ARGS)

mutants: .venv/state  ## change the notebooks' code, one place at a time, and count what their checks notice (ARGS="--count 40 05")
	@$(python) ci/mutants.py $(ARGS)

audit: .venv/state  ## compare TensorFlow's and Keras' derivatives with central differences (ARGS="2.19 2.20 2.21": versions)
	@$(python) ci/derivative_audit/audit.py $(ARGS)

bench: build/bench-venv/state  ## time derivatives beside JAX and PyTorch, in an environment of its own (ARGS="--only hvp")
	@build/bench-venv/bin/python ci/bench/run.py $(ARGS)

links: .venv/state  ## ask every address in notebooks and pages whether it is still there (needs a network)
	@$(python) ci/links.py $(ARGS)

lock: .venv/state  ## compile requirements.txt from pyproject.toml (ARGS=--upgrade for newer versions)
	@bash ci/lock.sh $(ARGS)

clean:  ## delete the environment and everything built
	rm -rf .venv build .pytest_cache .ruff_cache src/*.egg-info

.venv/state: requirements.txt pyproject.toml ci/setup.sh
	@bash ci/setup.sh "$(PYTHON)" "$(state)" $(if $(GPU),gpu)

build/bench-venv/state: ci/bench/requirements.txt
	@echo "Setting up build/bench-venv (once; some 2 GB)"
	@"$(PYTHON)" -m venv --clear build/bench-venv
	@build/bench-venv/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

endif
