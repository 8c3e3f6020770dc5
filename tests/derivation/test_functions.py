"""Functions are applied as they are defined, and no product is read as one."""

import pytest

from backpass.derivation import DerivationError, Unreadable, derive

from .judging import kinds, one, verdicts

SOFTMAX = r"""
    given x, \bar{y} \in \mathbb{R}^n
    let f(z)_i = \frac{e^{z_i}}{\sum_j e^{z_j}}
    let y = f(x)
    \sum_i f(x)_i = 1
    f(x)_i = \text{softmax}(x)_i
    \frac{\partial f(x)_i}{\partial x_j} = f(x)_i (\delta_{ij} - f(x)_j)
    \bar{x} = f(x) \odot \bar{y} - f(x) \langle f(x), \bar{y} \rangle
    \log f(x)_i = \text{logSoftmax}(x)_i
        = x_i - \text{logsumexp}(x)
"""
OF_NUMBERS = r"""
    given x, \bar{y} \in \mathbb{R}^n, c \in \mathbb{R}, W \in \mathbb{R}^{n \times n}, X \in \mathbb{R}^{m \times n}
    let \sigma(t) = \frac{1}{1 + e^{-t}}
    let g(a, b) = a^2 b
    let s(t) = t \cdot \sigma(t)
    let y_i = s(x_i)
    \sigma(c) = \text{sigmoid}(c)
    1 - \sigma(c) = \sigma(-c)
    \frac{\partial}{\partial c} \left( \sigma(c) \right) = \sigma(c) (1 - \sigma(c))
    \bar{x}_i = \bar{y}_i \sigma(x_i) \left( 1 + x_i (1 - \sigma(x_i)) \right)
    y = s(x)
    \sigma(X)_{ij} = \sigma(X_{ij})
    g(x_1, c) = x_1^2 \cdot c
    g(c, 2)^2 = 4 c^4
    \sum_i \text{relu}(x_i) = \sum_i x_i [x_i > 0]
    \sigma(W x)_i = \sigma \left( \sum_j W_{ij} x_j \right)
    \frac{1}{2} \left( 1 + \tanh \left( \frac{c}{2} \right) \right) = \sigma(c)
    \operatorname{sech}^2(c) = 1 - \tanh^2(c)
    \cosh^2(c) - \sinh^2(c) = 1
    \tanh(c) = \frac{\sinh(c)}{\cosh(c)}
    \tan(c) \cos(c) = \sin(c)
"""


@pytest.mark.parametrize("text", [SOFTMAX, OF_NUMBERS])
def test_what_is_right_of_functions_passes(text):
    derivation = derive(text, name="functions")
    assert r"let f(z)_i" in str(derivation) or r"let \sigma(t)" in str(derivation)


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        (SOFTMAX, r"(\delta_{ij} - f(x)_j)", r"(\delta_{ij} + f(x)_j)"),
        (SOFTMAX, r"(\delta_{ij} - f(x)_j)", r"(\delta_{ij} - f(x)_i)"),
        (SOFTMAX, r"\frac{e^{z_i}}", r"\frac{2 e^{z_i}}"),
        (SOFTMAX, r"= x_i - \text{logsumexp}", r"= x_i + \text{logsumexp}"),
        (OF_NUMBERS, r"\frac{1}{1 + e^{-t}}", r"\frac{1}{1 + e^t}"),
        (OF_NUMBERS, r"g(c, 2)^2 = 4", r"g(2, c)^2 = 4"),
        (OF_NUMBERS, r"\sigma(-c)", r"\sigma(c)"),
        (OF_NUMBERS, r"- \sinh^2(c) = 1", r"+ \sinh^2(c) = 1"),
        (OF_NUMBERS, r"\tan(c) \cos(c)", r"\tan(c) \sin(c)"),
        (OF_NUMBERS, r"\sigma(X)_{ij} = \sigma(X_{ij})", r"\sigma(X)_{ij} = -\sigma(X_{ij})"),
    ],
)
def test_what_is_wrong_of_functions_is_refused(text, right, wrong):
    assert right in text
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace(right, wrong), name="functions")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r"c = f(c)", "prints like a function"),
        (r"x = \sigma(x, x)", r"\\sigma takes 1 argument"),
        (r"c = \sigma \cdot c", "write its value"),
        (r"c = \sigma^2(c)", "write its value"),
        (r"c = (c, c)", "without a function before them"),
        (r"c = \text{softmax}(c)", "takes no index"),
        (r"W = \text{softmax}(W)", "takes two indices"),
        (r"x_i = x(x)_i", "prints like a function"),
        (r"\frac{\partial h(x)}{\partial x_i} = x_i", "is not a function"),
        (r"let \sigma(x) = x", "already declared"),
        (r"let h(x) = x + q", "neither a parameter of h nor defined"),
        (r"let h(x) = h(x - 1)", "neither a parameter of h nor defined"),
        (r"let h(x, x) = x", "occurs twice"),
        (r"let h(x)_i = 2 c" + "\nx = h(x)", "what does i run over"),
        (r"let h(x) = x_i" + "\nc = h(x)", "only in its definition"),
        (r"x_i = (W x)_{ij}", "takes one index"),
        (r"x_i = (c)_i", "takes no index"),
    ],
)
def test_what_is_not_a_function_is_not_read_as_one(line, said):
    given = r"given x \in \mathbb{R}^n, c \in \mathbb{R}, W \in \mathbb{R}^{n \times n}"
    text = f"{given}\nlet \\sigma(t) = \\frac{{1}}{{1 + e^{{-t}}}}\n{line}"
    with pytest.raises(Unreadable, match=said):
        derive(text, name="refused")


@pytest.mark.parametrize(
    ("definition", "line"),
    [
        (r"h(t) = t \cdot t", None),  # W W, or the squares of its elements
        (r"h(t) = t \cdot \text{sigmoid}(t)", None),
        (r"h(t) = e^t", None),
        (r"h(t) = 2 t - t", r"h(W) = W"),
        (r"h(t) = t^\top t", r"h(W)_{ij} = \sum_k W_{ki} W_{kj}"),
        (r"h(t) = \sum_i t_i^2", r"h(x) = x^\top x"),
        (r"h(t) = t^2", r"h(x)_i = x_i^2"),
        (r"h(t) = t^\top t", r"h(x) = \sum_i x_i^2"),
    ],
)
def test_a_function_of_an_array_has_one_meaning_or_none(definition, line):
    text = rf"""
        given x \in \mathbb{{R}}^n, W \in \mathbb{{R}}^{{n \times n}}
        let {definition}
        {line or r"h(W) = h(W)"}
    """
    if line:
        assert derive(text, name="meaning").chains
    else:
        with pytest.raises(Unreadable, match="of this matrix, or of each of its elements"):
            derive(text, name="meaning")


def test_an_element_of_a_product():
    derive(
        r"""
        given A \in \mathbb{R}^{m \times k}, B \in \mathbb{R}^{k \times n}, x \in \mathbb{R}^n
        (A B)_{ij} = \sum_k A_{ik} B_{kj}
        (A B x)_i^2 = \left( \sum_j (A B)_{ij} x_j \right)^2
        """.replace(r"\sum_k A_{ik} B_{kj}", r"\sum_a A_{ia} B_{aj}"),
        name="element",
    )


def test_a_parameter_hides_a_name_and_a_name_in_a_body_stays_itself():
    derive(
        r"""
        given x \in \mathbb{R}^n, c, t \in \mathbb{R}
        let h(t) = c \, t
        h(2) = 2 c
        h(h(t)) = c^2 t
        \frac{\partial}{\partial c} \left( h(t) \right) = t
        """,
        name="names",
    )


def test_a_function_whose_value_depends_on_a_sign_is_tried_on_both_sides():
    text = r"""
        given x \in \mathbb{R}^n
        let h(t) = \max(0, t)
        h(x_i) = x_i [x_i > 0]
    """
    derivation = derive(text, name="sign")
    assert derivation.evaluators()[0].point is not None
    with pytest.raises(DerivationError, match="does not equal"):
        derive(text.replace("= x_i [", "= 2 x_i ["), name="sign")


def test_every_mistake_in_a_function_is_noticed():
    text = r"""
        given x \in \mathbb{R}^n
        let h(z)_i = \frac{z_i}{\sum_j z_j^2}
        h(x)_i = \frac{x_i}{\sum_k x_k^2}
    """
    derivation = derive(text, name="mistakes", sizes=[{"n": 3}])
    in_body = [flip for flip in derivation.flips() if flip.line == 1]
    assert len(in_body) > 3
    assert derivation.survivors() == []


def test_a_displayed_function_is_a_definition():
    text = r"""
        $$ \alpha(x) = \left( \sum_i x_i \right)^{-1} $$
        $$ f_\alpha(x) = \alpha(x) x $$
        $$ \begin{aligned} \frac{\partial \alpha(x)}{\partial x_i} &= - \alpha(x)^2 \\ &= \alpha(x)^2 \end{aligned} $$
        $$ \sum_i f_\alpha(x)_i = 1 $$
    """
    found = verdicts(text, r"given x \in \mathbb{R}^n")
    assert [v.kind for v in found] == ["definition", "definition", "equal", "refused", "equal"]
    names = dict(found[-1].basis.definitions)
    assert (names["x"], names[r"f_{\alpha}"], names[r"\alpha"]) == (0, 3, 2)


def test_another_definition_of_a_function_is_not_refused():
    text = "$$ f(t) = 2 t $$\n$$ f(t) = 3 t $$\n$$ f(t) = 4 t $$"
    found = verdicts(text, r"given t \in \mathbb{R}")
    assert [v.kind for v in found] == ["definition", "not readable", "definition"]
    assert "line 1 defined f differently" in found[1].message


def test_a_false_value_of_a_known_function_is_refused():
    text = "$$ f(t) = a t $$ $$ f(b) = b^2 $$ $$ f(2) = 2 a $$"
    assert kinds(text, r"given a, b \in \mathbb{R}") == ["definition", "refused", "equal"]


def test_a_name_that_is_not_a_function_is_not_taken_as_one():
    found = verdicts(r"$$ y(x) = 2 x $$", r"given x, y \in \mathbb{R}")
    assert [v.kind for v in found] == ["not readable"]


ROWS = (
    r"loss l; layout numerator; given B \in \mathbb{R}^{t \times t}, V, \bar{Y} \in \mathbb{R}^{t \times p}; "
    r"let u = \mathbf{1}_t; let \alpha(x) = \left( \sum_i x_i \right)^{-1}; "
    r"let A_{ij} = \frac{B_{ij}}{\sum_k B_{ik}}; let Y = A V; let d_i = \sum_k \bar{Y}_{ik} Y_{ik}; "
    r"slice A_i, B_i \in \mathbb{R}^t; slice Y_i \in \mathbb{R}^p"
)
OF_ROWS = r"""
    $$ \begin{aligned} \frac{\partial l}{\partial B_i} &= \frac{\partial l}{\partial A_i} \frac{\partial A_i}{\partial B_i} \\
    &= \nabla_{A_i} l^T \alpha(B_i) \left( I - A_i u^T \right) \\
    &= \alpha(B_i) \left( \nabla_{A_i} l^T - \nabla_{Y_i} l^T V^T A_i u^T \right) \\
    &= \alpha(B_i) \left( \nabla_{A_i} l^T - d_i u^T \right) \end{aligned} $$
    $$ \nabla_{B_i} l = \alpha(B_i) \left( \nabla_{A_i} l - d_i u \right) $$
"""


def test_rows_of_matrices():
    assert set(kinds(OF_ROWS, ROWS)) == {"equal"}
    wrong = OF_ROWS.replace(r"- A_i u^T", r"- A_i B_i^T")
    assert kinds(wrong, ROWS) == ["equal", "refused", "equal", "equal", "equal"]
    assert set(kinds(OF_ROWS, ROWS.partition("; slice")[0])) == {"not readable"}
    assert kinds("<!-- derive: slice A_i \\in \\mathbb{R}^p -->", ROWS) == ["not readable"]
    assert kinds("<!-- derive: slice A_{ij} \\in \\mathbb{R} -->", ROWS) == ["not readable"]


def test_a_slice_of_three_axes_is_a_matrix():
    given = r"given X, \bar{Z} \in \mathbb{R}^{b \times s \times h}, W \in \mathbb{R}^{h \times h}; let Z_{aij} = \sum_k X_{aik} W_{kj}"
    slices = r"; slice X_i, Z_i \in \mathbb{R}^{s \times h}"
    text = r"$$ \bar{X}_i = \bar{Z}_i W^T $$ $$ \bar{W} = \sum_i X_i^T \bar{Z}_i $$ $$ \bar{W} = \sum_i \bar{Z}_i^T X_i $$"
    assert kinds(text, given + slices) == ["equal", "equal", "refused"]


def test_a_row_and_a_column_of_a_matrix():
    derive(
        r"""
        given A, \bar{Y} \in \mathbb{R}^{m \times k}, B \in \mathbb{R}^{k \times n}
        let Y = 2 A
        let Z = A B
        slice A_{i,:}, Y_{i,:} \in \mathbb{R}^{1 \times k}, Z_{i,:} \in \mathbb{R}^{1 \times n}
        slice B_{:,j} \in \mathbb{R}^k, Z_{:,j} \in \mathbb{R}^m
        Z_{i,:} = A_{i,:} B
        Z_{:,j} = A B_{:,j}
        Z_{ij} = A_{i,:} B_{:,j}
        \bar{A}_{i,:} = 2 \bar{Y}_{i,:}
        \sum_i A_{i,:}^\top A_{i,:} = A^\top A
        """,
        name="rows",
    )
    given = "given A \\in \\mathbb{R}^{m \\times k}, c \\in \\mathbb{R}^m\n"
    for line, said in [
        (r"c_{i,:} = c_i", "a row or a column"),
        (r"slice c_{i,:} \in \mathbb{R}^m", "is a number"),
        (r"slice A_{i,:} \in \mathbb{R}^m", "a slice of A is k"),
        (r"A_{i,:} = A_{i,:}", "a row or a column"),
        ("slice A_{i,:} \\in \\mathbb{R}^k\nA_{i,:} = A_{j,:}", "not on the left"),
        (r"let B_{i,:} = A_{i,:}", "must be letters"),
        (r"A = (2 A)_{i,:}", "only in an index of a declared name"),
        ("slice A_{i,:} \\in \\mathbb{R}^k\nA_{i,:} = A_{:,j}", "a row or a column"),
    ]:
        with pytest.raises(Unreadable, match=said):
            derive(given + line, name="rows")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (r"(I - A) x = x - A x", "equal"),
        (r"B I + I B = 2 B", "equal"),
        (r"(c I + A) B = c B + A B", "equal"),
        (r"(I - x x^T)^T = I - x x^T", "equal"),
        (r"\frac{I}{2} x = I I x - \frac{x}{2}", "equal"),
        (r"(I - A) B = B + A B", "refused"),
        (r"\operatorname{tr}(I) = n", "not readable"),
        (r"B + I = B", "ill-formed"),
        (r"c I = 2", "not readable"),
        (r"\text{relu}(I) x = x", "not readable"),
    ],
)
def test_an_identity_takes_its_size_from_what_is_beside_it(line, kind):
    given = r"given A \in \mathbb{R}^{n \times n}, B \in \mathbb{R}^{n \times m}, x \in \mathbb{R}^n, c \in \mathbb{R}"
    assert kinds(f"$$ {line} $$", given) == [kind]


DIRECTIONS = r"""
    given x, v \in \mathbb{R}^t
    let u = \mathbf{1}_t
    let \alpha(x) = \left( \sum_i x_i \right)^{-1}
    let f_\alpha(x) = \alpha(x) x
    let g(x) = \text{softmax}(x) \odot x
    \partial \alpha(x)(v) = - \alpha(x)^2 u^\top v
    \partial f_\alpha(x)(v) = \alpha(x) (I - f_\alpha(x) u^\top) v
    \partial f_\alpha(2 x)(v) = \frac12 \partial f_\alpha(x)(v)
    \partial \text{softmax}(x)(v) = \text{softmax}(x) \odot v - \text{softmax}(x) \text{softmax}(x)^\top v
    \partial \text{relu}(x_1)(v_1) = [x_1 > 0] v_1
"""


def test_a_derivative_applied_to_a_direction():
    derive(DIRECTIONS, name="directions")
    for right, wrong in [
        (r"= - \alpha(x)^2", r"= \alpha(x)^2"),
        (r"(I - f_\alpha(x) u", r"(I - x u"),
        (r"= \frac12 \partial", r"= \partial"),
        (r"[x_1 > 0] v_1", r"[x_1 < 0] v_1"),
    ]:
        assert right in DIRECTIONS
        with pytest.raises(DerivationError, match="does not equal"):
            derive(DIRECTIONS.replace(right, wrong), name="directions")
    with pytest.raises(Unreadable, match="cannot be applied to a number"):
        derive(DIRECTIONS.replace(r"\partial \alpha(x)(v)", r"\partial \alpha(x)(v_1)"), name="d")
    with pytest.raises(Unreadable, match="needs f to be a function of one argument"):
        derive(DIRECTIONS.replace(r"\partial \alpha(x)(v)", r"\partial u(x)(v)"), name="d")


def test_a_maximum_in_a_function_that_is_differentiated():
    text = r"""
        given x, v \in \mathbb{R}^n
        let s(x)_i = \frac{e^{x_i - \max(x)}}{\sum_j e^{x_j - \max(x)}}
        let h(x)_i = e^{x_i - \max(x)}
        \partial s(x)(v) = s(x) \odot v - s(x) s(x)^\top v
    """
    derive(text, name="stable")
    with pytest.raises(Unreadable, match="a maximum may not be ignored"):
        derive(
            text
            + "    \\partial h(x)(v)_i = h(x)_i v_i".replace("(v)_i", "(v)").replace(
                "h(x)_i v_i", r"h(x) \odot v"
            ),
            name="h",
        )


def test_a_partial_derivative_applied_where_that_is_said():
    given = r"loss l; dot differential; given A \in \mathbb{R}^{t \times t}, V, \bar{Y} \in \mathbb{R}^{t \times p}; let Y = A V"
    text = r"""
        $$ \frac{\partial l}{\partial V} (\dot V) = \operatorname{tr} \left( \nabla_Y l^T A \dot V \right) = \langle A \nabla_Y l, \dot V \rangle $$
        $$ \frac{\partial Y}{\partial V} (\dot V) = A \dot V $$
        $$ \frac{\partial l}{\partial V} (A) = 1 $$
    """
    assert kinds(text, given) == ["not readable", "refused", "not readable", "not readable"]
    assert kinds(text, f"{given}; partial applied") == ["equal", "refused", "equal", "ill-formed"]


def test_a_name_equal_to_a_name_is_an_equation():
    given = r"given a, b \in \mathbb{R}; let c = 2 a"
    assert kinds(r"$$ c = b $$", given) == ["refused"]
    assert kinds(r"$$ z = c $$ $$ z = c \quad i = 1, \dots, n $$", given)[0] == "definition"


def test_a_row_is_what_its_text_declares():
    given = r"given A \in \mathbb{R}^{n \times n}, x \in \mathbb{R}^n"
    line = r"$$ (A x)_i = A_{i,:}^T x $$"
    column = r"$$ A_{i,:} \in \mathbb{R}^n $$ "
    row = r"$$ A_{i,:} \in \mathbb{R}^{1 \times n} $$ "
    assert kinds(line, given) == ["not readable"]
    assert kinds(column + line, given) == ["definition", "equal"]
    assert kinds(row + line.replace("^T", ""), given) == ["definition", "equal"]
    assert kinds(row + line, given)[1] != "equal"


def test_a_power_of_a_known_name_is_a_claim():
    given = r"given x \in \mathbb{R}^n; let s = \sqrt{\sum_i x_i^2}"
    assert kinds(r"$$ s^2 = \sum_i x_i^2 $$ $$ s^2 = \sum_i x_i $$", given) == ["equal", "refused"]


def test_a_verdict_rests_on_functions_in_definitions():
    found = verdicts(r"$$ y = 2 x $$", r"given x \in \mathbb{R}; let f(t) = 2 t; let y = f(x)")
    assert [name for name, _ in found[0].basis.definitions] == ["x", "y", "f"]


def test_a_fault_in_a_function_is_shown_where_it_is_called():
    (found,) = verdicts(r"$$ \text{relu}(\max(x)) = 0 $$", r"given x \in \mathbb{R}^n")
    assert found.kind == "not readable"
    assert r"$$ \text{relu}(\max(x)) = 0 $$" in found.message


def test_a_mean():
    given = r"given x \in \mathbb{R}^n, X \in \mathbb{R}^{m \times n}"
    text = r"$$ \text{mean}(x) = \frac{1}{n} \sum_i x_i $$ $$ \text{mean}(x \odot x) = \sum_i x_i^2 $$"
    assert kinds(text, given) == ["equal", "refused"]
    assert kinds(r"$$ \text{mean}(X) = 1 $$", given) == ["not readable"]


LAYERS = r"""
    given x \in \mathbb{R}^d, W^{(1)} \in \mathbb{R}^{h \times d}, W^{(2)} \in \mathbb{R}^{q \times h}
    let \phi(t) = \tanh(t)
    let z = W^{(1)} x
    let a = \phi(z)
    let o = W^{(2)} a
    given \bar{o} \in \mathbb{R}^q
    \bar{a} = {W^{(2)}}^\top \bar{o}
    \bar{z} = \bar{a} \odot \phi'(z)
        = \bar{a} \odot \phi^{\prime} \left( W^{(1)} x \right)
    \bar{W}^{(1)} = \bar{z} x^\top
    \frac{\partial \mathcal{L}}{\partial W^{(2)}} = \bar{o} a^\top
    \phi'(z_i) = 1 - \phi(z_i)^2
    \lVert W^{(1)} \rVert_F^2 = \operatorname{tr}({W^{(1)}}^\top W^{(1)})
    \lVert x \rVert_2^2 = \lVert x \rVert^2
        = x^\top x
"""


def test_layers_primes_and_norms():
    derive(LAYERS, name="layers")
    for right, wrong in [
        (r"{W^{(2)}}^\top \bar{o}", r"{W^{(2)}}^\top o"),
        (r"\odot \phi'(z)", r"\odot \phi(z)"),
        (r"= 1 - \phi(z_i)^2", r"= 1 + \phi(z_i)^2"),
        (r"^\top W^{(1)})", r"^\top W^{(1)} + {W^{(1)}}^\top W^{(1)})"),
        (r"= x^\top x", r"= x^\top x + 1"),
    ]:
        assert right in LAYERS
        with pytest.raises(DerivationError, match="does not equal"):
            derive(LAYERS.replace(right, wrong), name="layers")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r"x_1 = W^{(3)}_1", "cannot read"),
        (r"x = W^{(3)} x", "is not declared"),
        (r"x = x'(x)", "a prime is read after a function"),
        (r"x = \text{softmax}'(x)", "a prime is read after a function of a number"),
        (r"x_1 = \lVert W^{(1)} \rVert", "a norm takes a column"),
        (r"x_1 = \lVert x_1 \rVert", "a norm takes a column"),
        (r"x = {x + x}^2", "cannot read"),
    ],
)
def test_what_is_like_a_layer_a_prime_or_a_norm(line, said):
    with pytest.raises(Unreadable, match=said):
        derive("given x \\in \\mathbb{R}^n, W^{(1)} \\in \\mathbb{R}^{n \\times n}\n" + line, name="x")


def test_words_between_equations_and_bars_of_norms():
    given = r"given x \in \mathbb{R}^n, W \in \mathbb{R}^{n \times n}"
    text = r"$$ \|x\|^2 = x^T x \text{ and } \|W\|_F^2 = \operatorname{tr}(W^T W) \quad \text{and} \quad \|x\|^2 \|W\|_F^2 = 1 $$"
    assert kinds(text, given) == ["equal", "equal", "refused"]


def test_a_number_by_an_array():
    given = r"given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times n}; let s = \sum_{i,j} W_{ij}^2 x_j"
    text = r"$$ \frac{\partial s}{\partial W} = 2 W \operatorname{diag}(x) = W $$"
    assert kinds(text, given) == ["equal", "refused"]
    numerator = text.replace(r"2 W \operatorname{diag}(x)", r"2 \operatorname{diag}(x) W^T")
    assert kinds(numerator, "layout numerator; " + given) == ["equal", "ill-formed"]
    # It holds if s is kept constant, so the verdict is not a rejection.
    held = r"$$ \frac{\partial r}{\partial x} = 2 x + s \mathbf{1}_n $$"
    of_both = r"given x \in \mathbb{R}^n; let s = \sum_j x_j; let r = \sum_j x_j^2 + s \sum_j x_j"
    assert kinds(held, of_both) == ["not readable"]
    assert kinds(held, of_both + "; partial total") == ["refused"]
    assert kinds(held.replace("+ s", "+ 2 s"), of_both) == ["equal"]


@pytest.mark.parametrize(
    ("definitions", "line", "kind"),
    [
        # A comparison has its own cases in each call.
        (
            r"given x \in \mathbb{R}^n",
            r"\text{relu}(x_1 - 100) + \text{relu}(x_2) = \text{relu}(x_2)",
            "refused",
        ),
        # A definition whose value for a number is a matrix.
        (
            r"given x \in \mathbb{R}^m, W \in \mathbb{R}^{n \times m}; let h(t) = W t",
            r"h(x)_i = \sum_j W_{ij} x_j",
            "equal",
        ),
        (
            r"given x \in \mathbb{R}^n, W \in \mathbb{R}^{m \times m}; let h(t) = W t",
            r"h(x) = x",
            "not readable",
        ),
        # What a name in a definition depends on.
        (
            r"given x, v \in \mathbb{R}^n; let m = \text{mean}(x); let f(y) = y - m \mathbf{1}_n",
            r"\partial f(x)(v) = v",
            "equal",
        ),
        # A derivative of a derivative.
        (
            r"given x, v, w \in \mathbb{R}^n; let g(x) = x \odot x \odot x; let h(x) = \partial g(x)(v)",
            r"\partial h(x)(w) = 6 x \odot v \odot w",
            "equal",
        ),
        (
            r"given x, v, w \in \mathbb{R}^n; let g(x) = x \odot x \odot x; let h(x) = \partial g(x)(v)",
            r"\partial h(x)(w) = 0 w",
            "refused",
        ),
        # Only a maximum that does not matter is read.
        (r"given x \in \mathbb{R}^n", r"\max(2 x) = 2 \max(x)", "not readable"),
        (r"given x \in \mathbb{R}^n", r"\max(2 x) = 3 \max(x)", "refused"),
        (r"given x \in \mathbb{R}^n", r"x_i - \max(x) = x_i", "refused"),
        # A parameter hides a function.
        (
            r"let \sigma(t) = \frac{1}{1 + e^{-t}}; let g(\sigma) = \sigma \cdot (1 - \sigma); given x \in \mathbb{R}",
            r"g(x) = x - x^2",
            "equal",
        ),
        (
            r"given A \in \mathbb{R}^{m \times n}, B \in \mathbb{R}^{n \times m}",
            r"(A B)_{ij}^T = (A B)_{ij}",
            "not readable",
        ),
        (r"given x \in \mathbb{R}^{1 \times n}", r"x I = I x", "equal"),
        (
            r"given A \in \mathbb{R}^{b \times s \times s}, V \in \mathbb{R}^{b \times s \times d}",
            r"Y = A V",
            "not readable",
        ),
        (
            r"given x \in \mathbb{R}^n, A \in \mathbb{R}^{n \times m}; slice A_i \in \mathbb{R}^m; let f(A)_i = 2 A_i",
            r"f(x) = 2 x",
            "equal",
        ),
        (r"given x \in \mathbb{R}^n; let f(z) = z_0", r"f(x) = x_1", "not readable"),
        (r"given x \in \mathbb{R}^n", r"x_0 = x_1", "not readable"),
        (r"given x \in \mathbb{R}^{1 \times n}", r"\text{softmax}(x) = \text{softmax}(x^T)^T", "equal"),
        (r"given x \in \mathbb{R}^n", r"\operatorname{tr}(I) I x = n x", "not readable"),
        (r"given x \in \mathbb{R}", r"f(x^2) = x^2 + 1", "not readable"),
        (r"given W \in \mathbb{R}^{m \times n}", r"\max_{i,j} W_{ij} = \max_{j,i} W_{ij}", "equal"),
        (
            r"given A, B \in \mathbb{R}^{n \times n}",
            r"\sum_k A_{ik}^{-1} A_{kj} = \delta_{ij}",
            "not readable",
        ),
        (r"given A, B \in \mathbb{R}^{n \times n}", r"(A B)_{ij}^{-1} = 1", "not readable"),
        (r"given A \in \mathbb{R}^{n \times m}", r"A_{ij}^{-1} A_{ij} = 1", "equal"),
        (
            r"given \text{no bias}, \text{nobias} \in \mathbb{R}",
            r"\text{no bias} = \text{nobias}",
            "not readable",
        ),
        # A comparison in a definition, of which the points drawn meet only one case.
        (r"given c \in \mathbb{R}; let y = \max(0, c - 100)", r"y = 0", "refused"),
        (
            r"given x \in \mathbb{R}^n",
            r"\sum_{i \ne j} x_i x_j = \left( \sum_i x_i \right)^2 - \sum_i x_i^2",
            "equal",
        ),
        (
            r"given X \in \mathbb{R}^{m \times n}, W \in \mathbb{R}^{n \times k}",
            r"Y = X W \in \mathbb{R}^{k \times m}",
            "not readable",
        ),
        (
            r"given x, v \in \mathbb{R}; let m = x^2; let y = x m; partial applied",
            r"\frac{\partial y}{\partial x}(v) = m v",
            "not readable",
        ),
        (r"given x \in \mathbb{R}; let f(t) = t^2", r"f^2(x) = x^4", "not readable"),
        (r"given x \in \mathbb{R}; let F(t) = \log(\text{relu}(t))", r"F(x) = x", "not readable"),
        (r"given x \in \mathbb{R}^n", r"\langle I, I \rangle I x = n x", "not readable"),
        # A region between two thresholds, and a comparison with its own case for an index.
        (r"given x \in \mathbb{R}", r"\max(0, x) - \max(0, x - 1) = [x > 0]", "refused"),
        (r"given c \in \mathbb{R}", r"[c > 0] [c < 0.1] = 0", "refused"),
        (
            r"given x \in \mathbb{R}^n",
            r"\sum_i \max(0, x_i - 100 \cdot \delta_{i1}) = \sum_i \max(0, x_i) - \max(0, x_1)",
            "refused",
        ),
        (
            r"given x \in \mathbb{R}^n",
            r"\text{relu} \left( \begin{bmatrix} x_1 - 100 \\ x_2 \end{bmatrix} \right) = \begin{bmatrix} 0 \\ \text{relu}(x_2) \end{bmatrix}",
            "refused",
        ),
        (r"given c \in \mathbb{R}; let f(t) = t^2", r"f \cdot (c) = c^2", "not readable"),
    ],
)
def test_what_a_hostile_reader_tried(definitions, line, kind):
    assert kinds(f"$$ {line} $$", definitions) == [kind]


def test_definitions_that_would_be_guessed():
    for definition, said in [
        (r"f(x) = x - m \mathbf{1}_n", "m is defined by x"),
        (r"f(n) = \sum_{i=1}^n x_i", "n is a dimension"),
        (r"g(\sigma) = \sigma(1 - \sigma)", None),
        (r"g(e) = c e^{-e}", "e has another meaning"),
    ]:
        text = f"given x \\in \\mathbb{{R}}^n, c \\in \\mathbb{{R}}\nlet m = \\text{{mean}}(x)\nlet {definition}\n"
        with pytest.raises(Unreadable, match=said or "prints like a function"):
            derive(text + ("c = g(c)" if said is None else ""), name="x")


def test_a_derivative_with_its_variable_below_and_words_between():
    given = r"loss l; given o, y \in \mathbb{R}^q; let l = \sum_k y_k \log \sum_j e^{o_j} - \sum_k y_k o_k"
    text = (
        r"$$ s_i = \text{softmax}(o)_i \text{ where } \partial_{o_j} l = s_j \sum_k y_k - y_j = s_j - y_j $$"
    )
    assert kinds(text, given) == ["definition", "equal", "refused"]
    assert kinds(
        text,
        given.replace("given o, y", r"given o, u").replace(
            "let l", r"let y_i = \frac{u_i}{\sum_k u_k}; let l"
        ),
    ) == [
        "definition",
        "equal",
        "equal",
    ]


GIVEN = r"given x, v \in \mathbb{R}^n, A, X \in \mathbb{R}^{n \times n}, c \in \mathbb{R}; let f(z) = A \, (z \odot z); let g(z) = \sum_i z_i^3; let r(t) = t^3; let s(z) = \text{softmax}(z)"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (r"\partial f(x) = 2 A \operatorname{diag}(x)", r"\partial f(x) = 2 \operatorname{diag}(x) A"),
        (r"\partial f(x) v = \partial f(x)(v)", r"\partial f(x) v = \partial f(x)(v + v)"),
        (r"\partial s(x) = \operatorname{diag}(s(x)) - s(x) s(x)^T", r"\partial s(x) = \operatorname{diag}(s(x)) + s(x) s(x)^T"),
        (r"\partial \exp(x) = \operatorname{diag}(\exp(x))", r"\partial \exp(x) = \operatorname{diag}(x)"),
        (r"\partial g(x) = \nabla g(x)^T", r"\partial g(x) = 2 \nabla g(x)^T"),
        (r"\partial r(c) = 3 c^2", r"\partial r(c) = 2 c^2"),
        (r"\nabla g(x) = 3 x \odot x", r"\nabla g(x) = 2 x \odot x"),
        (r"\nabla r(c) = 3 c^2", r"\nabla r(c) = 3 c"),
        (r"\nabla_x (x^T A x) = (A + A^T) x", r"\nabla_x (x^T A x) = 2 A x"),
        (r"\nabla_{x} g(x) = \nabla g(x)", r"\nabla_{x} g(x) = 2 \nabla g(x)"),
        (r"\nabla_A (x^T A v) = x v^T", r"\nabla_A (x^T A v) = v x^T"),
        (r"\frac{d}{dc} r(c) = 3 c^2", r"\frac{d}{dc} r(c) = 3 c"),
        (r"\frac{\mathrm{d}}{\mathrm{d}c} (c^4) = 4 c^3", r"\frac{\mathrm{d}}{\mathrm{d} c} (c^4) = 3 c^3"),
    ],
)  # fmt: skip
def test_jacobians_and_gradients_of_functions(right, wrong):
    definitions = f"layout numerator; {GIVEN}"
    assert one(right, definitions).kind == "equal"
    assert one(wrong, definitions).kind == "refused"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"\partial f(x) = A", "say layout numerator or layout denominator"),
        (r"\nabla f(x) = x", "only a number has a gradient; this is a matrix of shape n × 1"),
        (r"\nabla_x f(x) = x", "only a number has a gradient"),
        (r"\nabla_{v + x} g(x) = x", "cannot read this|a gradient of what"),
        (r"\nabla q(x) = x", "needs f to be a function of one argument"),
    ],
)
def test_what_has_no_certain_jacobian_is_not_readable(text, why):
    verdict = one(text, GIVEN)
    assert verdict.kind == "not readable"
    assert any(part in verdict.message for part in why.split("|"))


def test_the_layout_turns_a_jacobian():
    assert (
        one(r"\partial f(x) = 2 \operatorname{diag}(x) A^T", f"layout denominator; {GIVEN}").kind == "equal"
    )


def test_a_total_derivative_is_written_with_d_unless_d_has_a_meaning():
    definitions = r"given x \in \mathbb{R}; let g = x^2; let y = \sin g"
    assert one(r"\frac{dy}{dx} = \frac{dy}{dg} \cdot \frac{dg}{dx}", definitions).kind == "equal"
    assert one(r"\frac{dy}{dx} = 2 x \sin g", definitions).kind == "refused"
    with_d = definitions + r"; given d \in \mathbb{R}"
    assert one(r"\frac{d y}{d x} = \frac{y}{x}", with_d + "; factor d").kind == "equal"
    assert (
        one(r"\frac{d_1 y}{d_1 x} = \frac{y}{x}", definitions + r"; given d_1 \in \mathbb{R}").kind == "equal"
    )


def test_a_jacobian_at_a_function_of_a_name_is_not_refused():
    right = r"\partial f(\exp(x)) \partial \exp(x) = 2 A \operatorname{diag}(\exp(2 x))"
    assert one(right, f"layout numerator; {GIVEN}").kind == "equal"
    assert one(right.replace("2 A", "A"), f"layout numerator; {GIVEN}").kind == "not readable"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (r"F(w, q) = -\sum_k w_i \log q_i", "not readable"),
        (r"F(w, q) = -\sum_{k=1}^n w_i \log q_i", "not readable"),
        (r"F(w, q) = -\sum_k w_k \log q_k", "definition"),
        (r"F(w, q) = -\sum_i \sum_k w_i q_k", "definition"),
        (r"F(w, q) = -w_i \log q_i", "definition"),
        (r"F(w)_i = \sum_{k=1}^n w_i", "definition"),
        (r"F(w) = \sum_{k=1}^n 3", "definition"),
        (r"F(w) = \sum_j \sum_{k=1}^n w_j", "definition"),
    ],
)
def test_a_function_is_not_defined_by_a_sum_without_its_letter_over_a_free_index(line, kind):
    verdict = one(line, r"given w, q \in \mathbb{R}^n")
    assert verdict.kind == kind
    assert ("the index i is only on the right" in verdict.message) == (kind == "not readable")
