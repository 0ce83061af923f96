"""Descriptions by users - machine or topology, nodes, release, settings - and how emulator and oracle use them."""

from tuner.scenario.description import MOST_NODES as MOST_NODES
from tuner.scenario.description import ConstantsUsed as ConstantsUsed
from tuner.scenario.description import Members as Members
from tuner.scenario.description import Scenario as Scenario
