# Everything a contributor or a build server runs. Each target makes `.venv` if it is missing or out of date.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOOR := .floor
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-floor check format docs-check bench clean

help: ## List the targets
	@echo "Usage: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(READY) ## Make the virtual environment .venv with everything in it

demo: $(READY) ## Four workers, one killed in the middle, no update lost (DEMO_SECONDS=n, Ctrl-C ends it)
	@$(BIN)/python -m example_app.demo $(ARGS)

test: $(READY) ## Run every test (ARGS="tests/web -k guard" for some of them)
	@$(BIN)/pytest $(ARGS)

# The oldest FastAPI that pyproject.toml allows, in a directory that is looked into before .venv is. Its Starlette uses
# a name that the newest anyio has moved.
test-floor: $(FLOOR)/.ready ## Run the web tests on the oldest FastAPI that is supported
	@PYTHONPATH=$(FLOOR) $(BIN)/python -c 'import fastapi; print("FastAPI", fastapi.__version__)'
	@PYTHONPATH=$(FLOOR) $(BIN)/pytest -W "ignore:The anyio.abc:DeprecationWarning" tests/web tests/app tests/testing $(ARGS)

check: $(READY) ## Formatting, lint, both type checkers, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/pytest -q tests/test_architecture.py tests/test_public_api.py

format: $(READY) ## Format the code, and mend what the linter can mend
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs-check: $(READY) ## Run every Python example of the README and the docs
	@$(BIN)/pytest tests/test_docs.py $(ARGS)

bench: $(READY) ## Measure against the peers, interleaved in one run
	@$(BIN)/python -m bench $(ARGS)

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) $(FLOOR) .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage dist
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { \
		python=$$(sh .ci/find-python) || exit 1; \
		echo "Making $(VENV) with $$python"; \
		"$$python" -m venv --clear $(VENV); \
	}
	@echo "Installing the package and its development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(READY)

$(FLOOR)/.ready: $(READY)
	@rm -rf $(FLOOR)
	@fastapi=$$(sed -n 's/^ *"fastapi>=\([0-9.]*\)",$$/\1/p' pyproject.toml); \
		echo "Installing FastAPI $$fastapi into $(FLOOR)"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(FLOOR) "fastapi==$$fastapi"
	@touch $(FLOOR)/.ready
