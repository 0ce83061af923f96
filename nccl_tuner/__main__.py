"""The command ``nccl-tuner`` and ``python -m nccl_tuner``; importing this package has checked whose ``tuner`` it is."""

from tuner.__main__ import main

if __name__ == "__main__":
    main()
