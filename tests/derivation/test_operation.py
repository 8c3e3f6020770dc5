"""A derivation bound to an operation starts at its forward and ends in its backward."""

import pytest

from backpass import ops
from backpass.derivation import DerivationError, derive

FORK = r"""
    given x \in \mathbb{R}^n, \bar{y} \in \mathbb{R}^{k \times n}
    let y_{ri} = x_i
    \bar{x}_i = \sum_r \sum_j \bar{y}_{rj} \frac{\partial y_{rj}}{\partial x_i}
        = \sum_r \bar{y}_{ri}
"""

SCALE = r"""
    given x, \bar{y} \in \mathbb{R}^n
    constant c \in \mathbb{R}
    let y_i = c x_i
    \bar{x}_i = c \bar{y}_i
"""

HEADS = r"""
    given q \in \mathbb{R}^{n_{kv} \times g \times s_q \times d}, k \in \mathbb{R}^{n_{kv} \times s_k \times d}, v \in \mathbb{R}^{n_{kv} \times s_k \times d_v}
    let S_{uhij} = \frac{1}{\sqrt{d}} \sum_c q_{uhic} k_{ujc}
    let a_{uhij} = \frac{e^{S_{uhij}}}{\sum_l e^{S_{uhil}}}
    let y_{uhic} = \sum_j a_{uhij} v_{ujc}
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {"operation": "softmax"}),
        ("linear", {"operation": "linear"}),
        ("matmul", {"operation": "matmul"}),
        ("attention", {"operation": "matmul", "names": {"a": "A", "b": "V"}}),
    ],
)
def test_derivations_of_the_book_s_operations(name, options, sources):
    derive(sources[name], name=name, **options).verify_operation()


def test_options_may_be_symbols_and_sizes():
    derive(SCALE, name="scale", operation="scale", options={"factor": "c"})
    derive(FORK, name="fork", operation="fork", options={"copies": "k"})


def test_the_forward_alone_may_be_bound():
    text = "given X \\in \\mathbb{R}^{m \\times n}, W \\in \\mathbb{R}^{n \\times p}\nlet Y = X W"
    derivation = derive(text, name="linear", forward="linear")
    assert derivation.survivors() == []
    with pytest.raises(DerivationError, match=r"the definition of Y is not what linear\.forward returns"):
        derive(text.replace("= X", "= 2 X"), name="linear", forward="linear")


MASKED = r"""
    given S \in \mathbb{R}^{s_q \times d}, K \in \mathbb{R}^{s_k \times d}, V \in \mathbb{R}^{s_k \times d_v}
    constant B \in \mathbb{R}^{s_q \times s_k}
    let E_{ij} = e^{\frac{1}{\sqrt{d}} \sum_c S_{ic} K_{jc}}
    let A_{ij} = \frac{B_{ij} E_{ij}}{\sum_k B_{ik} E_{ik}}
    let Y = A V
"""


def test_booleans_are_a_constant_array_of_0_and_1():
    options = {"name": "masked", "forward": "attention", "names": {"q": "S", "mask": "B"}}
    options |= {"sizes": [{"s_{q}": 2, "s_{k}": 3, "d": 2, "d_{v}": 2}]}
    derive(MASKED, **options)
    for wrong in (MASKED.replace("{B_{ij} E", "{E"), MASKED.replace("{B_{ij} E", "{2 B_{ij} E")):
        assert wrong != MASKED
        with pytest.raises(DerivationError, match=r"the definition of Y is not what attention\.forward"):
            derive(wrong, **options)


def test_an_axis_of_heads_may_be_two_the_groups_and_those_within():
    options = {
        "name": "heads",
        "forward": "attention",
        "sizes": [dict.fromkeys(("s_{q}", "s_{k}", "d", "d_{v}"), 2)],
    }
    options["sizes"][0] |= {"n_{kv}": 3, "g": 2}
    derive(HEADS, **options)
    with pytest.raises(DerivationError, match=r"the definition of y is not what attention\.forward returns"):
        derive(HEADS, **options, options={"head_order": "interleaved"})


def test_a_last_axis_may_be_two_the_parts_that_an_option_counts_and_what_is_in_each():
    product = r"""
        given Q \in \mathbb{R}^{s \times p \times c}, K \in \mathbb{R}^{t \times p \times c}, V \in \mathbb{R}^{t \times d_v}
        let S_{ij} = \prod_k \left( \sum_a Q_{ika} K_{jka} \right)
        let Y_{ir} = \frac{\sum_j S_{ij} V_{jr}}{\sqrt{\sum_j S_{ij}^2}}
    """
    options = {
        "name": "parts",
        "forward": "multilinear_attention",
        "options": {"p": "p", "normalization": "sphere"},
        "sizes": [{"s": 2, "t": 2, "p": 3, "c": 2, "d_{v}": 2}],
    }
    derive(product, **options)
    with pytest.raises(DerivationError, match=r"is not what multilinear_attention\.forward returns"):
        derive(product.replace("\\prod_k", "\\sum_k"), **options)


def test_a_linear_layer_without_bias(sources):
    kept = [
        line for line in sources["linear"].splitlines() if "dot{b}" not in line and r"\bar{b}" not in line
    ]
    text = "\n".join(kept).replace(r", b \in \mathbb{R}^p", "").replace(r" + \mathbf{1}_m b^\top", "")
    derive(text, name="linear", operation="linear")


def test_a_matrix_of_rows_is_what_the_leading_axes_make_it():
    derive(
        r"""
        given X \in \mathbb{R}^{m \times n}
        let Y_{ri} = \frac{e^{X_{ri}}}{\sum_j e^{X_{rj}}}
        \bar{X}_{ri} = Y_{ri} \left( \bar{Y}_{ri} - \sum_j \bar{Y}_{rj} Y_{rj} \right)
        """,
        name="rows",
        operation="softmax",
    )


def test_the_definition_must_be_the_forward():
    twice = r"""
        given A \in \mathbb{R}^{s \times n}, B \in \mathbb{R}^{n \times p}
        let Y = 2 A B
        \bar{A} = 2 \bar{Y} B^\top
        \bar{B} = 2 A^\top \bar{Y}
    """
    with pytest.raises(DerivationError, match=r"the definition of Y is not what matmul\.forward returns"):
        derive(twice, name="twice", operation="matmul")


def test_the_last_lines_must_be_the_backward(monkeypatch, sources):
    softmax = ops.load("softmax")
    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", lambda dy, saved: right(dy, saved) * 2)
    with pytest.raises(
        DerivationError, match=r"the last line for \\bar\{x\} is not what softmax\.backward returns"
    ):
        derive(sources["softmax"], name="softmax", operation="softmax")


def test_every_gradient_must_be_derived(sources):
    text = sources["linear"].replace(r"\bar{b} = \bar{Y}^\top \mathbf{1}_m", "")
    with pytest.raises(
        DerivationError, match=r"no line \\bar\{b\} = … ends in what linear\.backward returns for b"
    ):
        derive(text, name="linear", operation="linear")


def test_names_must_be_found(sources):
    with pytest.raises(DerivationError, match="softmax has an array x, but the derivation has no x or X"):
        derive(sources["matmul"], name="matmul", operation="softmax")
    with pytest.raises(DerivationError, match="softmax has no array called q"):
        derive(sources["softmax"], name="softmax", operation="softmax", names={"q": "x"})
    with pytest.raises(DerivationError, match="not bound to an operation"):
        derive(sources["softmax"], name="softmax").verify_operation()


def test_an_operation_that_depends_on_a_sign_takes_a_derivation_that_does():
    text = "given x, \\bar{y} \\in \\mathbb{R}^n\nlet y_i = x_i\n\\bar{x}_i = \\bar{y}_i"
    with pytest.raises(
        DerivationError, match=r"relu\.forward depends on a sign, but no line of the derivation does"
    ):
        derive(text, name="identity", operation="relu")
    wrong = text.replace("= x_i", r"= x_i [x_i < 0]").replace(r"= \bar{y}_i", r"= \bar{y}_i [x_i < 0]")
    with pytest.raises(DerivationError, match=r"the definition of y is not what relu\.forward returns"):
        derive(wrong, name="reversed", operation="relu")
