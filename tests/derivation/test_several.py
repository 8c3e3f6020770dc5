"""Functions of several arguments, and labels, as texts on probabilities write them."""

import pytest

from .judging import kinds, one

GIVEN = (
    r"given s, h \in \mathbb{R}^n, x, z, b \in \mathbb{R}; constant \sigma_{\epsilon} \in \mathbb{R}_{>0};"
    r" let \pi(a|s) = a^T s; let p_\theta(x|z) = e^{-(x-z)^2}; let v_\pi(s) = s^T s; let q(x, z, b) = x z + b"
)


@pytest.mark.parametrize(
    ("left", "right", "wrong"),
    [
        (r"\pi(h|s)", r"\sum_i h_i s_i", r"\sum_i h_i"),
        (r"\nabla_h (\pi(h \mid s))", "s", "h"),
        (r"\log p_\theta(x|z)", "-(x - z)^2", "-(x - z)"),
        (r"\frac{\partial}{\partial x} \log p_{\theta}\left(x|z\right)", "-2 (x - z)", "-2 (x + z)"),
        (r"p_\theta(x|z) p_\theta(z|x)", "e^{-2 (x - z)^2}", "e^{-(x - z)^2}"),
        (r"v_\pi(s)", r"\|s\|^2", r"\sum_i s_i"),
        (r"q(x | z; b)", "x z + b", "x b + z"),
        (r"q(x, z; b)", "x z + b", "x z - b"),
        (r"\sigma_\epsilon^2", r"\sigma_{\epsilon} \sigma_\epsilon", r"2 \sigma_\epsilon"),
        (r"\pi + \pi(h|s)", r"\pi + h^T s", r"h^T s"),
    ],
)
def test_a_bar_or_a_semicolon_separates_arguments(left, right, wrong):
    assert one(f"{left} = {right}", GIVEN).kind == "equal"
    assert one(f"{left} = {wrong}", GIVEN).kind == "refused"


def test_bars_that_separate_nothing_keep_their_meaning():
    lines = (r"p_\theta(|x|, |z|) = e^{-(|x| - |z|)^2}", r"(|x| + 1)^2 = x^2 + 2 |x| + 1", r"(|x|) = |-x|")
    assert kinds("\n\n".join(f"$$ {line} $$" for line in lines), GIVEN) == 3 * ["equal"]
    assert one(r"\cos(\pi) = -1", GIVEN).kind == "equal"
    # A conditional expectation, or variance, is not one of two arguments.
    for line in (r"\mathbb{E}[x | z] = z", r"\mathrm{Var}(x | z) = 1", "b (x | z) = b"):
        assert one(line, f"{GIVEN}; random x").kind == "not readable"
