"""Writes tables/defaults.toml: the defaults of NCCL's variables, as each release's libnccl has them.

Every number that NCCL reads from a variable has a function ncclParamNAME(), which hands the variable's name and default
to ncclLoadParam(). That one is replaced here, and all of the others are called. From 2.31 on some variables are in
NCCL's registry of parameters, which says their values; none is set. No rank is started.

    python -m tests.scripts.record_defaults                 of all releases
    python -m tests.scripts.record_defaults 2.28.9          what one has, as JSON
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
from tuner._native._sim import ffi, lib

from tuner import release
from tuner.base.files import cache_folder
from tuner.oracle import library, symbols

FILE = Path(__file__).parents[2] / "tables" / "defaults.toml"
OWN = "NCCL_TUNER_CACHE"  # not a variable of NCCL: where its libraries are
NOT_SET = -(2**31)  # NCCL_CONFIG_UNDEF_INT: the variable says nothing, the communicator's configuration does
HEAD = """\
# Defaults of the variables that NCCL reads, by release, from the libnccl of each (wheels nvidia-nccl-cu12), written by
# `python -m tests.scripts.record_defaults`. A release has what the newest line up to it says. "none": it does not read
# the variable. "unset": the communicator's configuration (ncclConfig_t) decides. Of many -2 or -1 is: NCCL decides.
"""


@click.command()
@click.argument("name", metavar="[RELEASE]", required=False)
def main(name: str | None) -> None:
    if name is not None:
        click.echo(json.dumps(defaults(name)))
        return
    names = release.names()
    FILE.write_text(HEAD + written({each: asked(each) for each in names}))


def asked(name: str) -> dict[str, int | str]:
    """The same from a process of its own, as a process loads one libnccl."""
    command = [sys.executable, "-m", "tests.scripts.record_defaults", name]
    own = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_") or key == OWN}
    answer: dict[str, int | str] = json.loads(subprocess.run(command, env=own, capture_output=True, check=True).stdout)
    return answer


def defaults(name: str) -> dict[str, int | str]:
    """By variable."""
    found = library.find(name)
    located = symbols.load(found.path, found.sha256, cache_folder())
    if (error := lib.sim_load_nccl(str(found.path).encode())) != ffi.NULL:
        raise SystemExit(f"{found.path}: {ffi.string(error).decode()}")
    anchor, offset = located.anchor
    base = int(ffi.cast("uintptr_t", lib.sim_nccl_function(anchor.encode()))) - offset
    values: dict[str, int | str] = {}

    @ffi.callback("void(char *, int64_t, int64_t, int64_t *)")
    def load(variable: object, default: int, _: int, cache: list[int]) -> None:
        values[ffi.string(variable).decode()] = "unset" if default == NOT_SET else default
        cache[0] = default

    for address, size in located.functions["ncclLoadParam"]:
        if error := lib.sim_redirect(ffi.cast("void *", base + address), size, ffi.cast("void *", load)):
            raise SystemExit(f"{name}: cannot replace ncclLoadParam: {os.strerror(error)}")
    for symbol, copies in located.functions.items():
        if re.fullmatch(r"_ZL?\d+ncclParam[A-Z]\w*v", symbol):  # no arguments
            ffi.cast("int64_t (*)(void)", base + copies[0][0])()
    return dict(sorted((values | registered()).items()))


def registered() -> dict[str, int | str]:
    """What the registry of parameters says, of the releases that have one."""
    keys_of, value_of = map(lib.sim_nccl_function, (b"ncclParamGetAllParameterKeys", b"ncclParamGetParameter"))
    if ffi.NULL in (keys_of, value_of):
        return {}
    keys, count = ffi.new("char ***"), ffi.new("int *")
    if ffi.cast("int (*)(char ***, int *)", keys_of)(keys, count) != 0 or keys[0] == ffi.NULL:
        return {}
    values: dict[str, int | str] = {}
    for key in ffi.unpack(keys[0], count[0]):
        value, length = ffi.new("char **"), ffi.new("int *")
        if ffi.cast("int (*)(char *, char **, int *)", value_of)(key, value, length) == 0 and value[0] != ffi.NULL:
            values[ffi.string(key).decode()] = ffi.string(value[0]).decode()
    return values


def written(of_releases: dict[str, dict[str, int | str]]) -> str:
    """A table for every variable, with a line where its default changes."""
    text = ""
    for variable in sorted(set().union(*of_releases.values())):
        text += f"\n[{variable}]\n"
        last: int | str = "none"
        for name, values in of_releases.items():
            if (value := values.get(variable, "none")) != last:
                text += f'"{name}" = {json.dumps(value)}\n'
                last = value
    return text


if __name__ == "__main__":
    main()
