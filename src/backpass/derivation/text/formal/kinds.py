"""Of what kind a name is by its letter: a number, a vector, a matrix."""

from __future__ import annotations

import re
from collections.abc import Callable

from backpass.derivation.text.formal.trees import Node

_GREEK = (
    r"\\(?:Sigma|Lambda|Theta|Phi|Omega|Psi|Gamma|Delta|Xi|Pi|Upsilon|varSigma|varGamma"
    r"|varTheta|varLambda|varPhi|varPsi|varOmega|varPi|varXi|varDelta)"
)
_FACE = r"\\(?:mathbf|boldsymbol|bm|vec|pmb|underline)\{.*\}"
_LETTER = (
    rf"(?:[A-Z]|{_GREEK}|{_FACE}"
    r"|\\(?:mathcal|mathscr)\{[ABDF-IKM-Z]\}|\\mathbb\{[A-DF-OQS-UW-Z]\})"
)
_ARRAY = re.compile(
    rf"{_LETTER}|\\(?:mathsf|text)\{{.*\}}|\\(?:mathrm|mathit|mathtt|mathfrak)\{{{_LETTER}\}}"
    rf"|\\(?:hat|tilde|bar|mean|dot|ddot|check|breve|widehat|widetilde|overline)\{{{_LETTER}\}}"
)
_VECTOR = re.compile(
    r"[a-z]|\\(?:mathbf|boldsymbol|bm|vec|pmb)\{(?:[a-z]|\\[a-z]+)\}"
    r"|\\(?:beta|theta|mu|omega|phi|delta|varepsilon|epsilon|xi)"
    r"|\\(?:hat|tilde|bar|mean)\{(?:[a-z]|\\(?:mathbf|boldsymbol|bm)\{(?:[a-z]|\\[a-z]+)\}|\\[a-z]+)\}"
)
_SCALAR = re.compile(
    r"[nm]|\\text\{d\}|\\(?:alpha|lambda|eta|epsilon|varepsilon|kappa|rho|tau|pi)|e|\\delta"
)
_LOWER = re.compile(r"[a-z]|\\(?:sigma|epsilon|varepsilon|nu|lambda|hat\{v\})")
IDENTITY = re.compile(r"I|\\(?:mathbf|boldsymbol|bm|mathbb|text)\{I\}")
_INDICES = frozenset("ijklmn")


def is_array(name: Node) -> bool:
    """Whether a name may be a matrix or a vector by its letter alone."""
    if name.counts or name.value == r"\text{d}":  # of an integral
        return False
    return _ARRAY.fullmatch(name.value) is not None and not _is_element(name)


def _is_element(name: Node) -> bool:
    """Whether a name has the two indices of a matrix's element."""
    return len(name.subs) > 1 and all(
        len(one) == 1 and (one[0] in _INDICES or one[0].isdigit()) for one in name.subs
    )


def is_matrix(node: Node, is_named: Callable[[Node], bool]) -> bool:
    """Whether a formula is a name of an array, or a product of numbers and such names;
    `is_named` says which names are arrays."""
    if node.kind == "product":
        arrays = [part for part in node.parts if not is_scalar(part)]
        return bool(arrays) and all(is_matrix(one, is_named) for one in arrays)
    return node.kind == "name" and is_named(node)


def is_scalar(node: Node) -> bool:
    """Whether a node is surely a number."""
    if node.kind == "name":
        if _is_element(node):
            return True
        return node.counts or bool(_SCALAR.fullmatch(node.value) and not node.subs)
    if node.kind == "call":
        return node.value in ("det", "tr", "dim", "rank")
    return node.kind == "number" or (
        node.kind == "other" and node.value in ("absolute", "norm", "inner")
    )


def is_vector(node: Node) -> bool:
    """Whether a name is a lower-case letter, which beside a matrix is a vector."""
    return node.kind == "name" and _VECTOR.fullmatch(node.value) is not None


def is_of_numbers(node: Node) -> bool:
    """Whether a formula below a root has only names that are usually numbers."""
    if any(one.kind in ("top", "slope") for one in node.walk()):
        return False
    found = [one for one in node.walk() if one.kind == "name"]
    return bool(found) and all(_LOWER.fullmatch(one.value) for one in found)


def is_identity(node: Node) -> bool:
    return node.kind == "name" and IDENTITY.fullmatch(node.value) is not None
