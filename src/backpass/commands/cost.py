"""``backpass cost``: print what a training step of a network costs."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from backpass import cost
from backpass.commands.command import JSON, Command, Option, number, switch, value
from backpass.commands.output import say
from backpass.commands.plan import OPTIONS as OF_PLAN
from backpass.commands.plan import Plan
from backpass.cost import published
from backpass.cost.cluster import CLUSTERS
from backpass.cost.itemised import called
from backpass.cost.sizes import network_of
from backpass.cost.steps import published_steps
from backpass.cost.tally import CONVENTIONS, Tally
from backpass.models.layers.recomputed import OPERATIONS, Recompute, divided
from backpass.text import terminal
from backpass.text.table import aligned

EPILOG = """\
examples:
  backpass cost gpt2-124m --sequence 1024
  backpass cost llama-3-70b --sequence 8192 --flash --recompute
  backpass cost --config config.json --convention products-whole
  backpass cost llama-3-8b --sequence 8192 --flash --tokens 300B --price 2.5
  backpass cost gpt2-124m --recompute attention,feed_forward --json
  backpass cost llama-3-70b --batch 1024 --sequence 8192 --flash \\
      --mesh data=32,tensor=8,pipeline=4 --cluster h100

A network is a preset, or a Hugging Face config.json of GPT-2, Llama, Mistral,
Qwen2, or Qwen3. The first lines say whether a step with AdamW in bfloat16 fits
into the memory of a GPU, its predicted time, and what a run takes. At best, the
time is that at published peaks; published runs reached about two thirds of the
predicted rate. The sum of the memory is not its peak.

The FLOPs are those of one training step, without the optimiser's. Model FLOPs
exclude recomputation, and hardware FLOPs include it. --json lists the totals
under every convention ("total", and "model" for model FLOPs) and by published
formulas, such as 6N; --csv lists every term under every convention. With --mesh
the step runs on a mesh of ranks with the axes data, tensor, context, and
pipeline, and chunks of a stage; the command then prints what takes the time, and
the memory of the rank that holds most, in place of the FLOPs. Exits with 2 if
the command is invalid.
"""
_UNITS = ("", "k", "M", "G", "T", "P", "E", "Z")


def run(arguments: argparse.Namespace) -> int:
    """Print the tally; return the exit status."""
    try:
        name, config = _network(arguments)
        if arguments.mesh is not None:
            return _run_on_mesh(name, config, arguments)
        tally = cost.tally(
            config,
            arguments.batch,
            arguments.sequence,
            flash=arguments.flash,
            recompute=arguments.recompute,
        )
        flops = tally.flops(arguments.convention)
        plan = None if arguments.csv else _plan(config, arguments)
    except OSError as error:
        arguments.parser.error(f"{error.filename}: {error.strerror}")
    except (LookupError, TypeError, ValueError) as error:
        arguments.parser.error(str(error.args[0]))
    if plan is None:
        say(tally.csv().rstrip("\n"))
    elif arguments.json:
        facts = _facts(name, arguments, tally, config) | plan.facts()
        say(json.dumps(facts, indent=2))
    else:
        say(_heading(name, tally.parameters, arguments), *plan.lines(), "")
        say(*_lines(arguments, tally, flops), "", repr(plan.budget))
    return 0


def _plan(config: Any, arguments: argparse.Namespace) -> Plan:
    """Return the plan of a step on one GPU."""
    batch, sequence, machine = arguments.batch, arguments.sequence, arguments.cluster
    options: dict[str, Any] = {"dtype": "bfloat16", "flash": arguments.flash}
    options |= {"recompute": arguments.recompute, "chunked": False}
    budget = cost.memory_budget(config, batch, sequence, **options)
    budget = replace(budget, title="Memory of a step with AdamW, in bfloat16")
    seconds = cost.duration(config, batch, sequence, machine, **options).seconds
    return Plan(machine, 1, budget, seconds, batch * sequence, arguments)


def _run_on_mesh(name: str, config: Any, arguments: argparse.Namespace) -> int:
    """Print the time of a step on a mesh, and the memory of a rank; return the exit
    status."""
    if arguments.csv or arguments.recompute not in (None, 1):
        wrong = "--csv" if arguments.csv else "--recompute of less than every layer"
        raise ValueError(f"--mesh: {wrong} is not available")
    mesh, batch, sequence = arguments.mesh, arguments.batch, arguments.sequence
    flags = {"flash": arguments.flash, "recompute": arguments.recompute is not None}
    network, machine = arguments.preset or config, arguments.cluster
    step = cost.mesh_step(network, mesh, machine, batch, sequence, **flags)
    memory = cost.mesh_memory(network, mesh, batch, sequence, **flags)
    plan = Plan(machine, mesh.ranks, memory, step.seconds, step.tokens, arguments)
    if not arguments.json:
        parameters = network_of(config).parameters
        say(_heading(name, parameters, arguments), *plan.lines(), "")
        say(repr(step), "", repr(memory))
        return 0
    facts = {
        "network": name,
        "batch": batch,
        "sequence": sequence,
        "mesh": vars(mesh),
        "shares": dict(step.shares),
        "mfu": {name: step.mfu(name) for name in CONVENTIONS},
    }
    say(json.dumps(facts | plan.facts(), indent=2))
    return 0


def _mesh(text: str) -> cost.Mesh:
    """Return the mesh, for argparse."""
    sizes: dict[str, int] = {}
    axes = [*cost.Mesh.__dataclass_fields__]
    for part in text.split(","):
        axis, _, size = part.partition("=")
        if axis not in axes or axis in sizes or not size.isdecimal():
            raise argparse.ArgumentTypeError(
                f"expected sizes of axes among {', '.join(axes)}, such as "
                f"data=4,tensor=8; got {part!r}"
            )
        sizes[axis] = int(size)
    try:
        return cost.Mesh(**sizes)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _recompute(text: str) -> Recompute:
    """Return the number of layers, or the names, for argparse."""
    chosen: Recompute
    try:
        chosen = int(text)
    except ValueError:
        chosen = text.split(",")
    if isinstance(chosen, int) and chosen < 1:
        raise argparse.ArgumentTypeError(
            "expected an integer of at least 1, the layers in a segment, or names of "
            f"operations; got {text}"
        )
    if _is_network(text):
        raise argparse.ArgumentTypeError(
            f"put the preset before --recompute: backpass cost {text} --recompute"
        )
    try:
        divided(chosen, None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return chosen


def _is_network(name: str) -> bool:
    """Return whether ``configuration`` has a network of this name."""
    try:
        cost.configuration(name)
    except LookupError:
        return False
    return True


def _network(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Return the name and the configuration. Raises what ``run`` reports."""
    if (arguments.preset is None) == (arguments.config is None):
        raise ValueError("expected PRESET or --config FILE, one of the two")
    if arguments.preset:
        return arguments.preset, cost.configuration(arguments.preset)
    try:
        text = Path(arguments.config).read_text(encoding="utf-8")
        return arguments.config, cost.from_hugging_face(json.loads(text))
    except UnicodeDecodeError as error:
        raise ValueError(f"{arguments.config}: expected UTF-8; {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{arguments.config}: expected JSON; {error}") from error


def _facts(
    name: str, arguments: argparse.Namespace, tally: Tally, config: Any
) -> dict[str, Any]:
    sizes = config, arguments.batch, arguments.sequence
    steps, model = published_steps(*sizes), tally.model()
    return {
        "network": name,
        "batch": arguments.batch,
        "sequence": arguments.sequence,
        "flash": arguments.flash,
        "recompute": arguments.recompute is not None,
        "recomputed": arguments.recompute,  # layers in a segment, or operations
        "parameters": tally.parameters,
        "flops": {name: tally.flops(name) for name in CONVENTIONS},
        "total": {name: tally.total(name) for name in CONVENTIONS},
        "model": {name: model.total(name) for name in CONVENTIONS},
        "published": {
            name: float(flops) if flops % 1 else int(flops)
            for name, flops in steps.items()
        },
        "formulas": {name: _assumptions(name) for name in steps},
    }


def _assumptions(name: str) -> dict[str, Any]:
    """Return what a published formula says, its source, and what it counts."""
    formula = published.named(name)
    facts = ("says", "citation", "attention", "embedding", "head", "recomputed")
    return {fact: getattr(formula, fact) for fact in facts}


def _heading(name: str, parameters: int, arguments: argparse.Namespace) -> str:
    sizes = f"batch {arguments.batch}, sequence {arguments.sequence}"
    return ", ".join([f"{name}: {parameters:,} parameters", sizes, *_chosen(arguments)])


def _chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the options by which a step computes something twice, in words."""
    found = ["flash attention"] if arguments.flash else []
    if arguments.recompute is not None:
        found.append(f"{_said(arguments.recompute)} recomputed")
    return found


def _lines(
    arguments: argparse.Namespace, tally: Tally, flops: dict[str, int]
) -> list[str]:
    convention, total = arguments.convention, sum(flops.values())
    ways = [way for way, count in flops.items() if count or way != "recomputation"]
    groups = tally.by(called, convention)
    of_backward = "backward, with recomputation," if len(ways) == 3 else "backward"
    rows = [("", *ways, "share")]
    for group, each in [*groups.items(), ("total", flops)]:
        whole = sum(each.values())
        if whole:
            numbers = (_short(each[way]) for way in ways)
            rows.append((group, *numbers, f"{whole / total:.1%}"))
    totals = {"total": total}
    if _chosen(arguments):
        model = tally.model().total(convention)
        totals |= {"model FLOPs": model, "hardware FLOPs": total}
    return [
        f"FLOPs of a step, {convention}: {CONVENTIONS[convention].says}",
        "",
        *aligned(rows, right=range(1, len(rows[0]))),
        "",
        *(f"{way:14}{flops[way]:>30,}" for way in ways),
        *(f"{name:14}{each:>30,}" for name, each in totals.items()),
        f"{of_backward} over forward: {tally.ratio(convention):.4f}",
    ]


def _said(recompute: Recompute) -> str:
    """Return what runs again, in words."""
    if isinstance(recompute, int):
        return "layers" if recompute == 1 else f"segments of {recompute} layers"
    return " and ".join(recompute or ())


def _short(number: int) -> str:
    """Return four digits and a unit: 43.49 G."""
    at = 0
    while number >= 1000 ** (at + 1) * 0.99995 and at + 1 < len(_UNITS):
        at += 1
    scaled = number / 1000**at
    digits = max(0, 3 - len(str(int(scaled)))) + 1 if at else 0
    return f"{scaled:.{min(digits, 2)}f} {_UNITS[at]}".rstrip()


def _epilog() -> str:
    presets = terminal.folded(f"presets: {', '.join(cost.presets())}", 78)
    conventions = [
        f"  {name:20}{convention.says}" for name, convention in CONVENTIONS.items()
    ]
    return "\n".join([EPILOG, *presets, "", "conventions:", *conventions])


COMMAND = Command(
    "cost",
    help="budget a network's training step: memory, time, price, and FLOPs",
    description="Print what a training step of a network costs, by operation.",
    options=(
        value("preset", "PRESET", "a published network, by name", nargs="?"),
        value("--config", "FILE", "a config.json, instead of a preset"),
        number("--batch", "sequences in a step", 1),
        number("--sequence", "tokens in a sequence", 1024),
        value("--convention", "NAME", "how to count; see below", "counted"),
        switch("--flash", help="use flash attention, as the package runs it"),
        value(
            "--recompute",
            "WHAT",
            "recompute in the backward: every layer, or with a number N segments "
            "of N layers, or operations, joined by commas: " + ", ".join(OPERATIONS),
            nargs="?",
            type=_recompute,
            const=1,
        ),
        value(
            "--mesh",
            "AXES",
            "predict time and memory on a mesh of ranks, such as data=4,tensor=8",
            type=_mesh,
        ),
        Option(
            "--cluster",
            choices=sorted(CLUSTERS),
            default="h100",
            help="the machine, or the machines of the mesh (default h100)",
        ),
        *OF_PLAN,
        (
            JSON.but(help="print JSON"),
            switch("--csv", help="print one row for each term"),
        ),
    ),
    run=run,
    epilog=_epilog(),
)
