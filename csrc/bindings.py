"""The Python side of the shared objects, for cffi: ``tuner._native._plugin`` and so on, named in ``setup.py``.

Layouts come from the compiler and declarations from the headers, so that neither stands twice. Each module is linked
with its shared object, which lies beside it: a process that loads both has the object's state once.
"""

import re
from pathlib import Path

from cffi import FFI

CSRC = Path("csrc")  # a build runs in the project's root


def declarations(header: str) -> str:
    """What a header declares, without what only a compiler reads. It may hold types, enums and plain functions."""
    text = (CSRC / header).read_text()
    text = re.sub(r"^_Static_assert\(.*?\);$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^#(.*\\\n)*.*$", "", text, flags=re.MULTILINE)


def linked(module: str, shared_object: str, source: str, sources: tuple[str, ...] = ()) -> FFI:
    """A module of C ``source`` and ``sources`` linked with a shared object; what it declares is added with ``cdef``."""
    ffi = FFI()
    ffi.set_source(
        f"tuner._native.{module}",
        source,
        sources=[str(CSRC / name) for name in sources],
        include_dirs=[str(CSRC)],
        libraries=[shared_object.removeprefix("lib")],
        extra_compile_args=["@csrc/flags.args", "-Wno-unused-parameter"],
        extra_link_args=["-Wl,-rpath,$ORIGIN"],
    )
    return ffi


# NCCL's logger takes more arguments after the format, which no Python function can: C formats the line.
_LOGGER = """
#include <stdarg.h>
#include <stdio.h>

#include "call/versions.h"

static void log_line(int level, const char *text);

static void format_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    log_line(level, text);
}

static nccl_logger python_logger(void) {
    return format_line;
}
"""
_CALLS = f"""
{declarations("plugin/abi.h")}
{declarations("call/versions.h")}
nccl_logger python_logger(void);
extern "Python" void log_line(int level, const char *text);
"""

plugin = linked("_plugin", "libnccl_tuner_plugin", _LOGGER, ("call/versions.c",))
plugin.cdef(_CALLS)

force = linked("_force", "libnccl_tuner_force", _LOGGER + '#include "force/force.h"\n', ("call/versions.c",))
force.cdef(_CALLS + declarations("force/force.h"))

_SIM = """
#include "sim/double.h"
#include "sim/oracle.h"
#include "sim/preload.h"

static const char *sim_expected_sources(void) {
    return NCCL_TUNER_SOURCES;
}
"""
sim = linked("_sim", "libnccl_tuner_sim", _SIM)
for header in ("hardware", "observed", "oracle", "double", "preload"):
    sim.cdef(declarations(f"sim/{header}.h"))
sim.cdef("const char *sim_expected_sources(void);")
