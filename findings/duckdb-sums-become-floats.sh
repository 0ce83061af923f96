#!/usr/bin/env bash
# DuckDB 1.4.1 with pandas 2.3.3: the sum of whole bytes is no whole number in a data frame.
#
# Expected: sum() of a BIGINT column, such as bytes by rank, is int64 in pandas, as the column itself is.
# Seen:     the sum is a HUGEINT, which becomes float64: above 2^53 it is another number. fetchall() has the right one,
#           and sum(bytes)::BIGINT keeps it in the frame.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet duckdb==1.4.1 pandas==2.3.3 numpy==2.3.4
cat >program.py <<'PYTHON'
import duckdb
rows = "(values (9007199254740992::BIGINT), (1::BIGINT)) as table_of(bytes)"
for column in ("bytes", "sum(bytes)", "sum(bytes)::BIGINT"):
    frame = duckdb.sql(f"select {column} as it from {rows}").df()
    print(column, frame.dtypes["it"], int(frame["it"].sum()))
print("fetchall", duckdb.sql(f"select sum(bytes) from {rows}").fetchall()[0][0])
PYTHON
environment/bin/python program.py >seen
diff seen - <<'SEEN' && echo "duckdb 1.4.1: as seen"
bytes int64 9007199254740993
sum(bytes) float64 9007199254740992
sum(bytes)::BIGINT int64 9007199254740993
fetchall 9007199254740993
SEEN
