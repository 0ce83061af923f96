"""Each script of findings/ with every line of its expected output altered: it has to fail, by every one of them.

    python -m tests.scripts.alter_findings [NAME...]        all, or some: findings/NAME.sh

What a line would not notice is printed, and the exit code is 1. Takes as long as `make findings`.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tuner.base.expressions import expression

FINDINGS = Path(__file__).parents[2] / "findings"
EXPECTED = expression(r"(?<=diff seen - <<'SEEN')(?P<then>.*\n)(?P<lines>(?:.*\n)*?)(?P<end>SEEN\n)")
ALTERED = " altered"


def altered(text: str) -> tuple[str, list[str]]:
    """A script with every line that it expects altered, and those lines as it has them."""
    match = EXPECTED.search(text)
    if match is None or not match["lines"]:
        raise SystemExit("a script has no expected output")
    lines = match["lines"].splitlines()
    other = "".join(f"{line}{ALTERED}\n" for line in lines)
    return f"{text[: match.start('lines')]}{other}{text[match.end('lines') :]}", lines


def unnoticed(script: Path) -> list[str]:
    """The expected lines whose alteration the script does not tell; all where it succeeds."""
    text, lines = altered(script.read_text())
    with tempfile.TemporaryDirectory() as folder:
        (copy := Path(folder, script.name)).write_text(text)
        done = subprocess.run(["bash", copy], capture_output=True, text=True, check=False)
    told = set(done.stdout.splitlines())
    if done.returncode == 0:
        return lines
    return [line for line in lines if f"> {line}{ALTERED}" not in told or f"< {line}" not in told]


def main() -> None:
    names = sys.argv[1:] or sorted(each.stem for each in FINDINGS.glob("*.sh"))
    failed = False
    for name in names:
        missed = unnoticed(FINDINGS / f"{name}.sh")
        failed |= bool(missed)
        print(f"{name}: {f'not noticed: {missed}' if missed else 'every line is noticed'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
