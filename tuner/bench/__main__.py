"""The process that measures, as tuner/base/children.py starts it."""

from tuner.bench.exchange import main

main()
