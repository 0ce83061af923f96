"""Scenarios: how users describe a communicator (machine or topology, nodes, release, settings), and how emulator and
oracle use that."""

from tuner.scenario.description import MOST_NODES as MOST_NODES
from tuner.scenario.description import ConstantsUsed as ConstantsUsed
from tuner.scenario.description import Members as Members
from tuner.scenario.description import Scenario as Scenario
