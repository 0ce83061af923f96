"""A small tuner to ask where a table has no row: of any versions of the interface, failing where that is wanted."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.support import programs

VERSIONS = range(1, 8)

# Takes Tree/LL on 3 channels for AllReduce, from 1 MiB on Ring/Simple, and chunks of 4242 bytes. Logs what it is asked.
_SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#define EXPORT __attribute__((visibility("default")))
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
static logger say;
static int starts;
static int start(int version, size_t ranks, size_t nodes, logger log) {
  say = log;
  starts++;
  if (say) say(3, ~0ul, "next", 1, "NEXT init v%d %zu %zu", version, ranks, nodes);
  return FAIL_INIT && starts >= FAIL_INIT ? 3 : 0;
}
static int asked(int collective, size_t bytes, int pipelined, int registered) {
  if (say) say(3, ~0ul, "next", 1, "NEXT asked %d %zu %d %d", collective, bytes, pipelined, registered);
  return collective == 4;
}
static int named(int coll_net, int nvls, size_t bytes, int *algorithm, int *protocol, int *channels) {
  if (say) say(3, ~0ul, "next", 1, "NEXT can %d %d", coll_net, nvls);
  *algorithm = bytes >= 1 << 20, *protocol = bytes >= 1 << 20 ? 2 : 0, *channels = 3;
  return FAIL_CALL;
}
static int cheapest(size_t bytes, float *costs, int *channels) {
  costs[bytes >= 1 << 20 ? 5 : 0] = 0.0f, *channels = 3;
  return FAIL_CALL;
}
#define START(v) static int start##v(size_t r, size_t n, logger l, void **c) { *c = &starts; return start(v, r, n, l); }
#define START_WITH_CONSTANTS(v) \
  static int start##v(void **c, uint64_t id, size_t r, size_t n, logger l, void *domains, double *constants) { \
    for (int i = 0; i < (v > 6 ? 159 : 144); i++) constants[i] += CONSTANTS; \
    *c = &starts; \
    l(3, ~0ul, "next", 1, "NEXT communicator %llu", (unsigned long long)id); \
    return start(v, r, n, l); \
  }
static int start1(size_t r, size_t n, logger l) { return start(1, r, n, l); }
START(2) START(3) START(4) START_WITH_CONSTANTS(5) START_WITH_CONSTANTS(6)
START_WITH_CONSTANTS(7)
static int ask1(int f, size_t b, int coll_net, int nvls, int p, int *algorithm, int *protocol, int *channels) {
  return asked(f, b, p, -1) ? named(coll_net, nvls, b, algorithm, protocol, channels) : 0;
}
static int ask2(void *c, int f, size_t b, int coll_net, int nvls, int p, int *algorithm, int *protocol, int *channels) {
  return c == &starts ? ask1(f, b, coll_net, nvls, p, algorithm, protocol, channels) : 9;
}
static int ask3(void *c, int f, size_t b, int p, float *costs, int algorithms, int protocols, int *channels) {
  return c != &starts ? 9 : asked(f, b, p, -1) ? cheapest(b, costs, channels) : 0;
}
static int ask4(void *c, int f, size_t b, int p, float *costs, int algorithms, int protocols, int registered,
                int *channels) {
  return c != &starts ? 9 : asked(f, b, p, registered) ? cheapest(b, costs, channels) : 0;
}
static int chunk(void *c, int f, size_t b, int algorithm, int protocol, int channels, size_t *bytes) {
  say(3, ~0ul, "next", 1, "NEXT chunk %d %d/%d", f, algorithm, protocol);
  *bytes = 4242;
  return c != &starts ? 9 : FAIL_CALL;
}
static int end1(void) {
  if (say) say(3, ~0ul, "next", 1, "NEXT end");
  return 0;
}
static int end(void *c) { return c == &starts ? end1() : 9; }
#define PLUGIN(v, ask, end) \
  EXPORT struct { const char *name; void *start, *ask, *end, *chunk; } ncclTunerPlugin_v##v = \
      {"next", start##v, ask, end, chunk};
"""
_EXPORTS = {
    1: "PLUGIN(1, ask1, end1)",
    2: "PLUGIN(2, ask2, end)",
    3: "PLUGIN(3, ask3, end)",
    4: "PLUGIN(4, ask4, end)",
    5: "PLUGIN(5, ask4, end)",
    6: "PLUGIN(6, ask4, end)",
    7: "PLUGIN(7, ask4, end)",
}


def build(
    target: Path, versions: Iterable[int] = VERSIONS, *, fail_init: int = 0, fail_call: int = 0, constants: int = 0
) -> Path:
    """The tuner as a shared object; its inits fail from number ``fail_init`` on, its calls with ``fail_call``.

    ``constants`` is added to those of NCCL's model.
    """
    text = _SOURCE + "\n".join(_EXPORTS[version] for version in versions)
    macros = [f"-DFAIL_INIT={fail_init}", f"-DFAIL_CALL={fail_call}", f"-DCONSTANTS={constants}"]
    options = ["-w", "-fPIC", "-shared", "-fvisibility=hidden", *macros]
    made = programs.compiled(programs.compiler(), options, text=text, suffix=".so")
    return Path(shutil.copy(made, target))
