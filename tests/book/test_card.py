"""The card of every backward is complete, and its figures are those of the modules."""

import re

import pytest
import sympy

from backpass import cost, ops
from backpass.book.card import SHEET, card, sheet
from backpass.cost.formulas import latex
from backpass.cost.shorter import shorter, to_latex
from backpass.derivation import DerivationError
from backpass.ops import softmax


def test_every_operation_is_on_the_card():
    """The formulas are only parsed here; derivation/test_docstring.py evaluates each of them."""
    stems = [entry.stem for entry in card(evaluate=False).entries]
    assert sorted(stems) == sorted(ops.STEMS)


def test_rows_are_in_the_order_of_the_map_with_links_to_each():
    every = card(evaluate=False)
    stems = [entry.stem for entry in every.entries]
    in_order = (
        "embedding",
        "rms_norm",
        "linear",
        "rope",
        "attention",
        "softmax",
        "residual",
        "gelu",
        "cross_entropy",
    )
    assert [stem for stem in stems if stem in in_order] == [*in_order]
    assert set(stems[-7:]) == {stem for stem in ops.STEMS if not hasattr(ops.load(stem), "PLACES")}
    page = every._repr_html_()
    assert re.findall(r'<tr id="card-(\w+)"', page) == re.findall(r'href="#card-(\w+)"', page) == stems
    index = page[: page.index("<table")]
    assert index.startswith(
        '<p class="backpass-card-index">tokens to vectors: <a href="#card-embedding">embedding</a>, '
    )
    assert "between ranks: <a" in index


def test_the_sheet_has_the_formulas_of_the_card():
    every = card(*SHEET, evaluate=False)
    page = sheet(every)._repr_html_()
    assert page.count("<tr>") == len(SHEET) == 12
    assert page.count("math notranslate") == sum(len(entry.formulas) for entry in every.entries)


def test_the_formulas_are_the_same_without_evaluation(monkeypatch):
    names = "softmax", "layer_norm"
    assert card(*names) == card(*names, evaluate=False)
    wrong = softmax.__doc__.replace(r"\bar{y}_i - \sum", r"\bar{y}_i + \sum")
    assert wrong != softmax.__doc__
    monkeypatch.setattr(softmax, "__doc__", wrong)
    with pytest.raises(DerivationError):
        card("softmax")
    card("softmax", evaluate=False)


def test_saved_arrays_and_bytes():
    rows, matmul, scale = card("softmax", "matmul", "scale").entries
    assert (rows.saved, rows.bytes) == (("y[*, n]",), "4 m n")
    assert matmul.saved == ("a[*a, s, n]", "b[*b, n, p]")
    m_a, m_b, n, p, s = sympy.symbols("m_a m_b n p s", positive=True)
    assert matmul.bytes == sympy.latex(4 * m_a * s * n + 4 * m_b * n * p)
    assert (scale.saved, scale.bytes) == ((), "0")


def test_formulas_bytes_and_flops_are_of_the_same_form_of_an_operation():
    """feed_forward's formulas have a gate, and so have its three matrices' FLOPs and its three arrays of width f."""
    (block,) = card("feed_forward").entries
    assert any("gate" in formula for formula in block.formulas)
    gated = [to_latex(shorter(f)) for f in cost.symbolic_formula("feed_forward", activation="swiglu")]
    assert [*block.flops] == gated != [to_latex(shorter(f)) for f in cost.symbolic_formula("feed_forward")]
    assert block.bytes == "12 f m + 4 h m"


def test_an_axis_kept_for_its_row_is_of_length_1():
    (layer_norm,) = card("layer_norm").entries
    assert layer_norm.saved == ("x_hat[*, n]", "rstd[*, 1]")
    assert layer_norm.bytes == "4 m n + 4 m"


def test_parameters_are_not_counted_as_saved():
    (linear,) = card("linear").entries
    assert linear.saved == ("x[*, n]",)


def test_links_lead_from_the_page_to_the_operations():
    page = card("softmax", root="../..")._repr_html_()
    assert 'href="../../chapters/operations/softmax.html"' in page
    assert r"\bar{x}_i" in page


def test_each_formula_scrolls_by_itself_and_long_ones_are_factored():
    """The widest formula of a table of all decides how far a reader must scroll."""
    (heads,) = card("multi_head_attention").entries
    longest = latex("multi_head_attention").backward
    assert len(heads.flops.backward) < 0.6 * len(longest)
    page = card("softmax")._repr_html_()
    assert page.count('<div class="formula">') == page.count("math notranslate")
    assert "overflow-x" not in page


def test_targets_take_the_bytes_of_their_integers():
    nll, cross_entropy = card("nll", "cross_entropy").entries
    assert nll.bytes == "8 m + 4"
    assert cross_entropy.bytes == "4 V m + 8 m + 4"  # the sum of class weights
