"""The formulas in the operations' docstrings are what their code computes, and a wrong one is caught."""

import ast
import re
from pathlib import Path

import pytest

import backpass
from backpass import ops
from backpass.derivation import DerivationError
from backpass.derivation.book.docstring import formulas


@pytest.mark.parametrize("stem", ops.STEMS)
def test_formulas_are_forward_and_backward(stem):
    lines = [line for line in formulas(stem).lines if line.numbered]
    assert len(lines) >= 2


@pytest.mark.parametrize(
    ("stem", "right", "wrong"),
    [
        ("softmax", r"\bar{y}_i - \sum", r"\bar{y}_i + \sum"),
        ("softmax", r"\frac{e^{x_i}}", r"\frac{1 + e^{x_i}}"),
        ("linear", r"\bar{W} = X^\top \bar{Y}", r"\bar{W} = 2 X^\top \bar{Y}"),
        ("linear", r"X W + \mathbf{1}_m b^\top", r"X W"),
        ("fork", r"\sum_j \bar{y}_{ji}", r"\bar{y}_{1i}"),
        ("log_softmax", r"e^{y_i} \Big( \sum_j \bar{y}_j \Big)", r"e^{y_i} \bar{y}_i"),
        ("nll", r"\bar{x}_{ij} = -", r"\bar{x}_{ij} ="),
        ("nll", r"\frac{t_{ij} c_j}{\sum_{k,l} t_{kl} c_l}", r"\frac{t_{ij} c_j}{m}"),
        ("nll", r"\frac{t_{ij} c_j}{\sum_{k,l} t_{kl} c_l}", r"\frac{t_{ij} c_j}{\sum_{k,l} t_{kl}}"),
        ("cross_entropy", r"\Big( \sum_k q_{ik} \Big) - q_{ij}", r"- q_{ij}"),
        ("cross_entropy", r" - q_{ij} \Big)", r" \Big)"),
        ("cross_entropy", r"\frac{\epsilon}{V} \Big( \sum_k t_{ik} \Big)", r"\frac{\epsilon}{V}"),
        ("cross_entropy", r"t_{kl} c_l", r"t_{kl}"),
        ("linear_cross_entropy", r"(1 - \epsilon) \,", r""),
        ("rope", r"\bar{y}_{rpai} - S_{pi}", r"\bar{y}_{rpai} + S_{pi}"),
        ("rope", r"C_{pi} x_{rpai} + S_{pi}", r"C_{pi} x_{rpai} - S_{pi}"),
        ("dropout", r"\frac{M_i \bar{y}_i}{1 - p}", r"\frac{\bar{y}_i}{1 - p}"),
        ("dropout", r"\frac{M_i \bar{y}_i}{1 - p}", r"\frac{M_i \bar{y}_i}{p}"),
        ("dropout", r"\frac{M_i x_i}{1 - p}", r"M_i x_i"),
        ("gelu", r"+ x_i \frac{e^{-x_i^2 / 2}}", r"+ \frac{e^{-x_i^2 / 2}}"),
        ("gelu", r"}{\sqrt{2 \pi}}", r"}{2 \sqrt{\pi}}"),
        ("silu", r"1 + x_i (1 - \sigma_i)", r"1 + x_i \sigma_i (1 - \sigma_i)"),
        ("swiglu", r"\bar{u}_i = \bar{y}_i g_i \sigma_i", r"\bar{u}_i = \bar{y}_i \sigma_i"),
        ("simplex_norm", r"\bar{y}_{rj} y_{rj}", r"\bar{y}_{rj} y_{ri}"),
        ("sphere_norm", r"- y_{ri} \sum_j", r"- \sum_j"),
        ("multilinear_attention", r"\bar{Y}_{ik} Y_{ik}", r"\bar{Y}_{ik}"),
        ("scale", r"\qquad \bar{x}_i = c\,\bar{y}_i", r"\qquad \bar{x}_i = \bar{y}_i"),
    ],
)
def test_a_wrong_formula_is_caught(stem, right, wrong, monkeypatch):
    module = ops.load(stem)
    assert right in module.__doc__
    monkeypatch.setattr(module, "__doc__", module.__doc__.replace(right, wrong))
    with pytest.raises(DerivationError):
        formulas(stem)


def test_a_letter_that_nobody_declares_says_where_to_declare_it(monkeypatch):
    monkeypatch.delattr(ops.load("scale"), "LETTERS")
    with pytest.raises(DerivationError, match="c is not declared") as caught:
        formulas("scale")
    (note,) = caught.value.__notes__
    assert note.startswith("The formulas are those of src/backpass/ops/scale.py, whose LETTERS")


def test_a_docstring_without_formulas_is_named(monkeypatch):
    monkeypatch.setattr(ops.load("softmax"), "__doc__", "Softmax.")
    with pytest.raises(ValueError, match="softmax: the module's docstring has no formulas"):
        formulas("softmax")


DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def blocks(source: str) -> list[tuple[str, int]]:
    """The docstrings that hold a ``.. math::``, each by its owner's name, "" for the module's, and how many it holds."""
    owners = [node for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    counts = [
        (
            getattr(node, "name", ""),
            len(re.findall(r"^\s*\.\. math::", ast.get_docstring(node) or "", re.M)),
        )
        for node in owners
    ]
    return [(name, count) for name, count in counts if count]


def test_every_formula_of_the_package_is_executed():
    """The first ``.. math::`` of an operation's module is, above. There is no other."""
    src = Path(backpass.__file__).parent
    found = {
        str(path.relative_to(src)): blocks(path.read_text(encoding="utf-8")) for path in src.rglob("*.py")
    }
    executed = {f"ops/{stem}.py": [("", 1)] for stem in ops.STEMS}
    assert {path: where for path, where in found.items() if where} == executed


def test_a_formula_that_is_not_executed_is_found():
    source = '''"""A module.

.. math:: y = x
.. math:: y = 2 x
"""

class Saved:
    def method(self):
        """Indented:

        .. math:: y = x
        """
'''
    assert blocks(source) == [("", 2), ("method", 1)]
