#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: an environment plugin that says another NCCL_DEBUG than the environment.
#
# Expected: what the plugin says counts, as for every other variable: its INFO starts the log, its WARN ends it.
# Seen:     the log follows the environment alone, while ncclParamGetParameter tells what the plugin says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset "${!NCCL_@}"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
cat >plugin.c <<'C'
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int init(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix) { return 0; }
static int finalize(void) { return 0; }
static const char* value(const char* name) { return getenv(strcmp(name, "NCCL_DEBUG") ? name : "PLUGIN_DEBUG"); }
struct { const char* name; int (*init)(uint8_t, uint8_t, uint8_t, const char*); int (*finalize)(void);
         const char* (*value)(const char*); } ncclEnvPlugin_v1 = {"made", init, finalize, value};
C
cc -shared -fPIC -o plugin.so plugin.c
cat >program.py <<'PYTHON'
import ctypes, os
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
result = library.ncclGetUniqueId(ctypes.create_string_buffer(128))
text, length = ctypes.c_char_p(), ctypes.c_int()
library.ncclParamGetParameter(b"NCCL_DEBUG", ctypes.byref(text), ctypes.byref(length))
print("result", result, "parameter", text.value.decode())
PYTHON
python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")'
asked() {
  env "$@" NCCL_ENV_PLUGIN="$PWD/plugin.so" python3 program.py >said 2>&1
  echo "$*: $(grep -c 'NCCL INFO Bootstrap: Using' said || true) line of the log, $(grep parameter said)"
}
{
  asked PLUGIN_DEBUG=INFO
  asked NCCL_DEBUG=INFO
  asked NCCL_DEBUG=INFO PLUGIN_DEBUG=WARN
} >seen
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
PLUGIN_DEBUG=INFO: 0 line of the log, result 0 parameter INFO
NCCL_DEBUG=INFO: 1 line of the log, result 0 parameter <unknown>
NCCL_DEBUG=INFO PLUGIN_DEBUG=WARN: 1 line of the log, result 0 parameter WARN
SEEN
