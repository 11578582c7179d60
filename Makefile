# Two commands do all the set-up: `make demo` and `make test`. uv is used where it is installed, else venv and pip.
# TORCH names the build to install; set it to match your accelerator, for example TORCH="torch>=2.6,<3".

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
NEXT := .venv-verifiers-0.4
PRIME := .venv-prime
BIN := $(VENV)/bin
PROJECTS := pyproject.toml $(wildcard environments/*/pyproject.toml)
ENVIRONMENTS := $(patsubst %/pyproject.toml,%,$(wildcard environments/*/pyproject.toml))
EDITABLE := $(foreach folder,$(ENVIRONMENTS),-e ./$(folder))

ifneq ($(shell command -v uv 2>/dev/null),)
create = uv venv --quiet --clear --python $(PYTHON) $(1)
pip = VIRTUAL_ENV=$(CURDIR)/$(1) UV_FIND_LINKS="$(PIP_FIND_LINKS)" uv pip install
else
create = $(PYTHON) -m venv --clear $(1)
pip = $(1)/bin/python -m pip install --disable-pip-version-check
endif

.PHONY: install demo test check bench clean

install: $(VENV)/.installed

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py

test: $(VENV)/.installed $(NEXT)/.installed $(PRIME)/.installed
	$(BIN)/python -m pytest

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) test

bench: $(VENV)/.installed
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

# The checkout's own environment: verifiers 0.3.1, where every command of the README works as written.
$(VENV)/.installed: $(PROJECTS)
	$(call create,$(VENV))
	$(call pip,$(VENV)) "$(TORCH)"
	$(call pip,$(VENV)) -e ".[whitebox,embedded,report,train,dev]" $(EDITABLE) "verifiers==0.3.1"
	touch $@

# verifiers 0.4, tested beside it.
$(NEXT)/.installed: $(PROJECTS)
	$(call create,$(NEXT))
	$(call pip,$(NEXT)) -e ".[report]" $(EDITABLE) "verifiers==0.4.0"
	touch $@

# The last prime that runs environments locally, apart from the workspace as its own pins require.
$(PRIME)/.installed:
	$(call create,$(PRIME))
	$(call pip,$(PRIME)) "prime==0.7.7"
	touch $@

clean:
	rm -rf $(VENV) $(NEXT) $(PRIME) outputs report.html
