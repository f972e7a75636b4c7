# Every target is a thin name for a command that also works without make.
PYTHON ?= python3
VENV := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup check test demo lab format docs bench fuzz notebooks integrations accuracy accuracy-cpu other-cards card oracle torches newest clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-15s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv with everything that the other targets need
	$(PYTHON) tools/test.py setup

check: ## what CI runs: every check, in fresh environments
	.ci/run

test: ## the tests alone
	$(PYTHON) tools/test.py tests

demo: ## run the quickstart notebook and write out/report.html
	$(PYTHON) tools/demo.py

lab: ## the same, then open the executed notebook in JupyterLab
	$(PYTHON) tools/demo.py --lab

format: setup ## format the code and mend what ruff can mend
	$(VENV) -m ruff check --fix .
	$(VENV) -m ruff format .

docs: ## build the site into out/docs, with outputs if `make notebooks` ran before
	$(PYTHON) tools/test.py docs

bench: setup ## time the import, a report of a million events, what tracing costs
	set -e; for script in tests/benchmarks/*.py; do echo "== $$script"; $(VENV) $$script; done

fuzz: setup ## open 100,000 hostile files in processes with limits: about an hour on two cores
	$(VENV) -m tests.fuzz --files 100000

notebooks: setup ## execute every notebook and check its outputs
	$(VENV) -m pytest tests/notebooks

integrations: ## the callbacks, trackers and editors with their real packages: 1.4 GB on disk
	$(PYTHON) tools/test.py integrations

accuracy: ## compare the virtual GPU and three baselines with recorded runs: downloads about 5 GB
	$(PYTHON) tools/accuracy.py

accuracy-cpu: setup ## the same with the CPU build of torch: the runs that need no torchvision
	$(VENV) -m tests.accuracy

other-cards: ## compare virtual cards with jobs that others measured on theirs: an hour, downloads about 5 GB
	$(PYTHON) tools/test.py other-cards
	$(PYTHON) tools/other_cards.py --write

card: ## measure a real card for the tables: 15 minutes at most, after downloading about 5 GB
	$(PYTHON) tools/card.py

oracle: ## compare the virtual GPU's operators with torch's own CUDA code: downloads about 5 GB
	$(PYTHON) tools/oracle.py

torches: ## nbmem's tests of torch on 2.6, 2.9, 2.11, 2.13 and the newest: 5 to 7 GB each
	$(PYTHON) tools/torches.py

newest: ## the same on the newest Python with the newest torch
	$(PYTHON) tools/torches.py --python 3.13 newest

clean: ## remove what the commands above made, environments and results included
	rm -rf .venv .venv-* out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
