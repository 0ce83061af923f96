"""Orders of additions claimed of random calls against steps executed on the works and channels of the live libnccl.

    python -m tests.scripts.check_orders                      every release, a part of `make test-releases`
    python -m tests.scripts.check_orders 2.28.9 --calls 200   this one

Each communicator (machine, nodes, NCCL_ALGO, NCCL_PROTO, channels) is drawn with its calls. Both add float32 numbers,
and the bits are compared. Prints what was compared by release. Exit code 1 where anything differs.
"""

from tests.support import ordered_calls
from tests.support.compared_calls import comparing

main = comparing("orders", ordered_calls)

if __name__ == "__main__":
    main()
