"""All ranks of a run compared: groups, missing, ended and odd ranks, and the line that differs."""

from argparse import Namespace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from vramscope.commands import described
from vramscope.commands._document import Heading, print_answer
from vramscope.errors import UsageError

if TYPE_CHECKING:
    from vramscope.fleet import Engine

_FINDINGS_SHOWN = 6


def run(args: Namespace) -> int:
    """Print the comparison of all ranks; return the exit code."""
    from vramscope.analysis.findings import finding_as_json
    from vramscope.commands._comparison_page import comparison, comparison_as_json, shared_findings
    from vramscope.fleet import compared_run
    from vramscope.model.finding import Located

    if args.address is not None and args.engine != "ray":
        raise UsageError("--address is of a Ray cluster: add --engine ray")
    compared = compared_run(args.path, _engine(args), all_findings=args.all_findings)
    findings = [
        {**finding_as_json(Located(*each[:3])), "ranks": sorted({rank for rank, _ in each.of})}
        for each in compared.findings
    ]
    title = Heading(f"{compared.path.rstrip('/').rpartition('/')[2]}: its ranks compared", level=1)
    found = shared_findings(compared.findings, compared, _FINDINGS_SHOWN)
    blocks = chain([title], comparison(compared), found)
    return print_answer(args, lambda: comparison_as_json(compared) | {"findings": findings}, blocks)


def _engine(args: Namespace) -> "Engine":
    if args.engine == "ray":
        from vramscope.fleet.ray_engine import mapped_by_ray

        return partial(mapped_by_ray, address=args.address)
    from vramscope.commands._crew import crew

    return lambda work, inputs: crew(work, inputs, "reading ranks")


COMMAND = described("ranks", run)
