"""Finds the tuner of a scenario: aws-ofi-nccl's, one that decides by a file, or none; by name, or as in a machine's
images.

Tuners that are not public are named and refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy
from tuner.base.records import json_form
from tuner.emulator.aws_ofi_nccl import release as aws_release
from tuner.emulator.aws_ofi_nccl.tuner import INTERNAL, TYPE, VARIABLES, AwsTuner
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Selection, of_picks
from tuner.emulator.tuner_plugin import TunerPlugin
from tuner.machine import catalogue
from tuner.machine.adapters import plugin_networks
from tuner.release import Release
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.scenario.from_log import FromLog


NONE = "none"
FILES = ("table", "nvidia")
NOT_PUBLIC = {
    "gib": (
        "Google's images of A3 Ultra, A3 Mega and A4 load a tuner of Google's own, whose source is not public "
        "(NCCL_TUNER_CONFIG_PATH names its tuner_config_a3u.txtpb, a4 or a3plus_tuner_config.textproto); NCCL's log "
        "says what runs, with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,TUNING"
    ),
}
VALID = f"{aws_release.NAME}, {aws_release.NAME}=VERSION, table:FILE[,TUNER], nvidia:FILE.csv[,TUNER], {NONE}"
PLUGIN_VARIABLE = "NCCL_TUNER_PLUGIN"


def of_machine(machine: str | None, environment: Mapping[str, str], nccl: Release) -> TunerPlugin | None:
    """The tuner that a machine's images load by themselves, if it decides anything for the machine.

    ``environment`` has the variables that were set: NCCL's and the plugin's own, OFI_NCCL_*. Returns None if no tuner
    is known, for example if NCCL_TUNER_PLUGIN names another library. If NCCL_TUNER_PLUGIN is ``none``, some releases
    look for a file of this name, and keep the network plugin's tuner. Other releases then turn tuners off, but the
    network plugin still sets its variables.
    """
    product, plugin = product_of(machine), environment.get(PLUGIN_VARIABLE)
    if product is None:
        return None
    if nccl.plugin is None:
        return None
    is_none = plugin is not None and plugin.lower() == NONE
    if plugin and not is_none and not aws_release.is_named_by(plugin):
        return None
    if is_none and not (nccl.plugin.none_turns_off or nccl.plugin.network_has_one):
        return None
    if aws_release.load(aws_release.of_images()).platform(product) is None:
        return None
    if is_none and nccl.plugin.none_turns_off:
        environment = {**environment, TYPE: INTERNAL}
    return named(aws_release.NAME, machine, environment, nccl)


def named(text: str, machine: str | None, environment: Mapping[str, str], nccl: Release) -> TunerPlugin | None:
    """The tuner that a user names (see ``VALID``), on a machine of the catalogue or on another (None); None if no tuner
    is named.

    A text that names a file may also name a second tuner after the file. If the file decides nothing for a call, the
    second tuner is asked; by default, it is the tuner that the machine's images load.

    BadInput for an unknown name or release, or a tuner that is not public. BadTable if the file is invalid.
    """
    kind, _, file = text.partition(":")
    if kind in FILES and file:
        from tuner.plugin.asked import FileTuner  # with the plugin's own code, which nothing else here needs

        path, comma, next_name = file.rpartition(",")
        if comma and (next_name == NONE or next_name.startswith(aws_release.NAME)):
            return FileTuner(kind, Path(path), named(next_name, machine, environment, nccl))
        following = {name: value for name, value in environment.items() if name != PLUGIN_VARIABLE}
        return FileTuner(kind, Path(file), of_machine(machine, following, nccl), by_default=True)
    name, _, version = text.partition("=")
    if text == NONE:
        return None
    if name in NOT_PUBLIC:
        raise BadInput(f"the tuner {name} is not emulated: {NOT_PUBLIC[name]}; use {VALID}")
    if name != aws_release.NAME:
        raise BadInput(f"unknown tuner {text!r}; use {VALID}")
    version = aws_release.named(version) if version else aws_release.of_images()
    own = {variable: environment[variable] for variable in VARIABLES if variable in environment}
    return AwsTuner(aws_release.load(version), product_of(machine), own)


def product_of(machine: str | None) -> str | None:
    """The product name of the AWS instances that the catalogue has as this machine; None if it is no machine of AWS."""
    return None if machine is None else aws_release.products().get(catalogue.load(machine).name)


def with_tuner(scenario: Scenario, text: str | None) -> Scenario:
    """The scenario with the tuner that ``text`` names. If ``text`` is None, the tuner is the one that the scenario's
    log shows, or that the machine's images load.

    Variables of aws-ofi-nccl (OFI_NCCL_*) move from the environment to its tuner. BadInput for an unknown tuner, if
    there are variables of aws-ofi-nccl but its tuner is not used, for such variables that are not emulated, and if the
    nodes are different products. BadTable if the tuner's file is invalid.
    """
    environment = dict(scenario.environment or {})
    nccl = release.load(scenario.nccl)
    own = {name: value for name, value in environment.items() if name.startswith("OFI_NCCL_")}
    kept = {name: value for name, value in environment.items() if name not in own}
    own = {name: value for name, value in own.items() if all(name not in each.own for each in plugin_networks())}
    left = replace(scenario, environment=kept)
    products = {product_of(kind.machine) for kind in scenario.kinds}
    logged = scenario.from_log and scenario.from_log.tuner
    tuner: TunerPlugin | None
    if text is None and logged and logged.release in aws_release.names():
        variables = {name: own[name] for name in VARIABLES if name in own}
        product = logged.product or product_of(scenario.machine)
        tuner = AwsTuner(aws_release.load(logged.release), product, variables)
        left = replace(left, from_log=_with_its_tuner(scenario, tuner))
    elif text is None:
        # A log shows the tuner that chose; what images of the machine load by themselves says nothing there.
        unsaid = len(products) > 1 or scenario.from_log is not None
        tuner = None if unsaid else of_machine(scenario.machine, environment, nccl)
        if tuner is not None or environment.get(PLUGIN_VARIABLE, "").lower() == NONE:
            kept.pop(PLUGIN_VARIABLE, None)  # it is known what it leads to
    else:
        if len(products) > 1 and text != NONE:
            raise BadInput(f"the tuner {text} is not emulated if nodes are different products; use {NONE}")
        tuner = named(text, scenario.machine, environment, nccl)
    if own and not isinstance(getattr(tuner, "following", tuner), AwsTuner):
        says = f"{', '.join(own)}: only the tuner {aws_release.NAME} reads it; name that tuner, or remove it"
        raise BadInput(says).cured(*(Remedy("env", None, name) for name in own))
    if unknown := sorted(own.keys() - set(VARIABLES)):
        says = f"{', '.join(unknown)}: not emulated; valid: {', '.join(VARIABLES)}"
        raise BadInput(says).cured(*(Remedy("env", None, name) for name in unknown))
    return replace(left, tuner=tuner)


def _with_its_tuner(scenario: Scenario, tuner: AwsTuner) -> "FromLog":
    """What the log says, without the warning that a tuner chose that is not emulated: the scenario's tuner replaces
    it.
    """
    from tuner.scenario.logs.checks.communication import TUNER_CHOOSES  # with the reader of logs

    said = scenario.from_log
    assert said is not None
    from tuner.base.findings import words  # most descriptions are no logs

    warning = [words(each) for each in said.findings if each.code == TUNER_CHOOSES]
    notes = (f"{tuner.title} chooses, as the log says", *(note for note in said.notes if note not in warning))
    return replace(said, notes=notes)


def notes(scenario: Scenario) -> Iterator[str]:
    """Yields sentences about the scenario's tuner: why it leaves every choice to NCCL, if it does, and which variables
    its network plugin sets. BadInput for what is not emulated.
    """
    tuner = scenario.tuner
    if tuner is None:
        return
    if (reason := tuner.why_not(scenario.communicator())) is not None:
        yield f"{tuner.title} leaves every choice to NCCL here: {reason}"
    set_ = [f"{name}={value}" for name, value in tuner.settings.items() if name not in (scenario.environment or {})]
    if set_:
        yield f"{tuner.title} sets {', '.join(set_)}, as its network plugin does if they are not set"


@dataclass(frozen=True, slots=True)
class TunerWord:
    """A tuner's answer for one size, and what NCCL would pick without the tuner.

    ``region`` numbers the tuner's region that decides, from 1 on; 0 if none does.
    """

    tuner: str
    says: str
    alone: Pick = field(metadata=json_form("nccl_alone"))
    region: int | None = field(default=None, metadata=json_form(optional=True))
    platform: str | None = field(default=None, metadata=json_form(optional=True))

    @property
    def sentence(self) -> str:
        """The whole answer as one sentence."""
        alone = f"NCCL alone would take {self.alone.name}, {self.alone.channels} channels, {self.alone.time_us:.2f} us"
        return f"{self.tuner}: {self.says}; {alone}"


def word_of(selection: Selection, request: Request, size: int) -> TunerWord | None:
    """What the communicator's tuner answers for a call of ``size`` bytes (nBytes); None without a tuner.

    NoAlgorithm if nothing can run, BadInput for what is not emulated.
    """
    communicator = selection.communicator
    tuner = communicator.tuner
    if tuner is None:
        return None
    (alone,) = of_picks(selection.alone.pick(request, size))
    (picked,) = of_picks(selection.pick(request, size))
    answers = selection.tuner_answers(request, selection.pick(request, size).bytes)
    named = int(answers.channels[0])
    channels = f" on {named} channels" if named else ""
    if answers.cell[0] < 0:
        return TunerWord(tuner.title, f"leaves the choice for this {request.collective.name} to NCCL", alone)
    if not isinstance(tuner, AwsTuner) or answers.region is None:
        return TunerWord(tuner.title, f"says {picked.name}{channels}", alone)
    number, platform = int(answers.region[0]), (tuner.release.platform(tuner.product) or "any machine")
    per_node = communicator.ranks // communicator.nodes
    where = (
        f"region {number} of {request.collective.name} on {platform} with {per_node} rank{'s' * (per_node > 1)} a node"
    )
    return TunerWord(tuner.title, f"{where} says {picked.name}{channels}", alone, number, platform)
