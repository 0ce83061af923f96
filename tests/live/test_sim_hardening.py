"""The simulated hardware under sanitizers, while libnccl runs on it: on a host, and on hosts that NVLink joins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.programs import ROOT, sanitized_object

CALLS = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.support.gb200_tray import tray
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.oracle import process, start
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration

process.SIM = start.SIM = Path(sys.argv[1])
call = Request(Collective.AllReduce, DataType.float32, Op.sum)
for domains, without in (((), ()), ((2,), ()), ((2, 1), ()), ((2,), (5,))):
    hosts = sum(domains) or 1
    asked = OracleConfiguration(
        tray(gpus=3), hosts, 3, sys.argv[2], {}, domains=domains, ranks_without_fabric=without
    )
    with Oracle(asked) as oracle:
        assert sys.argv[1] in Path(f"/proc/{oracle.pid}/maps").read_text()
        oracle.launch(call, [1 << 20, 1 << 26])
        if int(sys.argv[3]):
            oracle.launch(replace(call, buffers=Buffers.registered), [1 << 20])
print("done")
"""

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.heavy]


@pytest.mark.parametrize("name", [HERE[0], HERE[-1]])
def test_addresses_and_undefined_behaviour(name: str, tmp_path: Path) -> None:
    simulated, sanitizer = sanitized_object("sim", tmp_path)
    registers = str(int(name != HERE[0]))
    done = subprocess.run(
        [sys.executable, "-c", CALLS, str(simulated), name, registers],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(tmp_path),  # the Python module finds this one first
            **sanitizer,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
