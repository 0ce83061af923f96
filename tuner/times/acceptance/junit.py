"""An acceptance as JUnit XML, which CI systems show: a suite a collective and communicator, a case a size."""

import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

from tuner.base.files import write_text
from tuner.base.sizes import human_bytes
from tuner.times.acceptance.accept import Acceptance, JudgedSize


def write(path: Path, acceptance: Acceptance) -> None:
    """Problems of the files are a suite of their own. BadInput where the file cannot be written."""
    root = ET.Element("testsuites", name=f"nccl-tuner accept {acceptance.machine}")
    for name, sizes in groupby(acceptance.sizes, suite):
        _add_suite(root, name, [(human_bytes(each.bytes), _failure(each)) for each in sizes])
    wrong = [f"{acceptance.wrong_results} calls had wrong results"] if acceptance.wrong_results else []
    refused = [f"{each.file}: {each.kind}: {each.text}" for each in acceptance.problems if each.refused]
    _add_suite(root, "files", [("results can be judged", "\n".join([*wrong, *refused]) or None)])
    cases = list(root.iter("testcase"))
    root.set("tests", str(len(cases)))
    root.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    ET.indent(root)
    write_text(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def suite(size: JudgedSize) -> str:
    """What a size belongs to, in words: collective, type, placement, GPUs, release."""
    placement = "in place" if size.in_place else "out of place"
    on = f"{size.nodes} x {size.gpus_per_node} GPUs"
    settings = "".join(f", {name}={value}" for name, value in size.settings.items())
    return f"{size.collective}, {size.dtype}, {placement}, {on}, NCCL {size.nccl}{settings}"


def _add_suite(root: ET.Element, name: str, cases: list[tuple[str, str | None]]) -> None:
    failures = sum(failure is not None for _, failure in cases)
    suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)), failures=str(failures))
    for case, failure in cases:
        element = ET.SubElement(suite, "testcase", classname=name, name=case)
        if failure is not None:
            ET.SubElement(element, "failure", message=failure.partition("\n")[0]).text = failure


def _failure(size: JudgedSize) -> str | None:
    if not size.verdict.fails:
        return None
    return (
        f"{size.verdict}: {size.time_us:.2f} us, expected {size.low_us:.2f} to {size.high_us:.2f}; "
        f"{size.busbw_gbs:.2f} GB/s, floor {size.floor_gbs:.2f}"
    )
