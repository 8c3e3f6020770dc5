"""``backpass claims``: find the claims that are nearest to a sentence."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from backpass.commands.command import JSON, Command, Option, number, switch
from backpass.commands.output import folded, say

EPILOG = """\
Put SENTENCE in quotation marks. The claims that share most words with it are shown,
each with its number, verdict, and text, with what is right, the chapter that derives
it, and the function that checks it. On the book's page about the text, the number is a
link. SENTENCE may also be the number of a claim, such as F435. Exits with 1 if there is
no such claim, or if no claim shares enough words with the sentence: --json then prints
an empty list, and the reason on standard error. Exits with 2 if the command is invalid.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the claims nearest to the sentence; return the exit status."""
    # Imported here because reading the claims imports PyTorch, which --help should not.
    from backpass_ledger.claims.ledger import text_of
    from backpass_ledger.claims.search import nearest, numbered, why_none

    if arguments.number < 1:
        arguments.parser.error(f"--number: expected at least 1; got {arguments.number}")
    found = nearest(arguments.sentence, arguments.number)
    if not found:
        if arguments.json:
            say("[]")
        print(why_none(arguments.sentence), file=sys.stderr if arguments.json else None)
        return 1
    if arguments.json:
        facts = [
            {
                "claim": claim.name,
                "text": text_of(claim).name,
                "where": claim.where,
                "verdict": claim.verdict.words,
                "says": claim.says,
                "right": claim.truth,
                "page": f"chapters/{claim.page}.md",
                "check": f"{claim.check.__module__}.{claim.name}",
            }
            for _, claim in found
        ]
        say(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    if not numbered(arguments.sentence):
        head = "The nearest claims. A verdict is on the claim, not on your sentence."
        say(*folded(head), "")
    for _, claim in found:
        verdict = f"{claim.verdict.sign} {claim.verdict.words}"
        lines = [
            f"“{claim.says}”",
            f"{verdict}. {claim.truth}" if claim.truth else verdict,
            f"Derivation: chapters/{claim.page}.md",
        ]
        if claim.code:
            lines.append(f"Check: {claim.check.__module__}.{claim.name}")
        say(f"{claim.name}, {text_of(claim).name}, {claim.where}:")
        for line in lines:
            say(*(textwrap.indent(each, "    ") for each in folded(line)))
        if arguments.check and claim.code:
            say("", textwrap.indent(claim.code, "    "))
        say("")
    return 0


COMMAND = Command(
    "claims",
    "look up a sentence about backpropagation in the ledger",
    "Find the claims of other texts that are nearest to a sentence, or the claim with a "
    "number, each with its verdict and what is right.",
    (
        Option(
            "sentence",
            metavar="SENTENCE",
            help="what is claimed, or the number of a claim",
        ),
        number("--number", "how many claims to show", 3),
        switch("--check", help="show the code of each check too"),
        JSON,
    ),
    run,
    EPILOG,
)
