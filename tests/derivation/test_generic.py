"""Powers with any exponent, roots beside absolute values, and gradients before functions: right lines are equal, wrong ones refused."""

import pytest
import sympy

from backpass.derivation.equality.generic import are_equal

from .judging import one

GIVEN = r"given a, b, c \in \mathbb{R}, p, q \in \mathbb{R}_{>0}, v \in \mathbb{R}^n"


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\sqrt{a^2}", "|a|", "a"),
        (r"\sqrt{(a - b)^2}", "|b - a|", "a - b"),
        (r"\sqrt{a^2 b^2}", "|a| |b|", "a |b|"),
        (r"\sqrt{a^2} [a > 0]", "a [a > 0]", r"\sqrt{a^2}"),
        (r"\sqrt{a^2} [a < 0]", "-a [a < 0]", "a [a < 0]"),
        (r"\sqrt{a^2} [b > 0]", "|a| [b > 0]", "a [b > 0]"),  # b says nothing of a
        (r"\max(a, b)", r"\frac{a + b + \sqrt{(a - b)^2}}{2}", r"\frac{a + b - \sqrt{(a - b)^2}}{2}"),
        ("|a|^3", "a^2 |a|", "a^3"),
        ("p^a p^b", "p^{a + b}", "p^{a b}"),
        ("p^{a - b}", r"\frac{p^a}{p^b}", r"\frac{p^b}{p^a}"),
        ("p^{2 a}", "(p^a)^2", "2 p^a"),
        ("p^{a/2}", r"\sqrt{p^a}", r"\sqrt{p} a"),
        ("p^{a + 2}", "p^2 p^a", "p^{2 a}"),
        ("(p q)^a", "p^a q^a", "p^a q"),
        (r"e^{a \log p}", "p^a", "a p"),
        ("2^{a^2}", "4^{a^2/2}", "4^{a^2}"),
        (r"\prod_i p^{v_i}", r"p^{\sum_i v_i}", r"\sum_i p^{v_i}"),
        ("(1 + e^a)^b (1 + e^a)^c", "(1 + e^a)^{b + c}", "(1 + e^a)^{b c}"),
    ],
)
def test_a_power_or_an_absolute_value(left, right, wrong):
    assert one(f"{left} = {right}", GIVEN).kind == "equal"
    assert one(f"{left} = {wrong}", GIVEN).kind == "refused"


def test_a_sign_is_used_only_where_it_is_known():
    a, b = sympy.symbols("a b", real=True)
    assert are_equal(abs(a), a, lambda one: one, {a: 1})
    assert are_equal(abs(a), -a, lambda one: one, {a: -1})
    assert are_equal(abs(a), a, lambda one: one, {-a: -1})
    assert not are_equal(abs(a), a, lambda one: one)
    assert not are_equal(abs(a), a, lambda one: one, {b: 1})
    assert not are_equal(abs(a + b), abs(a) + abs(b), lambda one: one, {a: 1})


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\nabla_x \lVert x \rVert", r"\frac{x}{\lVert x \rVert}", "x"),
        (r"\nabla_x \lVert x \rVert + x", r"\frac{x}{\lVert x \rVert} + x", r"\frac{x}{\lVert x \rVert}"),
        (r"\nabla_x \|x - y\|_2", r"\frac{x - y}{\|x - y\|}", r"\frac{x + y}{\|x - y\|}"),
        (r"\nabla_A \det(A)", r"\det(A) A^{-\top}", r"\det(A) A^{-1}"),
        (r"\nabla_A \log \det A", r"A^{-\top}", r"A^{-1}"),
        (r"\nabla_x \exp(x^\top y)", r"\exp(x^\top y) y", r"\exp(x^\top y) x"),
        (r"\nabla_x \log \sum_k e^{x_k} + y", r"\text{softmax}(x) + y", r"\text{softmax}(x)"),
        (
            r"\frac{\partial^2}{\partial x_i \partial x_j} \log \sum_k e^{x_k}",
            r"\text{softmax}(x)_i (\delta_{ij} - \text{softmax}(x)_j)",
            r"\text{softmax}(x)_i \text{softmax}(x)_j",
        ),
    ],
)
def test_a_gradient_of_a_function_without_brackets(left, right, wrong):
    given = r"given x, y \in \mathbb{R}^n, A \in \mathbb{R}^{n \times n}, a \in \mathbb{R}"
    assert one(f"{left} = {right}", given).kind == "equal"
    assert one(f"{left} = {wrong}", given).kind == "refused"
    assert one(r"\nabla_x \exp(x^\top y) a = a \exp(x^\top y) y", given).kind == "not readable"
