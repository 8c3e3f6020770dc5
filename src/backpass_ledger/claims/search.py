"""Finds the claims that are nearest to a sentence.

Each claim is indexed by its words, those of what it says, of what is right, and of its
place and topic, and by the first five letters of each word, so that "normalised" finds
"normalisation". The words of a sentence are weighted by how rare they are among the
claims (BM25, with the usual constants). If no claim shares enough of the sentence's
words, none is near. The site ranks in the same way: its script, `ledger.js`, has the
same steps and reads the constants and the claims from here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from backpass_ledger.claims.ledger import TEXTS, Text
from backpass_ledger.claims.record import Claim

K, B = (
    1.2,
    0.75,
)  # BM25: how soon repetitions stop counting, and how much length matters
STEM = 5  # letters
STEM_WEIGHT = 0.5  # relative to a whole word
TRUTH_WEIGHT = 0.4  # relative to what the claim says
PLACE_WEIGHT = 0.3  # of its section, its place, and its topic
# A sentence has to share this part of its words, weighted by their rarity, with a
# claim. In `tests/claims/test_search.py`, sentences that repeat a claim in other words
# share more, and sentences on subjects outside the ledger share less.
CLOSE = 0.285
LONG = 56.0  # the largest weight that all words of a sentence have: it may digress
STEM_SHARE = 0.75  # of a word, if only the stem is shared
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
    "need": "needs",
    "needed": "needs",
    "require": "needs",
    "required": "needs",
    "requires": "needs",
    "rotary": "rope",
    "flashattention": "flash attention",
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
_NUMBER = re.compile(r"\s*#?([A-Z])0*(\d+)\s*", re.IGNORECASE)
DIGITS = 9  # of a score: two ways to add the same numbers give one order


def nearest(sentence: str, number: int = 5) -> list[tuple[float, Claim]]:
    """Return the ``number`` claims nearest to a sentence, each with its score, the best
    first; none if no claim is close to it. Claims that share no word with the sentence
    are left out. If the sentence is the number of a claim, such as F43, return that
    claim."""
    if asked := numbered(sentence):
        return [(1.0, claim) for claim in asked[0].claims() if claim.name == asked[1]]
    rarity, documents = _index()
    weights = {
        term: rarity[term] * (STEM_WEIGHT if term.endswith("*") else 1)
        for term in terms(sentence)
        if term in rarity
    }
    rarest = _rarity(0, len(documents))
    words = {(word, stem): rarity.get(stem, rarest) for word, stem in _words(sentence)}
    length = min(sum(words.values()), LONG)
    whole, scored, closest = sum(weights.values()), [], 0.0
    for document, claim in documents:
        shared = [term for term in weights if term in document]
        if shared:
            # A claim that has all the words is nearer than one that has a rare one.
            part = sum(weights[term] for term in shared) / whole
            score = sum(weights[term] * document[term] for term in shared)
            scored.append((round(part * score, DIGITS), claim))
            closest = max(closest, _shared(words, document) / length)
    if closest < CLOSE:
        return []
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].name))[:number]


def why_none(sentence: str) -> str:
    """Return the reason why `nearest` finds no claim, in a sentence."""
    if asked := numbered(sentence):
        text, name = asked
        last = len(text.claims())
        return (
            f"No claim {name}: {text.name} has {text.letter}1 to {text.letter}{last}."
        )
    return "No close record: no claim shares enough words with this sentence."


def terms(text: str) -> list[str]:
    """Return the words of a text except stop words, and the stem of each, which ends
    with a star. Commands of LaTeX are left out."""
    words = _words(text)
    stems = (stem for word, stem in words if stem != word)
    return [*(word for word, _ in words), *stems]


def _words(text: str) -> list[tuple[str, str]]:
    """Return the words of a text except stop words, each with its stem. A word with
    digits is its own stem."""
    plain = _COMMAND.sub(" ", text.lower())
    words = [same for word in _WORD.findall(plain) for same in _same(word)]
    return [
        (word, f"{word[:STEM]}*" if _LETTERS.fullmatch(word) else word)
        for word in words
        if word not in COMMON
    ]


def _shared(
    words: Mapping[tuple[str, str], float], document: Mapping[str, float]
) -> float:
    """Return the weight of the words that a claim shares. A word counts for less if the
    claim has only its stem, or has it only in its correction or in its place."""
    return sum(
        weight
        * max(min(1, document.get(word, 0)), STEM_SHARE * min(1, document.get(stem, 0)))
        for (word, stem), weight in words.items()
    )


def numbered(sentence: str) -> tuple[Text, str] | None:
    """Return the text and the name of the claim whose number the sentence is, whether
    or not there is such a claim; None for any other sentence."""
    match = _NUMBER.fullmatch(sentence)
    found = [text for text in TEXTS if match and text.letter == match[1].upper()]
    return (found[0], f"{found[0].letter}{match[2]}") if match and found else None


def constants() -> dict[str, Any]:
    """Return what the site's script needs to rank as `nearest` does."""
    return {
        "k": K,
        "b": B,
        "stem": STEM,
        "stemWeight": STEM_WEIGHT,
        "truthWeight": TRUTH_WEIGHT,
        "placeWeight": PLACE_WEIGHT,
        "close": CLOSE,
        "long": LONG,
        "stemShare": STEM_SHARE,
        "digits": DIGITS,
        "same": SAME,
        "common": sorted(COMMON),
    }


def _same(word: str) -> Iterable[str]:
    return SAME.get(word, word).split()


def _rarity(found_in: int, claims: int) -> float:
    """Return the rarity of a term that occurs in this many of the claims."""
    return math.log(1 + (claims - found_in + 0.5) / (found_in + 0.5))


def _titled() -> Iterable[tuple[str, Claim]]:
    """Go through all claims, each after the title of its section."""
    for text in TEXTS:
        for part, title in text.titles.items():
            for claim in text.part(part):
                yield title, claim


@cache
def _index() -> tuple[dict[str, float], list[tuple[dict[str, float], Claim]]]:
    """Return how rare each term is, and each claim with the saturated counts of its
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
    rarity = {term: _rarity(n, claims) for term, n in found_in.items()}
    documents = []
    for terms_of, claim in counted:
        share = K * (1 - B + B * terms_of.total() / length)
        saturated = {t: n * (K + 1) / (n + share) for t, n in terms_of.items()}
        documents.append((saturated, claim))
    return rarity, documents
