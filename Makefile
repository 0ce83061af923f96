# make demo: everything from nothing to the main job.   make test: the same for the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NCCL   := 2.28.9

.PHONY: demo test test-releases lint bench clean

demo: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(NCCL)
	$(BIN)/python benchmarks/demo.py

test: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl 2.18.1 2.27.7 $(NCCL)
	$(BIN)/python -m pytest

test-releases: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(patsubst tables/nccl/%.toml,%,$(wildcard tables/nccl/*.toml))
	NCCL_TUNER_TEST_RELEASES=all $(BIN)/python -m pytest tests/test_releases_live.py tests/test_oracle.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(NCCL)
	$(BIN)/python benchmarks/speed.py

$(VENV)/.installed: pyproject.toml setup.py $(wildcard csrc/*/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info tuner/_native
