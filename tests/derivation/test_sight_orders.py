"""Inequalities and limits at first sight: what holds for all numbers is equal, and a slip of it is not."""

import pytest

from tests.derivation.test_first_sight import displays, kinds, sight


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"x^2 \ge 0", r"x^3 \ge 0"),
        (r"x^2 + 1 > 0", "x^2 > 0"),
        (r"0 \le (a - b)^4", r"0 \le (a - b)^4 - 1"),
        (r"\mathbf{x}^T \mathbf{x} \geq 0", r"\mathbf{x}^T \mathbf{y} \geq 0"),
        (r"\mathbb{E}[(x - y)^2] \ge 0", r"\mathbb{E}[x - y]^3 \ge 0"),
        (r"\mathrm{KL}(q \| p) \geq 0", r"\mathrm{KL}(q \| p) \leq 0"),
        (r"\mathrm{KL}(q \| p) + a \geq a", r"a - \mathrm{KL}(q \| p) \geq a"),
        (
            r"\log \mathbb{E}_q[x] \geq \mathbb{E}_q[\log x]",
            r"\log \mathbb{E}_q[x] \leq \mathbb{E}_q[\log x]",
        ),
        (
            r"\mathbb{E}_q[\log(x y)] \leq \log \mathbb{E}_q[y x]",
            r"\mathbb{E}_p[\log x] \leq \log \mathbb{E}_q[x]",
        ),
        (r"|a + b| \le |a| + |b|", r"|a + b| \le |a| - |b|"),
        (r"|a| \ge 0", r"|A| \ge 0"),  # perhaps a determinant
        (r"|a - b| \le |a| + |b|", r"|A - B| \le |A| + |B|"),
        (r"\|u - v\| \le \|u\| + \|v\|", r"\|u - v\| \ge \|u\| + \|v\|"),
    ],
)
def test_an_inequality_for_all_numbers(right, wrong):
    assert kinds(displays(right)) == ["equal"]
    assert kinds(displays(wrong)) == ["not readable"]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"0.03 < 0.05", "equal"),
        (r"\frac{1}{3} \leq \frac{1}{2}", "equal"),
        (r"3 \le 3", "equal"),
        (r"3 < 3", "refused"),
        (r"\frac{1}{2} \leq \frac{1}{3}", "refused"),
        (r"x \le 3", "not readable"),
        (r"0 < 1 < 2", "not readable"),
        (r"3 < 2 \quad \text{if } x = 1", "not readable"),
        (r"\frac{2}{3} \approx 0.67", "equal"),
        (r"\frac{2}{3} \approx 0.66", "not readable"),
    ],
)
def test_numbers_are_compared(formula, expected):
    assert kinds(displays(formula))[0] == expected


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("This is the case if ${}$.", "nothing claimed"),
        ("It would follow that ${}$, a contradiction.", "not readable"),
        ("Suppose ${}$.", "not readable"),
    ],
)
def test_a_wrong_inequality_that_is_not_claimed_is_not_refused(words, kind):
    assert kinds(words.format("$ 3 < 2 $")) == [kind]


def test_an_inequality_says_on_what_it_rests():
    (one,) = sight(displays(r"\mathrm{KL}(q \| p) \geq 0"))
    assert "a divergence and a variance are not negative" in one.inferred


@pytest.mark.parametrize(
    ("left", "goal", "right", "wrong"),
    [
        ("f'(u)", r"h \to 0", "f(u + h) - f(u)}{h", "f(u + h) + f(u)}{h"),
        ("f'(u)", r"h \rightarrow 0", "f(u + h) - f(u)}{h", "f(u) - f(u + h)}{h"),
        ("f'(u)", r"v \to u", "f(v) - f(u)}{v - u", "f(v) - f(u)}{u - v"),
        ("f'(u)", r"h \to 0", "f(u + h) - f(u - h)}{2 h", "f(u + h) - f(u - h)}{h"),
        (
            r"\frac{df}{du}",
            r"\Delta u \to 0",
            r"f(u + \Delta u) - f(u)}{\Delta u",
            r"f(u + \Delta u) - f(u)}{u",
        ),
        (
            r"\frac{\partial g}{\partial a}",
            r"h \to 0",
            "g(a + h, b) - g(a, b)}{h",
            "g(a, b + h) - g(a, b)}{h",
        ),
        (
            r"\frac{\partial g}{\partial x_i}",
            r"h \to 0",
            r"g(\mathbf{x} + h \mathbf{e}_i) - g(\mathbf{x})}{h",
            r"g(\mathbf{x} + h \mathbf{e}_j) - g(\mathbf{x})}{h",
        ),
    ],
)
def test_a_derivative_is_the_limit_of_difference_quotients(left, goal, right, wrong):
    def shown(limit, quotient):
        return kinds(displays(rf"{left} = \lim_{{{limit}}} \frac{{{quotient}}}"))

    assert shown(goal, right) == ["equal"]
    assert shown(goal, wrong) == ["not readable"]
    assert shown(goal[:-1] + "1", right) == ["not readable"]  # another limit
