"""An option for each of a row of sizes, so that few rows of a decision table say them all."""

from collections.abc import Mapping, Sequence

from tuner.times.records.samples import Combination

TOLERANCE = 0.001  # of the mean regret, for fewer rows
MOST_ROWS = 16  # of one collective

Option = Combination | None  # None leaves the size to NCCL


def assign(credits: Sequence[Mapping[Combination, float]]) -> list[Option]:
    """An option for each of the sizes in order: the fewest rows whose credit is within TOLERANCE of the most."""
    options: list[Option] = [None, *sorted({option for size in credits for option in size})]
    # paths[rows][option]: the best credit of ways that end with the option, and the way.
    paths: list[dict[Option, tuple[float, tuple[Option, ...]]]] = [{None: (0.0, ())}]
    for size in credits:
        after: list[dict[Option, tuple[float, tuple[Option, ...]]]] = []
        for rows in range(min(len(paths), MOST_ROWS) + 1):
            here: dict[Option, tuple[float, tuple[Option, ...]]] = {}
            same = paths[rows] if rows < len(paths) else {}
            fewer = paths[rows - 1] if rows else {}
            best_same = max(same.values(), key=lambda way: way[0], default=None)
            best_fewer = max(fewer.values(), key=lambda way: way[0], default=None)
            for option in options:
                gain = 0.0 if option is None else size.get(option)
                if gain is None:
                    continue
                ways = [same.get(option), best_same if option is None else best_fewer]
                known = [way for way in ways if way is not None]
                if known:
                    credit, way = max(known, key=lambda each: each[0])
                    here[option] = (credit + gain, (*way, option))
            after.append(here)
        while after and not after[-1]:
            after.pop()
        paths = after
    best = [max(ways.values(), key=lambda way: way[0]) for ways in paths if ways]
    enough = max(credit for credit, _ in best) - TOLERANCE * len(credits)
    return list(next(way for credit, way in best if credit >= enough))
