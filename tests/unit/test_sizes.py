"""What ``make lint`` prints of the size of each room."""

from tests.scripts.sizes import counted, report

BEFORE = {"tuner/api.py": "a\nb\n", "tuner/cli/pick.py": "@dataclass\nclass A: ...\n"}
AFTER = {"tuner/cli/pick.py": "a\n" * 5, "tuner/base/view.py": "    @dataclass(frozen=True)\n@dataclass_like\n"}


def test_lines_and_dataclasses_are_counted_by_room() -> None:
    assert counted(BEFORE) == ({"top": 2, "cli": 2}, 1)
    assert counted(AFTER) == ({"cli": 5, "base": 2}, 1)


def test_each_room_says_what_changed() -> None:
    rows = [line.split() for line in report(BEFORE, AFTER).splitlines()]
    assert rows == [
        ["cli", "5", "+3"],
        ["base", "2", "+2"],
        ["top", "0", "-2"],
        ["sum", "7", "+3"],
        ["dataclasses", "1", "+0"],
    ]
