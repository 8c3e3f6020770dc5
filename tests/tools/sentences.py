"""List the sentences of chapters that state more than a cell of their page asserts.

A sentence has to be asserted if it has one of these:

- **a number** of more than twelve, with a decimal point, in per cent, or as a factor (``0.0066``, ``3 %``, ``forty``).
  It is asserted if its value, rounded as in the sentence, is a constant of an assertion on the page, or of a cell of
  the same section that has an assertion: what the cell runs with is a condition of its result.
- **a ratio in words** (*twice the*, *a third of*). A cell of the same section, with an assertion, has the value.
- **a word of ``WORDS``**, such as *exactly*. An assertion of a cell near the sentence can show what the word says: for
  *exactly* an equality, for *always* one over many cases, for *far* a comparison with a factor. What the book does not
  cover no cell can show.

*Near* are the last cell before and the first after, in the same section. Calls of ``derive`` and ``check`` count as
assertions. Prose is that of takeaways, exercises, and solutions as well, and of captions. A question states nothing.

``sentences.toml`` lists the other sentences, each with its reason, by kinds of reason: ``"page: its first words [what is
not asserted]"``. An entry that ends with ``…`` stands for all that begin so. The check fails for a sentence that is
neither asserted nor listed, and for an entry whose sentence is gone. ``make lint`` runs it.
"""

import ast
import re
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_suffix(".toml")
FILES = ("intro.md", "chapters/**/*.md")
FIRST_WORDS = 9  # of a sentence, in its entry

FENCE = re.compile(r"(?P<fence>`{3,}|~{3,}|:{3,})(?:\{(?P<name>[\w-]+)\})?(?P<rest>.*)")
HOLD_PROSE = ("admonition", "exercise-start", "exercise-end", "solution-start", "solution-end")
# Not prose: roles, addresses, and code.
HIDDEN = (
    (r"\{[\w:]+\}`[^`]*`", ""),
    (r"\]\([^()]*(?:\([^()]*\)[^()]*)*\)", "]"),
    (r"<[^<>]*>", ""),
    (r"`+[^`]*`+", "CODE"),
)
# Numbers that only name a thing: a model, a version, a line, a part of another text, a number format.
NAMES = (
    r"\(\d+\)",
    r"§+ ?[\d.]+(?: ?[-–] ?[\d.]+)?",
    r"\d+[- ]bits?\b",
    r"#\d+",
    r"\bcapability \d\.\d",
    r"\b(?:first|second|last|other|own|both|each) hal(?:f|ves)\b",
    r"\b(?:Llama|Qwen|GPT|Mistral|Gemma|Phi|PyTorch|Python|Face|CUDA|Triton|ZeRO|MPT|Nemotron|version|section|table"
    r"|equation|page|level|CC BY|theorem|lemma|figure|chapter|PR|issue|pages|lines?|sections|listing)s?[- ]\(?v?\d[\d.]*(?: (?:to|and|–) \d+)?"
    r"(?: \d+(?:\.\d+)?[BM]\b)?",
)
SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
PREFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
PREFIXES |= {f"{prefix}i": 2.0 ** (10 * at) for at, prefix in enumerate(PREFIXES, 1)}
NUMBER = re.compile(
    r"(?<![\w.\-–/#^_{])(?P<digits>\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)(?![\w]|[.,]\d)"
    r"(?P<factor>[ -]?(?:%|per cent\b)|×| times\b)?"
    rf"(?: (?:(?P<scale>{'|'.join(SCALES)})|(?P<prefix>[KMGT]i?)(?:B|FLOP))\b)?"
)
SMALL = 12  # integers up to here are counts of things on the page
IN_WORDS = {word: at for at, word in enumerate("two three four five six seven eight nine ten".split(), 2)}
UNITS = tuple(IN_WORDS)[:-1]
_TO_19 = "eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety hundred"
IN_WORDS |= {word: at for at, word in enumerate(_TO_19.split(), 11)}
IN_WORDS |= {word: 10 * at for at, word in enumerate(_TENS.split(), 2)} | {"thousand": 1000}
_PARTS = "half third quarter fifth sixth seventh eighth ninth tenth"
PARTS = {word: at for at, word in enumerate(_PARTS.split(), 2)} | {"hundredth": 100, "thousandth": 1000}
_LARGE = "|".join(word for word, value in IN_WORDS.items() if value > SMALL)
WORD_NUMBER = re.compile(
    rf"\b(?:(?P<large>(?:{_LARGE})(?:-(?:{'|'.join(UNITS)})\b)?)(?![-\w])(?! (?:thousand|million|billion))"
    rf"|(?P<factor>{'|'.join(IN_WORDS)})(?= times (?:as|the|its|their|that|more|larger|longer|smaller)\b| per cent\b))",
    re.IGNORECASE,
)
RATIO = re.compile(
    r"\b(?:(?P<twice>twice|double)(?= (?:as|the|its|their|that|of)\b)"
    r"|(?:(?P<count>a|one|two|three|four|five) )?"
    rf"(?P<part>{'|'.join(PARTS)})s?(?= (?:of|the|as|a per cent|more|less|larger|smaller)\b))",
    re.IGNORECASE,
)


@dataclass
class Cell:
    """A code cell: the constants of its assertions, all of its constants, and its assertions."""

    line: int
    tree: ast.AST
    assertions: list[ast.AST] = field(default_factory=list)
    asserted: set[float] = field(default_factory=set)
    constants: set[float] = field(default_factory=set)


# How an assertion can show what a word says


def _called(node: ast.AST) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""


def _asserts(node: ast.AST) -> bool:
    """Whether it raises an error where something does not hold: an assertion, a derivation, a check."""
    checks = _called(node) == "check" and all(keyword.arg != "raises" for keyword in node.keywords)
    return isinstance(node, ast.Assert) or _called(node) == "derive" or checks


def _equality(cell: Cell) -> bool:
    """Whether an assertion is an equality, the denial of any difference, or a derivation."""
    return any(
        (isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.Is | ast.In) for op in node.ops))
        or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
        or "equal" in _called(node)
        or _called(node) in ("derive", "check")
        for assertion in cell.assertions
        for node in ast.walk(assertion)
    )


def _over_many(cell: Cell) -> bool:
    """Whether an assertion covers many cases, or something that has to raise an error."""
    many = {"all", "any", "max", "min", "allclose", "array_equal", "equal", "derive", "check"}
    return any(
        _called(node) in many or isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp)
        for assertion in cell.assertions
        for node in ast.walk(assertion)
    ) or any(
        (isinstance(node, ast.For | ast.While) and any(isinstance(part, ast.Assert) for part in ast.walk(node)))
        or isinstance(node, ast.Try)
        or _called(node) == "raises"
        for node in ast.walk(cell.tree)
    )  # fmt: skip


def _with_factor(cell: Cell) -> bool:
    """Whether an assertion is an inequality with a number other than 0 and 1."""
    return any(
        isinstance(node, ast.Compare)
        and any(isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops)
        and bool(_constants(node, indices=False) - {0, 1})
        for assertion in cell.assertions
        for node in ast.walk(assertion)
    )


def _never(cell: Cell) -> bool:
    return False


WORDS: dict[str, Callable[[Cell], bool]] = {
    r"(?<!the )exact(?:ly)?": _equality,
    r"always|never|cannot|nowhere": _over_many,
    r"(?<!so )(?<!as )(?<!how )far|barely": _with_factor,
    r"(?:do|does|is|are) not cover(?:ed)?|(?:this book|the book|Backpass) (?:has|covers|does) no\w*": _never,
}


# A page


def _value(node: ast.AST) -> float | None:
    """Return the value of an expression of constants, or None."""
    if isinstance(node, ast.Constant):
        return float(node.value) if type(node.value) in (int, float) and abs(node.value) < 1e300 else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _value(node.operand)  # signs are left to words
    if isinstance(node, ast.BinOp):
        a, b = _value(node.left), _value(node.right)
        if isinstance(node.right, ast.UnaryOp) and b is not None:
            b = -b
        try:
            match node.op:
                case _ if a is None or b is None:
                    return None
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return abs(a - b)
                case ast.Mult():
                    return a * b
                case ast.Div() | ast.FloorDiv():
                    return a / b
                case ast.Pow():
                    return float(a**b)
        except (ArithmeticError, ValueError):
            pass
    return None


def _is_index(node: ast.AST, part: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and part is node.slice


def _constants(tree: ast.AST, indices: bool = True) -> set[float]:
    """Return the numbers in a piece of code, those in its strings included; without those of indices on request."""
    found, left = set(), [tree]
    while left:
        node = left.pop()
        left += [part for part in ast.iter_child_nodes(node) if indices or not _is_index(node, part)]
        if (value := _value(node)) is not None:
            found.add(abs(value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            digits = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", node.value)
            found |= {float(each.replace(",", "")) for each in digits}
            found |= {part for sign in node.value if (part := unicodedata.numeric(sign, 0)) % 1}  # such as ½
    return found


def _cell(line: int, source: str) -> Cell:
    source = re.sub(r"(?m)^(\s*)[%!].*$", r"\1pass", source)
    cell = Cell(line, ast.parse(source))
    cell.assertions = [node for node in ast.walk(cell.tree) if _asserts(node)]
    cell.asserted = set().union(*map(_constants, cell.assertions))
    cell.constants = _constants(cell.tree) if cell.assertions else set()
    return cell


def _captions(cell: Cell) -> Iterator[tuple[int, str]]:
    """Yield the captions of a cell's figures; what they compute is hidden."""
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.keyword) and node.arg == "caption":
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            said = [part.value if isinstance(part, ast.Constant) else "CODE" for part in parts]
            if all(isinstance(part, str) for part in said) and len(" ".join(said).split()) > 1:
                yield cell.line + node.value.lineno, "".join(said)


def blocks(page: str) -> list[tuple[str, int, str]]:
    """Return the headings, cells, and paragraphs of a page, in order: the kind, the line, the text."""
    lines, found, paragraph, open_ = page.split("\n"), [], [], []
    at = lines.index("---", 1) + 1 if lines[0] == "---" else 0

    def end() -> None:
        if paragraph:
            found.append(("prose", at - len(paragraph) + 1, "\n".join(paragraph)))
            paragraph.clear()

    while at < len(lines):
        line, fence = lines[at], FENCE.fullmatch(lines[at])
        if fence and not fence["name"] and not fence["rest"].strip() and open_:
            end()
            open_.pop()
        elif fence and (fence["name"] or "").startswith(HOLD_PROSE):
            end()
            open_.append(fence["fence"])
            while lines[at + 1].startswith(":"):
                at += 1
        elif fence:
            end()
            start, at = at + 1, at + 1
            while not (lines[at].startswith(fence["fence"]) and not lines[at].strip(fence["fence"][0])):
                at += 1
            if fence["name"] == "code-cell":
                while lines[start].startswith(":"):
                    start += 1
                found.append(("cell", start, "\n".join(lines[start:at])))
        elif line.startswith("#"):
            end()
            found.append(("heading", at + 1, line))
        elif (
            not line.strip()
            or line.startswith("%" if paragraph else ("%", "    "))
            or re.fullmatch(r"\([\w-]+\)=", line)
        ):
            end()
        else:
            if re.match(r"\s*(?:[-*]|\d+\.) |\|", line):
                end()
            paragraph.append(line)
        at += 1
    end()
    return found


def split(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return re.split(r"(?<=[.!?])[\"”)*]*\s+(?=[A-Z“\"*\[`$(\\])", paragraph)


def _numeric(formula: re.Match) -> str:
    """Return a formula that is one number as this number, and others as a name."""
    text = formula[1].replace("{,}", ",").replace("\\,", "").replace("\\%", " %")
    text = re.sub(
        r"(?:(\d[\d.]*) ?\\(?:cdot|times) ?)?10\^\{?(-?\d+)\}?", lambda m: f"{m[1] or 1}e{m[2]}", text
    )
    text = re.sub(r"^ *(?:[-−<>≈]|\\(?:approx|le|ge|pm|times))* *", "", text)
    return text if re.fullmatch(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?: ?%|\\times)?", text) else "FORMULA"


def plain(sentence: str) -> str:
    """Return the sentence without code, addresses, and formulas; numbers in formulas of their own stay."""
    for pattern, instead in HIDDEN:
        sentence = re.sub(pattern, instead, sentence)
    sentence = re.sub(r"\$([^$]*)\$", _numeric, sentence)
    for pattern in NAMES:
        sentence = re.sub(pattern, "NAME", sentence, flags=re.IGNORECASE)
    return " ".join(sentence.split())


def _numbers(said: str) -> Iterator[tuple[str, Callable[[set[float]], bool]]]:
    """Yield each number of a sentence that has to be asserted, and how to recognise it among constants."""
    for match in NUMBER.finditer(said):
        digits, factor = match["digits"], match["factor"] or ""
        value = float(digits.replace(",", ""))
        plain_integer = (
            re.fullmatch(r"\d+", digits) and not factor and not match["scale"] and not match["prefix"]
        )
        if plain_integer and (value <= SMALL or 1900 <= value < 2100):
            continue
        mantissa, _, exponent = digits.partition("e")
        half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2])) * (1 + 1e-9)
        units = [1.0]
        units += [SCALES[match["scale"]]] if match["scale"] else []
        if match["prefix"]:
            units += [PREFIXES[match["prefix"]], PREFIXES[match["prefix"][0]], *PREFIXES.values()]
        percent = "%" in factor or "per cent" in factor

        def held(constants: set[float], value=value, half=half, units=units, percent=percent) -> bool:
            forms = [lambda c: c]
            if percent:
                forms += [lambda c: 100 * c, lambda c: 100 * abs(c - 1)]
            return any(
                abs(form(constant / unit) - value) <= half
                for constant in constants
                for unit in units
                for form in forms
            )

        yield match[0].strip(), held
    for match in WORD_NUMBER.finditer(said):
        parts = (match["large"] or match["factor"]).lower().split("-")
        number = float(sum(IN_WORDS[part] for part in parts))
        values = {number, 1 / number} if match["factor"] else {number}
        values |= {number / 100} if said.startswith("per cent", match.end() + 1) else set()
        yield match[0], lambda constants, values=values: bool(values & constants)


def _ratios(said: str) -> Iterator[tuple[str, set[float]]]:
    """Yield each ratio of a sentence in words, and the constants that stand for it."""
    for match in RATIO.finditer(said):
        of = 2 if match["twice"] else PARTS[match["part"].lower()]
        count = {"two": 2, "three": 3, "four": 4, "five": 5}.get((match["count"] or "").lower(), 1)
        if not (match["part"] and not match["count"] and match["part"] != "half"):
            yield match[0], {float(of), count / of, of / count}


def unasserted(page: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yield each sentence of a page that no cell asserts: its line, the sentence, and what is not asserted."""
    items: list[tuple[str, int, object]] = []
    for kind, line, text in blocks(page):
        if kind == "cell":
            cell = _cell(line, text)
            items.append(("cell", line, cell))
            items.extend(("prose", at, said) for at, said in _captions(cell))
        else:
            items.append((kind, line, text))
    sections = [0]
    for kind, _, _ in items:
        sections.append(sections[-1] + (kind == "heading"))
    sections = sections[1:]
    cells = [(at, each) for at, (kind, _, each) in enumerate(items) if kind == "cell"]
    asserted = set().union(*(cell.asserted for _, cell in cells))
    for at, (kind, line, text) in enumerate(items):
        if kind != "prose":
            continue
        here = [(place, cell) for place, cell in cells if sections[place] == sections[at]]
        ran_with = set().union(*(cell.constants for _, cell in here))
        near = [cell for place, cell in here if place < at][-1:] + [
            cell for place, cell in here if place > at
        ][:1]
        offset = 0
        for sentence in split(text):
            offset = text.index(sentence, offset)
            said = plain(sentence)
            if said.endswith("?"):
                continue
            missing = [number for number, held in _numbers(said) if not held(asserted | ran_with)]
            missing += [ratio for ratio, values in _ratios(said) if not values & ran_with]
            for pattern, shown in WORDS.items():
                if not any(shown(cell) for cell in near):
                    missing += [match[0] for match in re.finditer(rf"\b(?:{pattern})\b", said, re.IGNORECASE)]
            if missing:
                yield line + text.count("\n", 0, offset), sentence, missing


def entry(path: str, sentence: str, missing: list[str]) -> str:
    """Return a sentence's entry in the list."""
    first = re.sub(r"[\"\\]", "", sentence).replace("**", "").split()[:FIRST_WORDS]
    return f"{path.removeprefix('chapters/')}: {' '.join(first)} [{', '.join(dict.fromkeys(missing))}]"


def main() -> int:
    """Compare the chapters with the list, and return the exit status."""
    kinds = tomllib.loads(LIST.read_text())
    listed = {each: reason for reasons in kinds.values() for each, reason in reasons.items()}
    whole = [each for each in listed if each.endswith("…")]
    wrong, there = [], set()
    for path in sorted(path for files in FILES for path in ROOT.glob(files)):
        name = str(path.relative_to(ROOT))
        for line, sentence, missing in unasserted(path.read_text()):
            key = entry(name, sentence, missing)
            held = {key} | {each for each in whole if key.startswith(each.removesuffix("…"))}
            there |= held
            if not held & listed.keys():
                wrong.append(f'{name}:{line}: no cell asserts this; assert it, say less, or list it: "{key}"')
    wrong += [
        f'{LIST.name}: no such sentence; delete the line: "{key}"' for key in listed if key not in there
    ]
    wrong += [f'{LIST.name}: give a reason: "{key}"' for key, reason in listed.items() if not reason.strip()]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
