# make demo: everything from nothing to the main job.   make test: the same for the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NCCL   := 2.28.9

.PHONY: demo test test-releases docs golden lint bench fuzz clean

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

docs: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $$($(BIN)/python tests/here.py)
	$(BIN)/python tests/sessions.py

golden: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl --all
	$(BIN)/python tests/record.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(NCCL)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/plugin.py

# libFuzzer over the plugin's parser and its calls: CLANG with its runtimes (Debian: clang, libclang-rt-dev).
CLANG     ?= clang
FUZZ_RUNS ?= 10500000
FUZZ      := build/fuzz
CHECK     := csrc/plugin/check

fuzz: $(FUZZ)/table $(FUZZ)/call
	mkdir -p $(FUZZ)/tables $(FUZZ)/calls
	$(FUZZ)/table -runs=$(FUZZ_RUNS) -max_total_time=1800 -max_len=512 -timeout=5 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/ -dict=$(CHECK)/table.dict $(FUZZ)/tables $(CHECK)/seeds/table
	$(FUZZ)/call -runs=$(FUZZ_RUNS) -max_total_time=1800 -max_len=256 -timeout=5 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/ $(FUZZ)/calls

$(FUZZ)/%: $(CHECK)/fuzz_%.c $(wildcard csrc/plugin/*.[ch] $(CHECK)/*.[ch])
	mkdir -p $(FUZZ)
	$(CLANG) -std=c11 -O2 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    csrc/plugin/*.c $< $(CHECK)/checks.c $(CHECK)/source.c -o $@

$(VENV)/.installed: pyproject.toml setup.py $(wildcard csrc/*/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info tuner/_native
