"""Expectations, variances, and covariances of declared random names."""

import pytest

from backpass.derivation import DerivationError, derive

from .judging import kinds, one, verdicts

GIVEN = (
    r"given a, b, c, \mu \in \mathbb{R}; given \sigma \in \mathbb{R}_{>0}; given w \in \mathbb{R}^n; "
    r"random x, y, z \in \mathbb{R}; random u, v \in \mathbb{R}^n; "
)
APART = r"independent u_i; variance u_i = \sigma^2; "
STANDARD = (
    r"independent u, v; independent u_i; independent v_i; mean u_i = 0; mean v_i = 0; "
    r"variance u_i = 1; variance v_i = 1"
)


@pytest.mark.parametrize(
    ("right", "wrong", "declared"),
    [
        (
            r"\mathbb{E}[a x + b] = a \mathbb{E}[x] + b",
            r"\mathbb{E}[a x + b] = a \mathbb{E}[x]",
            "",
        ),
        (
            r"\mathrm{Var}(x) = \mathbb{E}[x^2] - \mathbb{E}[x]^2",
            r"\mathrm{Var}(x) = \mathbb{E}[x^2] + \mathbb{E}[x]^2",
            "",
        ),
        (
            r"\operatorname{Var}(a x + b) = a^2 \operatorname{Var}(x)",
            r"\operatorname{Var}(a x + b) = a \operatorname{Var}(x)",
            "",
        ),
        (
            r"\mathrm{Var}(x + y) = \mathrm{Var}(x) + \mathrm{Var}(y) + 2 \mathrm{Cov}(x, y)",
            r"\mathrm{Var}(x + y) = \mathrm{Var}(x) + \mathrm{Var}(y) + \mathrm{Cov}(x, y)",
            "",
        ),
        (
            r"\mathbb{E}[x y] = \mathbb{E}[x] \mathbb{E}[y]",
            r"\mathbb{E}[x y] = \mathbb{E}[x] + \mathbb{E}[y]",
            "independent x, y",
        ),
        (
            r"\mathrm{Var}(x - y) = \mathrm{Var}(x) + \mathrm{Var}(y)",
            r"\mathrm{Var}(x - y) = \mathrm{Var}(x) - \mathrm{Var}(y)",
            "independent x, y",
        ),
        (
            r"\mathrm{Var}\left(\frac1n \sum_i u_i\right) = \frac{\sigma^2}{n}",
            r"\mathrm{Var}\left(\frac1n \sum_i u_i\right) = \frac{\sigma^2}{n^2}",
            APART,
        ),
        (
            r"\mathrm{Var}(w^\top u) = \sigma^2 \lVert w \rVert^2",
            r"\mathrm{Var}(w^\top u) = \sigma^2 \sum_i w_i",
            APART,
        ),
        (r"\mathrm{Var}(u^\top v) = n", r"\mathrm{Var}(u^\top v) = n^2", STANDARD),
        (r"\mathrm{Cov}(u, u) = \sigma^2 I_n", r"\mathrm{Cov}(u, u) = \sigma I_n", APART),
        (r"\mathbb{E}[u u^\top] = I_n", r"\mathbb{E}[u u^\top] = 2 I_n", STANDARD),
        (
            r"\mathbb{E}[w^\top u] = w^\top \mathbb{E}[u]",
            r"\mathbb{E}[w^\top u] = w^\top w \, \mathbb{E}[x]".replace("x", "u_1"),
            "",
        ),
        (
            r"\mathrm{Var}(w^\top u) = w^\top \mathrm{Cov}(u, u) w",
            r"\mathrm{Var}(w^\top u) = w^\top w \, \mathrm{Var}(u_1) + \mathrm{Cov}(u_1, u_2)",
            "",
        ),
        (
            r"\mathbb{E}[(x - \mu)^2] = \mathbb{E}[x^2] - \mu^2",
            r"\mathbb{E}[(x - \mu)^2] = \mathbb{E}[x^2] + \mu^2",
            r"mean x = \mu",
        ),
        (
            r"\frac{\partial}{\partial \sigma} (\mathbb{E}[(\mu + \sigma x)^2]) = 2 \sigma",
            r"\frac{\partial}{\partial \sigma} (\mathbb{E}[(\mu + \sigma x)^2]) = 2 \sigma^2",
            "mean x = 0; variance x = 1",
        ),
        (
            r"\mathrm{Var}\left(\frac1n \sum_i u_i\right) = \frac1n \mathrm{Var}(u_1)",
            r"\mathrm{Var}\left(\frac1n \sum_i u_i\right) = \mathrm{Var}(u_1) + \frac1n",
            "independent u_i; identical u_i",
        ),
        (r"E_{x \sim p}\left[a x\right] = a E_x[x]", r"E_{x \sim p}\left[a x\right] = a + E_x[x]", ""),
    ],
)
def test_what_follows_from_what_is_declared_is_equal(right, wrong, declared):
    assert one(right, GIVEN + declared).kind == "equal"
    assert one(wrong, GIVEN + declared).kind in ("refused", "not readable")
    if "u_1" not in wrong and r"= a + E" not in wrong:
        assert one(wrong, GIVEN + declared).kind == "refused"


@pytest.mark.parametrize(
    ("line", "why", "declared"),
    [
        (r"\mathbb{E}[x y] = \mathbb{E}[x] \mathbb{E}[y]", "independent", ""),
        (r"\mathrm{Var}(x + y) = \mathrm{Var}(x) + \mathrm{Var}(y)", "independent", ""),
        (r"\mathbb{E}[(x + y)^2] = \mathbb{E}[x^2] + \mathbb{E}[y^2]", "mean 0", ""),
        (r"\mathbb{E}[(x - \mu)^2] = \mathbb{E}[x^2] - \mu^2", r"if \mu is a moment", ""),
        (r"\mathbb{E}[(x - \mu)^2] = \sigma^2", "value of a moment", ""),
        (r"\mathbb{E}[x^2] = \mathbb{E}[x]", "0 or 1", ""),
        (r"\mathbb{E}[x^4] = 3 \mathbb{E}[x^2]^2", "depends on the distribution", ""),
        (r"\mathbb{E}[x^4] = 3 \sigma^4", "value of a moment", r"mean x = 0; variance x = \sigma^2"),
        (r"\mathbb{E}[x y] = \mathbb{E}[x] \mathbb{E}[y] + c", "if c is a moment", ""),
        (r"\mathbb{E}[(x - y)^2] = 2 \mathrm{Var}(x)", "same distribution", "independent x, y"),
        (r"\mathbb{E}[\sum_i u_i] = n \mathbb{E}[u_1]", "same distribution", ""),
        (r"\frac{\partial}{\partial x} (\mathbb{E}[x^2]) = 0", "is not held", ""),
        # of a Poisson distribution, this is right
        (
            r"\frac{\partial}{\partial \mu} (\mathbb{E}[x^2]) = 2 \mu + 1",
            r"how does the distribution of x depend on \mu?",
            r"mean x = \mu",
        ),
        (r"\mathbb{E}_{x \sim p}[x] = \mathbb{E}_{x \sim q}[x]", "two distributions", ""),
        (r"\mathbb{E}_{x \sim p_a}[x] = 2 \mathbb{E}_{x \sim p_a}[x]", "depend on a", ""),
        (r"\mathbb{E}[\max(0, x)] = \mathbb{E}[x]", "a comparison inside", ""),
        (r"\mathbb{E}_x[x y] = y \mathbb{E}[x]", "not independent", ""),
        (r"\mathbb{E}[u^\top v] = \mathbb{E}[v^\top u]", "independent u, v", "independent u_i"),
    ],
)
def test_what_may_be_right_for_what_is_not_declared_is_not_refused(line, why, declared):
    verdict = one(line, GIVEN + declared)
    assert verdict.kind == "not readable"
    assert why in verdict.message


def test_bias_and_variance():
    text = "\n\n".join(
        f"$$ {line} $$"
        for line in (
            r"y = f + \epsilon",
            r"\mathbb{E}[(y - h)^2] = (f - \mathbb{E}[h])^2 + \mathrm{Var}(h) + \sigma^2",
            r"\mathbb{E}[(y - h)^2] = (f - \mathbb{E}[h])^2 - \mathrm{Var}(h) + \sigma^2",
        )
    )
    declared = (
        r"given f \in \mathbb{R}, \sigma \in \mathbb{R}_{>0}; random \epsilon, h \in \mathbb{R}; "
        r"independent \epsilon, h; mean \epsilon = 0; variance \epsilon = \sigma^2"
    )
    assert kinds(text, declared) == ["definition", "equal", "refused"]


def test_a_name_that_depends_on_two_independent_names():
    declared = r"random x, y, z \in \mathbb{R}; independent x, y"
    assert one(r"\mathbb{E}[x y] = \mathbb{E}[x] \mathbb{E}[y]", declared).kind == "equal"
    assert one(r"\mathbb{E}[x z] = \mathbb{E}[x] \mathbb{E}[z]", declared).kind == "not readable"
    line = r"\mathrm{Cov}(x + y, z) = \mathrm{Cov}(x, z) + \mathrm{Cov}(y, z)"
    assert one(line, declared).kind == "equal"
    assert one(line.replace("+ \\math", "- \\math"), declared).kind == "refused"


def test_without_a_declaration_the_message_says_what_to_declare():
    for line in (r"\mathbb{E}[x] = \mathbb{E}[x] + 1", r"\mathrm{Var}(x) + 1 = \mathrm{Var}(x)"):
        verdict = one(line, r"given x \in \mathbb{R}")
        assert verdict.kind == "not readable"
        assert "which names are random?" in verdict.message


def test_a_text_may_define_its_own_variance():
    assert one(r"\mathrm{Var}(x) = \frac1n \sum_i x_i^2", r"given x \in \mathbb{R}^n").kind == "definition"


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (r"random x", "not declared above"),
        (r"given x \in \mathbb{R}; mean x = 0", "of a random name"),
        (r"random x \in \mathbb{R}; independent x", "of what?"),
        (r"random x \in \mathbb{R}_{>0}; mean x = 1", "is positive"),
        (r"random x, y \in \mathbb{R}; mean x = y", "must not be random"),
        (r"random u \in \mathbb{R}^n; variance u = 1", "of an element"),
    ],
)
def test_a_declaration_that_has_no_meaning_is_rejected(declared, why):
    with pytest.raises(DerivationError, match=why):
        one("1 = 1", declared)


def test_a_derivation_of_the_book_may_use_random_names():
    text = r"""
        given       a \in \mathbb{R}
        random      x \in \mathbb{R}^n
        independent x_i
        mean        x_i = a
        \mathbb{E}[x_1 x_2] = a^2
    """
    derive(text, name="product-of-means")
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace("a^2", "a"), name="wrong")


def test_a_second_mean_must_agree_with_the_first():
    given = r"random u \in \mathbb{R}, x \in \mathbb{R}^n"
    assert one(r"\mathbb{E}[u] = 0", f"{given}; mean u = 0; mean u = 0").kind == "equal"
    assert one(r"\mathbb{E}[x_1 + x_2] = 1", f"{given}; mean x_1 = 0; mean x_2 = 1").kind == "equal"
    for first, second in (
        ("mean u = 0", "mean u = 1"),
        ("mean x_i = 0", "mean x_1 = 1"),
        ("variance u = 1", "variance u = 2"),
    ):
        with pytest.raises(ValueError, match=r"already declared: it is [01]"):
            one("u = u", f"{given}; {first}; {second}")


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (r"random u \in \mathbb{R}; mean u = 0; mean u = 1", (r"\mathbb{E}[u] = 0", r"\mathbb{E}[u] = 1")),
        (
            r"random u \in \mathbb{R}; mean u = 0; variance u = 1; variance u = 4",
            (r"\mathbb{E}[u^2] = 1", r"\mathbb{E}[u^2] = 4"),
        ),
    ],
)
def test_neither_of_two_contradicting_means_is_used(given, lines):
    rows = "\n\n".join(f"$$ {line} $$" for line in (*lines, r"\mathbb{E}[3 u] = 3 \mathbb{E}[u]"))
    declared, *found, linear = verdicts(f"<!-- derive: {given} -->\n\n{rows}\n")
    assert "is already declared" in declared.message
    assert [one.kind for one in found] == ["not readable"] * 2 and linear.kind == "equal"
    assert all("declare it by" in one.message for one in found)


COVARIANCES = r"""
given A \in \mathbb{R}^{n \times n}, m \in \mathbb{R}^n, \sigma \in \mathbb{R}; constant P, Q \in \mathbb{R}^{n \times n}
assume P = P^\top; assume Q = Q^\top; random e, w \in \mathbb{R}^n; independent e, w
mean e = m; mean w = 0; variance e = P; variance w = Q
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\mathbb{E}[w w^\top] = Q", r"\mathbb{E}[e e^\top] = P"),
        (r"\mathbb{E}[e e^\top] = P + m m^\top", r"\mathbb{E}[e e^\top] = P - m m^\top"),
        (
            r"\mathbb{E}[(A e + w) (A e + w)^\top] = A (P + m m^\top) A^\top + Q",
            r"\mathbb{E}[(A e + w) (A e + w)^\top] = A P A^\top + Q",
        ),
        (
            r"\mathbb{E}[w^\top A w] = \operatorname{tr}(A Q)",
            r"\mathbb{E}[w^\top A w] = \operatorname{tr}(Q)",
        ),
        (
            r"\mathrm{Var}(w_i + w_j) = Q_{ii} + 2 Q_{ij} + Q_{jj}",
            r"\mathrm{Var}(w_i + w_j) = Q_{ii} + Q_{jj}",
        ),
        (r"\mathbb{E}[e_i w_j] = 0", r"\mathbb{E}[e_i w_j] = P_{ij}"),
    ],
)
def test_covariances_of_a_vector(right, wrong):
    assert [one(line, COVARIANCES).kind for line in (right, wrong)] == ["equal", "refused"]


@pytest.mark.parametrize(
    ("line", "left_out", "why"),
    [
        (r"\mathbb{E}[w w^\top] = Q", r"assume Q = Q^\top; ", "covariances are symmetric"),
        (r"\mathbb{E}[w e^\top] = 0", "; independent e, w", "are these independent?"),
        (r"\mathbb{E}[w w^\top] = Q", "mean w = 0; ", "a moment that is not declared"),
        (r"\mathbb{E}[w_i^4] = 3 Q_{ii}^2", "", "a product of more than two"),
        (r"\mathbb{E}[e^{w_i}] = 1", "", "covariances say nothing of this average"),
    ],
)
def test_what_covariances_do_not_say(line, left_out, why):
    verdict = one(line, COVARIANCES.replace(left_out, "") if left_out else COVARIANCES)
    assert verdict.kind == "not readable" and why in verdict.message


def test_equal_variances_without_covariances():
    given = COVARIANCES.replace("variance w = Q", r"variance w = \sigma^2 I_n")
    assert one(r"\mathbb{E}[w w^\top] = \sigma^2 I_n", given).kind == "equal"
    assert one(r"\mathbb{E}[w^\top w] = \sigma^2", given).kind == "refused"
