"""Finds the claims that are nearest to a sentence.

Each claim is indexed by its words, those of what it says, of what is right, and of its
place and topic, and by the first five letters of each word, so that "normalised" finds
"normalisation". The words of a sentence are weighted by how rare they are among the
claims (BM25, with the usual constants). The site ranks in the same way: its script,
`ledger.js`, has the same steps and reads the constants and the claims from here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from backpass_ledger.claims.ledger import TEXTS
from backpass_ledger.claims.record import Claim

K, B = (
    1.2,
    0.75,
)  # BM25: how soon repetitions stop counting, and how much length matters
STEM = 5  # letters
STEM_WEIGHT = 0.5  # relative to a whole word
TRUTH_WEIGHT = 0.4  # relative to what the claim says
PLACE_WEIGHT = 0.3  # of its section, its place, and its topic
# Maps American spellings and synonyms to one word.
SAME = {
    "optimizer": "optimiser",
    "normalize": "normalise",
    "layernorm": "layer norm",
    "rmsnorm": "rms norm",
    "checkpointing": "recomputation",
    "checkpoint": "recomputation",
    "gradients": "gradient",
    "derivative": "gradient",
    "flop": "flops",
    "multiplication": "product",
    "matmul": "matrix product",
    "backpropagation": "backward",
    "weights": "weight",
    "double": "twice",
    "doubles": "twice",
    "2x": "twice",
    "cost": "takes",
    "costs": "takes",
    "require": "takes",
    "requires": "takes",
    "needs": "takes",
    "lookup": "looking up",
    "costly": "expensive",
    "skip": "residual",
    "shortcut": "residual",
    "pre": "prenorm",
    "bf16": "bfloat",
    "bfloat16": "bfloat",
    "fp16": "float half",
    "float16": "float half",
}
COMMON = frozenset(
    "a an the of to in on and or is are be it its this that with for by pass as at from "
    "which than so not but if has have had was were will can may what when where each "
    "one all we you they their there these those into only also then does do".split()
)
_WORD = re.compile(r"[a-zα-ω]+\d*|\d+x\b|\d+(?:[.,]\d+)*", re.ASCII)
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)")
_LETTERS = re.compile(r"[a-zα-ω]+")
DIGITS = 9  # of a score: two ways to add the same numbers give one order


def nearest(sentence: str, number: int = 5) -> list[tuple[float, Claim]]:
    """Return the ``number`` claims nearest to a sentence, each with its score, the best
    first. Those that share no word with the sentence are left out."""
    weights, documents = _index()
    wanted, scored = dict.fromkeys(terms(sentence)), []
    whole = sum(weights.get(term, 0.0) for term in wanted)
    for document, claim in documents:
        shared = [term for term in wanted if term in document]
        if shared:
            # A claim that has all the words is nearer than one that has a rare one.
            part = sum(weights[term] for term in shared) / whole
            score = sum(weights[term] * document[term] for term in shared)
            scored.append((round(part * score, DIGITS), claim))
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].name))[:number]


def terms(text: str) -> list[str]:
    """Return the words of a text except stop words, and the stem of each, which ends
    with a star. Commands of LaTeX are left out."""
    plain = _COMMAND.sub(" ", text.lower())
    words = [same for word in _WORD.findall(plain) for same in _same(word)]
    words = [word for word in words if word not in COMMON]
    stems = (f"{word[:STEM]}*" for word in words if _LETTERS.fullmatch(word))
    return [*words, *stems]


def constants() -> dict[str, Any]:
    """Return what the site's script needs to rank as `nearest` does."""
    return {
        "k": K,
        "b": B,
        "stem": STEM,
        "stemWeight": STEM_WEIGHT,
        "truthWeight": TRUTH_WEIGHT,
        "placeWeight": PLACE_WEIGHT,
        "digits": DIGITS,
        "same": SAME,
        "common": sorted(COMMON),
    }


def _same(word: str) -> Iterable[str]:
    return SAME.get(word, word).split()


def _titled() -> Iterable[tuple[str, Claim]]:
    """Go through all claims, each after the title of its section."""
    for text in TEXTS:
        for part, title in text.titles.items():
            for claim in text.part(part):
                yield title, claim


@cache
def _index() -> tuple[dict[str, float], list[tuple[dict[str, float], Claim]]]:
    """Return the weight of each term, and each claim with the saturated counts of its
    terms."""
    counted = []
    for title, claim in _titled():
        terms_of = Counter(terms(claim.says))
        place = f"{title} {claim.where} {claim.topic}"
        for text, weight in ((claim.truth, TRUTH_WEIGHT), (place, PLACE_WEIGHT)):
            for term, count in Counter(terms(text)).items():
                terms_of[term] += weight * count  # type: ignore[assignment]
        counted.append((terms_of, claim))
    claims = len(counted)
    length = sum(terms_of.total() for terms_of, _ in counted) / claims
    found_in = Counter(term for terms_of, _ in counted for term in terms_of)
    weights = {
        term: math.log(1 + (claims - n + 0.5) / (n + 0.5))
        * (STEM_WEIGHT if term.endswith("*") else 1)
        for term, n in found_in.items()
    }
    documents = []
    for terms_of, claim in counted:
        share = K * (1 - B + B * terms_of.total() / length)
        saturated = {t: n * (K + 1) / (n + share) for t, n in terms_of.items()}
        documents.append((saturated, claim))
    return weights, documents
