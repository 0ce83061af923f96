"""Parses an XML file from an untrusted source into a small tree whose elements know their line. Error messages are one
line."""

import xml.etree.ElementTree as ET
import xml.parsers.expat as expat
from collections.abc import Iterator
from dataclasses import field
from typing import NoReturn, overload

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTopology

MAX_BYTES = 4 << 20  # the largest dump; that of the largest node known is below 100 kB
MAX_DEPTH = 32  # the deepest nesting; NCCL's own files stay below 12
# The longest attribute, in characters; masks of thousands of processors are shorter, and Python can read numbers of
# this length
MAX_ATTRIBUTE = 4000
MAX_NETS = 640  # NCCL_TOPO_MAX_NODES, src/graph/topo.h, v2.28.9-1


@dataclass(slots=True)
class Element:
    """An element of a document, and the line where it begins."""

    tag: str
    attributes: dict[str, str]
    line: int
    where: str
    parent: "Element | None" = None
    children: list["Element"] = field(default_factory=list)
    text: str = ""  # the text in it, apart from elements

    def fail(self, problem: str) -> NoReturn:
        """Raises BadTopology with the file, line and tag of the element."""
        raise BadTopology(f"{self.where}:{self.line}: <{self.tag}> {problem}")

    @overload
    def get(self, key: str, default: str) -> str: ...

    @overload
    def get(self, key: str, default: str | None = None) -> str | None: ...

    def get(self, key: str, default: str | None = None) -> str | None:
        """The value of an attribute; ``default`` if it is missing."""
        return self.attributes.get(key, default)

    def findall(self, tag: str) -> list["Element"]:
        """The children with that tag."""
        return [child for child in self.children if child.tag == tag]

    def iter(self, tag: str) -> Iterator["Element"]:
        """Yields the elements with that tag in the order of the document, including this element."""
        if self.tag == tag:
            yield self
        for child in self.children:
            yield from child.iter(tag)

    def find(self, path: str) -> "Element | None":
        """The first child with that tag, or the first of all for ``*``; None if there is no such child."""
        return next((child for child in self.children if path in ("*", child.tag)), None)

    def ancestor(self, tag: str) -> "Element | None":
        """The nearest element around this one with that tag."""
        above = self.parent
        while above is not None and above.tag != tag:
            above = above.parent
        return above


def parse(data: bytes, where: str, by_nccl: bool = True) -> list[Element]:
    """The elements of a document in the order in which they begin; the first is the root. Errors call the document
    ``where``.

    ``by_nccl``: also refuse what NCCL's own parser does not read. BadTopology if the data are not XML, or too large.
    """
    if len(data) > MAX_BYTES:
        raise BadTopology(
            f"{where}: {len(data)} bytes are too many for the topology of one node: up to {MAX_BYTES} are read"
        )
    elements: list[Element] = []
    path: list[Element] = []
    parser = expat.ParserCreate("utf-8")

    def fail(problem: str) -> NoReturn:
        raise BadTopology(f"{where}:{parser.CurrentLineNumber}: {problem}")

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(path) == MAX_DEPTH:
            fail(f"elements nested deeper than {MAX_DEPTH}")
        if any(len(value) > MAX_ATTRIBUTE for value in attributes.values()):
            fail(f"an attribute of <{tag}> is longer than {MAX_ATTRIBUTE} characters")
        above = path[-1] if path else None
        element = Element(tag, attributes, parser.CurrentLineNumber, where, above)
        if above is not None:
            above.children.append(element)
        elements.append(element)
        path.append(element)

    def text(data: str) -> None:
        if path and not data.isspace():
            path[-1].text += data

    # NCCL's own parser (xmlGetNode, xml.cc) only knows elements and comments. A DOCTYPE could also contain entities
    # that expand without limit.
    if by_nccl:
        parser.XmlDeclHandler = lambda *_: fail("NCCL does not read files with an XML declaration; remove <?xml ...?>")
        parser.StartDoctypeDeclHandler = lambda *_: fail("NCCL does not read files with a DOCTYPE; remove it")
    parser.EntityDeclHandler = lambda *_: fail("declares an entity; valid: without <!ENTITY>")
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _: path.pop()
    parser.CharacterDataHandler = text
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadTopology(
            f"{where}:{error.lineno}: not XML: {expat.ErrorString(error.code)}: give what NCCL dumps ('nccl-tuner "
            "diagnose' says what a file is)"
        ) from None
    if sum(element.tag == "net" for element in elements) > MAX_NETS:
        raise BadTopology(f"{where}: has more than {MAX_NETS} adapters (<net>), which NCCL itself refuses")
    return elements


def to_text(root: ET.Element) -> str:
    """The tree as text that NCCL's parser reads: without a declaration, and without a space before "/>"."""
    return ET.tostring(root, encoding="unicode").replace(" />", "/>") + "\n"
