"""``nccl-tuner diagnose`` as tests run it."""

import json
from typing import Any

from click.testing import CliRunner, Result

from tuner.cli import everything


def diagnosed(*words: object) -> Result:
    """The command's result on these files and options."""
    return CliRunner().invoke(everything, ["diagnose", *map(str, words)])


def found(*files: object) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and findings of all files, the gravest file first."""
    result = diagnosed(*files, "--json")
    return result.exit_code, [each for file in json.loads(result.output)["files"] for each in file["findings"]]
