"""``backpass claims``: find the claims that are nearest to a sentence."""

from __future__ import annotations

import argparse
import json
import textwrap

from backpass.commands.command import JSON, Command, Option, number, switch
from backpass.commands.output import folded, say

EPILOG = """\
Put SENTENCE in quotation marks. The claims that share most words with it are shown,
each with its number, verdict, and text, with what is right, the chapter that derives
it, and the function that checks it. On the book's page about the text, the number is a
link. Exits with 1 if no claim shares a word with the sentence, and with 2 if the
command is invalid.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the claims nearest to the sentence; return the exit status."""
    # Imported here because reading the claims imports PyTorch, which --help should not.
    from backpass_ledger.claims.ledger import text_of
    from backpass_ledger.claims.search import nearest

    if arguments.number < 1:
        arguments.parser.error(f"--number: expected at least 1; got {arguments.number}")
    found = nearest(arguments.sentence, arguments.number)
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
        return int(not found)
    if not found:
        say("No claim shares a word with this sentence.")
        return 1
    say(
        *folded("The nearest claims. A verdict is on the claim, not on your sentence."),
        "",
    )
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
    "Find the claims of other texts that are nearest to a sentence, each with its "
    "verdict and what is right.",
    (
        Option("sentence", metavar="SENTENCE", help="what is claimed"),
        number("--number", "how many claims to show", 3),
        switch("--check", help="show the code of each check too"),
        JSON,
    ),
    run,
    EPILOG,
)
