"""Wheels of libnccl that were copied into a folder, for computers that reach no package index."""

import platform
import re
from pathlib import Path

from tuner.base.errors import OracleUnavailable


def find(folder: Path, distribution: str, release: str) -> Path:
    """The wheel of a release for this computer in ``folder``; ``distribution`` is such as ``nvidia-nccl-cu12``.

    Errors: OracleUnavailable where there is none; it says what there is, and what puts one there.
    """
    if not folder.is_dir():
        raise OracleUnavailable(f"{folder} is no folder")
    name, machine = distribution.replace("-", "_"), platform.machine()
    wanted = re.compile(rf"{name}-{re.escape(release)}(?:\.post\d+)?-[^/]*_{machine}\.whl")
    there = sorted(path for path in folder.iterdir() if wanted.fullmatch(path.name))
    if there:
        return there[-1].resolve()  # of post-releases the newest
    wheels = sorted(path.name for path in folder.glob("nvidia_nccl_*.whl"))
    raise OracleUnavailable(
        f"no wheel of {distribution} {release} for {machine} in {folder}, which has {', '.join(wheels) or 'none'}; "
        f"where there is a network: pip download --no-deps --dest DIR {distribution}=={release}"
    )
