"""Schedules of random calls by NVLS, CollNet and PAT against those of the works and channels of the live libnccl.

    python -m tests.scripts.check_schedules                      every release, a part of `make test-releases`
    python -m tests.scripts.check_schedules 2.28.9 --calls 200   this one

Both must be equal, step by step, and are carried out on numbers: every rank must end with what the collective gives it.
Prints what was compared by release. Exit code 1 where anything differs.
"""

from tests.support import scheduled_calls
from tests.support.compared_calls import comparing

main = comparing("schedules", scheduled_calls)

if __name__ == "__main__":
    main()
