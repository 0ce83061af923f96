"""Small tuner plugins with one fault each, made from a line of C: for what NCCL does with a tuner's answers."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support import programs

VERSIONS = range(3, 7)

# `collective`, `bytes`, `operations` (numPipeOps), the cells `us` of [algorithms][protocols] and `channels` are what a
# line of C may use, and RANK, the order in which this process's communicators began; CALL counts the calls of it.
_SOURCE = r"""
#include <math.h>
#include <stdio.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#define EXPORT __attribute__((visibility("default")))
#define CELL(algorithm, protocol) us[(algorithm) * protocols + (protocol)]
struct tuner { int rank, call; };
static int begun;
static int start(void **context) {
  struct tuner *tuner = calloc(1, sizeof *tuner);
  tuner->rank = __atomic_fetch_add(&begun, 1, __ATOMIC_SEQ_CST);
  *context = tuner;
  return INIT;
}
static int start3(size_t ranks, size_t nodes, void *log, void **context) { return start(context); }
static int start5(void **context, uint64_t id, size_t ranks, size_t nodes, void *log, void *domains, void *constants) {
  return start(context);
}
static int ask4(void *context, int collective, size_t bytes, int operations, float *us, int algorithms, int protocols,
                int registered, int *channels) {
  struct tuner *tuner = context;
  int RANK = tuner->rank, CALL = tuner->call++;
  ASK;
  return 0;
}
static int ask3(void *context, int collective, size_t bytes, int operations, float *us, int algorithms, int protocols,
                int *channels) {
  return ask4(context, collective, bytes, operations, us, algorithms, protocols, 0, channels);
}
static int end(void *context) { free(context); return 0; }
#define PLUGIN(v, start, ask) \
  EXPORT struct { const char *name; void *start, *ask, *end, *chunk; } ncclTunerPlugin_v##v = \
      {"planted", start, ask, end, 0};
"""


def build(target: Path, ask: str = "", *, init: str = "0", versions: Iterable[int] = VERSIONS) -> Path:
    """The tuner whose getCollInfo does ``ask`` (statements of C) and whose init returns ``init``: a shared object."""
    exports = [f"PLUGIN({v}, start{3 if v < 5 else 5}, ask{3 if v < 4 else 4})" for v in versions]
    text = "\n".join([f"#define ASK {ask}", f"#define INIT {init}", _SOURCE, *exports])
    options = ["-w", "-fPIC", "-shared", "-fvisibility=hidden"]
    made = programs.compiled(programs.compiler(), options, text=text, suffix=".so")
    return Path(shutil.copy(made, target))
