# make demo: everything from nothing to the main job.   make test: the same for the tests.   The others: CONTRIBUTING.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NCCL   := 2.28.9
# That of the measured times that the demo shows.
DEMO_NCCL := 2.29.7
# One more than the cores of a small computer: some tests wait.
JOBS   ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
LOG    := build/install.log

.PHONY: demo test test-heavy test-exhaustive test-offline test-releases explore docs accuracy calibrations acceptance golden mutants release lint bench gpu-bundle rehearse-gpu-bundle plugin site links pictures man wheels fuzz soak hostile writers findings findings-altered clean

demo: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(DEMO_NCCL)
	$(BIN)/python benchmarks/demo.py

# Of tests with many cases some that have every value of each parameter; test-exhaustive runs all. Those that hold one
# part against hostile input for long are marked heavy and run in test-heavy.
test test-heavy test-exhaustive: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $$($(BIN)/python -m tests.scripts.releases_to_fetch)
	$(BIN)/nccl-tuner fetch-nccl $(NCCL) --build cu13
	$(BIN)/python -m tests.scripts.fetch_arm
	$(BIN)/python -m tests.scripts.fetch_engines
	$(PYTEST) --slow $(OPTIONS_OF_$@)

OPTIONS_OF_test            := -m "not heavy"
OPTIONS_OF_test-heavy      := -m heavy
OPTIONS_OF_test-exhaustive := --exhaustive

# Neither libnccl nor a network.
test-offline: $(VENV)/.installed
	$(PYTEST) -m "not live" --slow

# Examples that hypothesis has not drawn before, in every test that draws.
explore: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $$($(BIN)/python -m tests.scripts.releases_to_fetch)
	$(PYTEST) -m hypothesis --slow --hypothesis-profile explore

test-releases: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl --all --build cu12 --build cu13
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_oracle.py tests/live/test_shared_gpus.py \
	  tests/measure/test_double.py
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_reports.py tests/live/test_second_communicators.py
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_plugin.py -k "nothing_changes or chunks_stay"
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_orders.py -k what_libnccl_launches --draw 5
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_releases.py tests/live/test_builds.py --record
	NCCL_TUNER_TEST_RELEASES=all $(PYTEST) tests/live/test_search.py tests/live/test_channels.py -k "random or every" --draw 20

docs: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $$($(BIN)/python -m tests.scripts.releases_to_fetch)
	$(BIN)/python -m tests.scripts.write_docs

# What the frozen splits reach, into docs/accuracy.json, and what sites that are left out do, into tables/sites.json.
accuracy: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.write_accuracy
	$(BIN)/python benchmarks/sites.py tables/sites.json

# What sites have in common between nodes, the calibrations of shipped measured times, and the intervals that the frozen
# splits say.
calibrations: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.fit_network
	$(BIN)/python -m tests.scripts.write_calibrations

# How often 'accept' is right, into docs/acceptance.json.
acceptance: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl 2.22.3 2.23.4 2.27.3 2.28.9 2.29.2 2.29.7
	$(BIN)/python benchmarks/accept.py docs/acceptance.json

# Which breaks of the rules no test notices: make mutants MUTANTS='-n 50 --seed 7 tuner/graphs'
MUTANTS ?=

mutants: $(VENV)/.installed
	nice $(BIN)/python -m tests.scripts.mutants $(MUTANTS)

golden: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl --all
	$(BIN)/python -m tests.scripts.record_golden
	$(BIN)/python -m tests.scripts.record_launches

# All of a new release but what is written by hand: make release NCCL=2.33.1
release: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.add_release $(NCCL)

# docs/ as a site in build/site: all its links and its prose are checked. The page to try it on has all machines, or
# make site TRY='dgx-h100 dgx-b200'
TRY      ?=
TRY_MADE := build/try/made-$(subst $() ,-,$(strip $(TRY)))

$(TRY_MADE): $(VENV)/.installed $(shell find tuner tables -name '*.py' -o -name '*.toml') tests/scripts/write_picks_to_try.py
	rm -rf $(@D)
	$(BIN)/python -m tests.scripts.write_picks_to_try $(TRY)
	@touch $@

# Python for the browser, with which that page reads pasted files. PYODIDE: the folder of an unpacked Pyodide, where the
# package index cannot be reached.
PYODIDE     ?=
PYTHON_MADE := build/python/index.json

$(PYTHON_MADE): $(VENV)/.installed $(shell find tuner tables -name '*.py' -o -name '*.toml' -o -name '*.csv') tests/scripts/write_browser_python.py
	$(BIN)/python -m tests.scripts.write_browser_python $(PYODIDE)

site: $(VENV)/.site $(TRY_MADE) $(PYTHON_MADE)
	@for page in README.md CONTRIBUTING.md docs/*.md docs/site/*.md; do \
	    sed -e '/^ *```/,/^ *```$$/s/.*//' $$page | $(BIN)/proselint check --config docs/site/proselint.json \
	        | sed "s#^<stdin>#$$page#" | { ! grep .; } || bad=1; done; exit $${bad:-0}
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	$(BIN)/python -m tests.scripts.check_site build/site
	@echo build/site/index.html

# Every link of the site that leads elsewhere, which needs a network; those within it are checked by `make site`.
links: site
	$(BIN)/linkchecker --config docs/site/linkchecker.ini build/site/index.html

# What docs/ shows in pictures, drawn and taken anew (a browser: chromium, chromium-driver).
pictures: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.write_pictures

$(VENV)/.site: pyproject.toml $(VENV)/.installed
	@PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet --editable '.[site]' >>$(LOG) 2>&1 || { cat $(LOG) >&2; exit 1; }
	@touch $@

SOURCES_C := $(wildcard csrc/*/*.[ch] csrc/*/*/*.[ch])

SCRIPTS   := $(wildcard docs/examples/deploy/*.sh distribution/*.sh findings/*.sh)
MANIFESTS := $(wildcard docs/examples/deploy/*.yaml)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.scripts.sizes
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/shellcheck --severity warning .ci/run $(SCRIPTS)
	$(BIN)/yamllint --strict -d '{extends: relaxed, rules: {line-length: disable}}' $(MANIFESTS) action.yml .github
	$(BIN)/kubernetes-validate --strict --quiet $(MANIFESTS)
	@if [ -x $(BIN)/clang-format ]; \
	then echo $(BIN)/clang-format csrc; $(BIN)/clang-format --dry-run --Werror $(SOURCES_C); \
	else echo "no $(BIN)/clang-format: the form of csrc is not checked"; fi

# One file for a bare machine with a GPU, under 60 MiB: make gpu-bundle GPU=sm_100 BUNDLE_OPTIONS='--with scipy --linked-only'
GPU            ?= sm_90
BUNDLE_NCCL    ?= 2.30.7
BUNDLE_OPTIONS ?=
REHEARSAL_S    ?= 900

gpu-bundle: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(BUNDLE_NCCL)
	$(BIN)/python benchmarks/gpu_bundle.py --gpu $(GPU) --nccl $(BUNDLE_NCCL) $(BUNDLE_OPTIONS)

# The bundle as it will be run: in the root of a checkout without what is built there, by a Python without this project,
# with its own libnccl, on the double, which lies elsewhere: children import nothing from the current folder. Fails where
# a stage does.
REHEARSAL := build/rehearsal

rehearse-gpu-bundle: gpu-bundle
	rm -rf $(REHEARSAL)
	git clone --quiet . $(REHEARSAL)/checkout
	$(PYTHON) -m venv $(REHEARSAL)/bare && $(REHEARSAL)/bare/bin/pip install --quiet numpy scipy
	mkdir $(REHEARSAL)/checkout/build $(REHEARSAL)/double && cp -r tests $(REHEARSAL)/double
	cp build/nccl-tuner-gpu-$(GPU).pyz $(REHEARSAL)/checkout/build
	cd $(REHEARSAL)/checkout && ../bare/bin/python build/nccl-tuner-gpu-$(GPU).pyz pick allreduce --machine dgx-h100 && \
	    PYTHONPATH=$$(realpath ../double) ../bare/bin/python build/nccl-tuner-gpu-$(GPU).pyz -m tests.support.double \
	        --machine dgx-h100 --gpus-per-node 1 --ranks-per-gpu 8 --nccl $(BUNDLE_NCCL) \
	        --library build/nccl-tuner-gpu-$(GPU)/libnccl.so.2 -- \
	    ../bare/bin/python build/nccl-tuner-gpu-$(GPU).pyz --out out --copies copies --seconds $(REHEARSAL_S) --patience 3

bench: $(VENV)/.installed
	$(BIN)/nccl-tuner fetch-nccl $(NCCL)
	$(BIN)/python -m benchmarks.speed

# The shared object for NCCL_TUNER_PLUGIN, with a C compiler alone. For another processor:
# make plugin CC=aarch64-linux-gnu-gcc PLUGIN=build/aarch64/libnccl_tuner_plugin.so
PLUGIN ?= build/libnccl_tuner_plugin.so

plugin: $(PLUGIN)

$(PLUGIN): $(wildcard csrc/*.args csrc/plugin/*.[ch])
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) @csrc/plugin.args -o $@

man: $(VENV)/.installed
	$(BIN)/python distribution/man_pages.py

# The sdist and all wheels into dist/, checked: distribution/wheels.py.
WHEEL_TOOLS := build/wheel-tools

wheels: man
	$(PYTHON) -m venv $(WHEEL_TOOLS)
	$(WHEEL_TOOLS)/bin/python -m pip install --quiet --requirement distribution/requirements.txt
	$(WHEEL_TOOLS)/bin/python distribution/wheels.py

# libFuzzer over the plugin's parser and its calls: CLANG with its runtimes (Debian: clang, libclang-rt-dev).
CLANG     ?= clang
FUZZ_RUNS ?= 10500000
FUZZ      := build/fuzz
CHECK     := csrc/plugin/check

fuzz: $(FUZZ)/table $(FUZZ)/call $(FUZZ)/events
	mkdir -p $(FUZZ)/tables $(FUZZ)/calls $(FUZZ)/sequences
	$(FUZZ)/table -runs=$(FUZZ_RUNS) -max_total_time=1800 -max_len=512 -timeout=5 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/ -dict=$(CHECK)/table.dict $(FUZZ)/tables $(CHECK)/seeds/table
	$(FUZZ)/call -runs=$(FUZZ_RUNS) -max_total_time=1800 -max_len=256 -timeout=5 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/ $(FUZZ)/calls
	NCCL_TUNER_JOB=$(FUZZ)/job $(FUZZ)/events -runs=$(FUZZ_RUNS) -max_total_time=1800 -max_len=4096 -timeout=5 -print_final_stats=1 \
	    -artifact_prefix=$(FUZZ)/ $(FUZZ)/sequences

$(FUZZ)/%: $(CHECK)/fuzz_%.c $(wildcard csrc/plugin/*.[ch] csrc/call/*.[ch] $(CHECK)/*.[ch])
	mkdir -p $(FUZZ)
	$(CLANG) -std=c11 -O2 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    csrc/plugin/*.c csrc/call/*.c $< $(CHECK)/checks.c $(CHECK)/scan.c $(CHECK)/source.c -o $@

# Whole sequences of the plugin in many threads while its files are replaced, so many seconds under each of the sanitizers:
# make soak SOAK_S=1800. The seed is said, and SOAK_SEED takes it again.
SOAK_S    ?= 300
SOAK_SEED ?= $(shell date +%s)
SOAK      := build/soak

soak: $(SOAK)/address,undefined $(SOAK)/thread
	@for each in $^; do \
	    rm -rf $(SOAK)/files && mkdir -p $(SOAK)/files && echo "$$each: $(SOAK_S) s, SOAK_SEED=$(SOAK_SEED)" && \
	    TSAN_OPTIONS=suppressions=$(CHECK)/thread_sanitizer.supp $$each $(SOAK)/files $(SOAK_S) $(SOAK_SEED) 2>$(SOAK)/said || \
	    { grep -v 'nccl-tuner: ' $(SOAK)/said >&2; exit 1; }; \
	done

$(SOAK)/%: $(CHECK)/soak.c $(wildcard csrc/plugin/*.[ch] csrc/call/*.[ch] $(CHECK)/*.[ch])
	mkdir -p $(SOAK)
	$(CLANG) -std=c11 -O1 -g -fsanitize=$* -fno-sanitize-recover=all \
	    csrc/plugin/*.c csrc/call/*.c $< $(CHECK)/checks.c $(CHECK)/scan.c $(CHECK)/source.c -lpthread -ldl -o $@

# All readers on damaged files: no traceback, and none above its bounds.
HOSTILE_RUNS ?= 2000
HOSTILE_SEED ?= $(shell date +%s)

hostile: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.hostile_files $(HOSTILE_RUNS) $(HOSTILE_SEED)

$(VENV)/.installed: pyproject.toml setup.py csrc/bindings.py $(wildcard csrc/*.args csrc/*/*.[ch])
	@mkdir -p $(dir $(LOG)) && echo "installing into $(VENV); $(LOG) has what is printed"
	@{ $(PYTHON) -m venv $(VENV) && \
	    $(BIN)/python -m pip install --quiet --upgrade pip && \
	    PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet --editable '.[test,lint]'; } >$(LOG) 2>&1 || { cat $(LOG) >&2; exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) build dist man *.egg-info tuner/_native

# Readers held against the real writers of their files, which are installed, pinned: minutes, and a package index.
writers: $(VENV)/.installed
	NCCL_TUNER_WRITERS=1 $(BIN)/python -m pytest tests/writers

# What public packages do otherwise than one would guess, each in a folder of its own: a network, and no CI.
findings:
	@failed=0; for each in findings/*.sh; do echo "$$each"; bash "$$each" || failed=1; done; exit $$failed

# The same with every line of what they expect altered: each has to fail by each of them.
findings-altered: $(VENV)/.installed
	$(BIN)/python -m tests.scripts.alter_findings
