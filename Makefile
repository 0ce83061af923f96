# make demo: everything from nothing to the main job.   make test: the same for the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NCCL   := 2.28.9

.PHONY: demo test test-releases readme golden lint bench clean

demo: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(NCCL)
	$(BIN)/python benchmarks/demo.py

test: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $$($(BIN)/python tests/here.py)
	$(BIN)/python -m pytest

test-releases: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl --all
	NCCL_TUNER_TEST_RELEASES=all $(BIN)/python -m pytest tests/test_oracle.py
	$(BIN)/python tests/releases.py

readme: $(VENV)/.installed
	$(BIN)/python tests/readme.py

golden: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl --all
	$(BIN)/python tests/record.py

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
