"""Check the words of the project against the table in ``CONTRIBUTING.md``.

Reads what people read: docstrings, comments, messages (strings of several words), the names of tests, and the prose of
pages. Prints the file, the line, the words, and what to write instead; exits with 1 if there is anything to mend.
``make lint`` runs it.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("src/**/*.py", "tests/**/*.py", "ext/**/*.py", "benchmarks/*.py", "chapters/**/*.md", "*.md")
# Folders and files that are not read.
LEFT_OUT = (
    "tests/test_words.py",
    "tests/tools/words.py",
)
# What finds the words of a row of the table, by the row's second cell. A right use is excluded by the pattern.
PATTERNS = {
    # "refused" is also a verdict of `backpass derive`; see VERDICT.
    "refuse": r"refus(?:e|es|ed|ing|al|als)",
    "take": r"(?:takes?|taking|took) (?:an?|the|no|its|only|one|two|such|other)? ?(?:arguments?|options?|keywords?)",
    "is another": r"(?<!there\s)(?:is|are) another(?! \w+'s)",
    "but for": r"but for",
    "is no …": r"(?<!there\s)(?<!which\s)(?:is|are|was|were) no(?= \w)(?! (?:longer|more|less|later|larger|smaller|fewer|looser|better))",
    "numbers of 16 bits": r"numbers of (?:8|16|32|64) bits",
    "keep, make, let go": r"(?:keeps?|kept|makes?|made) for (?:the|its|a) backward|lets? go",
    # Heads are told apart, one cause is told from another, and a story is told.
    "tell": r"(?<!can\s)(?<!cannot\s)(?<!norm\s)(?:tells?|told)(?! (?:(?:\S+ ){0,5}apart|(?:\S+ ){0,4}from|the story|otherwise))",
    "goes by": r"(?:goes|go|went|going) by(?! way)",
    # A symbol, a token, or a figure stands at its place.
    "stands": r"(?<!as\sit\s)(?<!as\sthey\s)(?<!token\s)(?<!where\sit\s)(?<!where\sthey\s)(?:stands?|standing)"
    r"(?!-| (?:for|in for|alone|last|still|side by|beside|next to|left|right|before|behind|between|above|below|outside|at|on))",
    "found": r"what (?:is|was|they|it) found",
}
# Where "refused" is the verdict that `backpass derive` prints.
VERDICT = (
    "src/backpass/commands/derive.py",
    "src/backpass/derivation/",
    "tests/commands/test_derive.py",
    "tests/derivation/",
    "tests/test_derive_magic.py",
    "chapters/",
)
HIDDEN = "\0"  # stands for what is not prose, so that no words are read across it


def instead() -> dict[str, str]:
    """Return the table of ``CONTRIBUTING.md``: what to write, by what not to write."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.search(r"\| we write \| rather than \|\n.*\n((?:\|.*\n)+)", text)[1].splitlines()
    return {right: left for left, right in (re.split(r"\s*\|\s*", row.strip("| ")) for row in rows)}


def _hidden(part: re.Match) -> str:
    return re.sub(r"[^\n]", HIDDEN, part[0])


def of_python(source: str) -> str:
    """Return the prose of a module, line by line; ``HIDDEN`` stands for the code between."""
    lines: list[list[str]] = [[] for _ in source.splitlines()]
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind, text = tokenize.tok_name[token.type], token.string
        if kind == "COMMENT":
            prose = text.lstrip("# ")
        elif kind == "FSTRING_MIDDLE":
            prose = text
        elif kind == "STRING" and len(text.split()) > 1:  # one word is a name
            prose = re.sub(r"""^[a-zA-Z]*("{3}|'{3}|"|')(.*)\1$""", r"\2", text, flags=re.DOTALL)
            prose = re.sub(r"\{[^{}]*\}", HIDDEN, prose) if text[0] in "fF" else prose
        elif before == "def" and text.startswith("test_"):
            prose = text.replace("_", " ")
        else:
            prose = HIDDEN if text.strip() else ""
        before = text
        for at, part in enumerate(prose.split("\n") if prose else ()):
            lines[token.start[0] - 1 + at].append(part)
    return "\n".join(" ".join(line).strip() for line in lines)


def of_page(source: str) -> str:
    """Return the prose of a page of Markdown, line by line, without cells, listings, and the table of words."""
    blank = re.compile(
        r"^---\n.*?^---\n|^(`{3,})(?:\{code-cell\}|\w|\n).*?^\1$|^%.*?$|<!--.*?-->|\$\$.*?\$\$|^\| we write .*?\n\n",
        re.DOTALL | re.MULTILINE,
    )
    return re.sub(r"(?m)^[ >]+| +$", "", blank.sub(_hidden, source))


def faults(path: str, source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each fault, the words, and the row of the table."""
    prose = (of_python if path.endswith(".py") else of_page)(source)
    # Literals, formulas, and addresses are no prose.
    prose = re.sub(r"``[^`]*``|`[^`\n]*`|\$[^$\n]*\$|\]\([^)\n]*\)|<[^>\n]*>", _hidden, prose)
    for row, pattern in PATTERNS.items():
        for match in re.finditer(rf"\b{pattern.replace(' ', chr(92) + 's+')}\b", prose, re.IGNORECASE):
            words = " ".join(match[0].split())
            if not (row == "refuse" and words == "refused" and path.startswith(VERDICT)):
                yield prose.count("\n", 0, match.start()) + 1, words, row


def main() -> int:
    """Check all files, or those that the command line names; return the exit status."""
    words = instead()
    if missing := words.keys() ^ PATTERNS.keys():
        print(
            f"CONTRIBUTING.md and {__file__}: expected the same words; only one has {', '.join(sorted(missing))}"
        )
        return 1
    paths = sys.argv[1:] or sorted(
        {str(path.relative_to(ROOT)) for files in FILES for path in ROOT.glob(files)}
    )
    found = 0
    for path in paths:
        if sys.argv[1:] or not path.startswith(LEFT_OUT):
            for line, said, row in sorted(faults(path, (ROOT / path).read_text())):
                found += 1
                print(f"{path}:{line}: {said}: write {words[row]}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
