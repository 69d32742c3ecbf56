# Two commands do all the set-up: `make serve` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
MODEL ?=

.PHONY: serve test lint soak bench clean

# The stamp remembers what was installed: it is redone when pyproject.toml changes.
$(VENV)/.serve: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -e '.[serve]'
	touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.serve
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[serve,test]'
	touch $@

## Serve a model (MODEL=folder; none: the small one in the package) on 127.0.0.1:8000. More flags in ARGS.
serve: $(VENV)/.serve
	$(BIN)/twinpool serve $(MODEL) $(ARGS)

## Lint, format check, types, then every test but the soaks.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak" $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

## Long runs over whole traces, every strategy and policy.
soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak $(ARGS)

## Speed and memory, as ratios within one run; peers that are installed take part.
bench: $(VENV)/.test
	$(BIN)/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
