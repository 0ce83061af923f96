"""Colours, hatches and dashes of algorithms and protocols, in figures and pages: data, so that all pictures agree.

The hues are Okabe and Ito's, distinct for colour-blind people too (jfly.uni-koeln.de/color); their lightness is moved
apart (CIE L*, steps of about 10), so that the colours differ in grey as well. Colours that are often side by side -
Tree, Ring, NVLS and NVLSTree; Ring and PAT - are at least 18 apart.
"""

from tuner.base.names import Algorithm, Protocol

COLOURS = {
    Algorithm.Tree: "#00487A",
    Algorithm.Ring: "#E69F00",
    Algorithm.CollNetDirect: "#8CCBF2",
    Algorithm.CollNetChain: "#CC79A7",
    Algorithm.NVLS: "#00875F",
    Algorithm.NVLSTree: "#F0E442",
    Algorithm.PAT: "#A63F00",
}
INKS = {  # of hatches and text on the colour
    algorithm: "#FFFFFF" if algorithm in (Algorithm.Tree, Algorithm.NVLS, Algorithm.PAT) else "#000000"
    for algorithm in Algorithm
}
HATCHES = {Protocol.LL: "/", Protocol.LL128: "x", Protocol.Simple: ""}  # names of matplotlib and bokeh alike
MARKERS = {  # matplotlib's names
    Algorithm.Tree: "o",
    Algorithm.Ring: "s",
    Algorithm.CollNetDirect: "P",
    Algorithm.CollNetChain: "X",
    Algorithm.NVLS: "^",
    Algorithm.NVLSTree: "D",
    Algorithm.PAT: "v",
}
DASHES = {Protocol.LL: "dotted", Protocol.LL128: "dashed", Protocol.Simple: "solid"}  # of both, too
NOTHING_COLOUR, NOTHING_INK, NOTHING_HATCH = "#FFFFFF", "#8C8C8C", "+"  # where NCCL finds nothing to run

# Of a predicted time over another: up to this ratio, colour, ink and hatch. Faster is blue with falling stripes, slower
# is red with rising ones, and the further from 1 the darker, so that both can be read in grey.
SAME_COLOUR = "#FFFFFF"  # where there is nothing to compare, as the pick is the same
RATIOS = (
    (0.5, "#1B4F8A", "#FFFFFF", "\\"),
    (0.8, "#5E92CC", "#000000", "\\"),
    (0.95, "#BBD3EE", "#000000", "\\"),
    (1 / 0.95, "#CCCCCC", "#000000", ""),
    (1.25, "#F7C6AD", "#000000", "/"),
    (2.0, "#DE7A4B", "#000000", "/"),
    (float("inf"), "#8A2F0A", "#FFFFFF", "/"),
)
