#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: an environment plugin whose init returns ncclInternalError (3) or ncclInvalidUsage (5).
#
# Expected: NCCL falls back on its own, as the README of plugins/env says ("will fall back to the internal environment
#           plugin"), and as it does where the plugin's file is missing.
# Seen:     the first call of NCCL returns the plugin's error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset "${!NCCL_@}"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
cat >plugin.c <<'C'
#include <stdint.h>
#include <stdlib.h>
static int init(uint8_t major, uint8_t minor, uint8_t patch, const char* suffix) { return atoi(getenv("RESULT")); }
static int finalize(void) { return 0; }
static const char* value(const char* name) { return getenv(name); }
struct { const char* name; int (*init)(uint8_t, uint8_t, uint8_t, const char*); int (*finalize)(void);
         const char* (*value)(const char*); } ncclEnvPlugin_v1 = {"made", init, finalize, value};
C
cc -shared -fPIC -o plugin.so plugin.c
cat >program.py <<'PYTHON'
import ctypes, os
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
print(library.ncclGetUniqueId(ctypes.create_string_buffer(128)))
PYTHON
python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")'
{
  for result in 0 3 5; do
    echo "init returns $result: $(RESULT=$result NCCL_ENV_PLUGIN="$PWD/plugin.so" python3 program.py)"
  done
  echo "no such file: $(NCCL_ENV_PLUGIN="$PWD/none.so" python3 program.py)"
} >seen
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
init returns 0: 0
init returns 3: 3
init returns 5: 5
no such file: 0
SEEN
