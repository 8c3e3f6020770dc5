"""Recurrences: right lines are accepted; a shift, a transpose, a term or a boundary that is wrong is refused."""

import pytest

from backpass.derivation import derive
from backpass.derivation.language.parse import DerivationError

from .judging import verdicts

RNN = (
    r"""
    loss L
    range t = 1, \dots, T
    given x_t \in \mathbb{R}^m, g_t \in \mathbb{R}^n, h_0 \in \mathbb{R}^n
    given W \in \mathbb{R}^{n \times n}, U \in \mathbb{R}^{n \times m}
    let h_t = \tanh(W h_{t-1} + U x_t)
    let D_t = \operatorname{diag}(\mathbf{1} - h_t \odot h_t)
    let L = \sum_t g_t^\top h_t
    """,
    [
        r"\frac{\partial L}{\partial h_T} = g_T",
        r"\frac{\partial L}{\partial h_t} = g_t + W^\top D_{t+1} \frac{\partial L}{\partial h_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial W} = \sum_t D_t \frac{\partial L}{\partial h_t} h_{t-1}^\top",
        r"\frac{\partial L}{\partial U} = \sum_{t=1}^T D_t \frac{\partial L}{\partial h_t} x_t^\top",
        r"\frac{\partial L}{\partial h_0} = W^\top D_1 \frac{\partial L}{\partial h_1}",
    ],
    [
        r"\frac{\partial L}{\partial h_t} = g_t + W D_{t+1} \frac{\partial L}{\partial h_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial h_t} = g_t + W^\top D_t \frac{\partial L}{\partial h_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial h_t} = W^\top D_{t+1} \frac{\partial L}{\partial h_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial W} = \sum_{t=2}^T D_t \frac{\partial L}{\partial h_t} h_{t-1}^\top",
        r"\frac{\partial L}{\partial W} = \sum_{t=1}^{T-1} D_t \frac{\partial L}{\partial h_t} h_{t-1}^\top",
        r"\frac{\partial L}{\partial W} = \sum_t D_t \frac{\partial L}{\partial h_t} h_t^\top",
        r"\frac{\partial L}{\partial h_0} = W^\top \frac{\partial L}{\partial h_1}",
    ],
)
SCAN = (
    r"""
    loss L
    range t = 1, \dots, T
    given a_t, b_t, c_t, x_t, g_t \in \mathbb{R}
    constant h_0 \in \mathbb{R}
    assume h_0 = 0
    let h_t = a_t h_{t-1} + b_t x_t
    let L = \sum_t g_t c_t h_t
    assume \frac{\partial L}{\partial h_{T+1}} = 0; assume a_{T+1} = 0
    """,
    [
        r"h_t = \sum_{s=1}^t \left( \prod_{k=s+1}^t a_k \right) b_s x_s",
        r"\frac{\partial L}{\partial h_t} = c_t g_t + a_{t+1} \frac{\partial L}{\partial h_{t+1}}",
        r"\frac{\partial L}{\partial h_t} = \sum_{s=t}^T \left( \prod_{k=t+1}^s a_k \right) c_s g_s",
        r"\frac{\partial L}{\partial a_t} = h_{t-1} \frac{\partial L}{\partial h_t}",
        r"\frac{\partial L}{\partial x_t} = b_t \frac{\partial L}{\partial h_t}",
    ],
    [
        r"2 h_t = 2 \sum_{s=1}^t \left( \prod_{k=s}^t a_k \right) b_s x_s",
        r"2 h_t = 2 \sum_{s=1}^{t-1} \left( \prod_{k=s+1}^t a_k \right) b_s x_s",
        r"\frac{\partial L}{\partial h_t} = c_t g_t + a_t \frac{\partial L}{\partial h_{t+1}}",
        r"\frac{\partial L}{\partial h_t} = \sum_{s=t}^{T-1} \left( \prod_{k=t+1}^s a_k \right) c_s g_s",
        r"\frac{\partial L}{\partial a_t} = h_t \frac{\partial L}{\partial h_t}",
    ],
)
DELTA_RULE = (
    r"""
    loss L
    range t = 1, \dots, T
    given k_t, q_t \in \mathbb{R}^d, v_t, g_t \in \mathbb{R}^p, \beta_t, \alpha_t \in \mathbb{R}
    given S_0 \in \mathbb{R}^{p \times d}
    let S_t = \alpha_t S_{t-1} (I - \beta_t k_t k_t^\top) + \beta_t v_t k_t^\top
    let o_t = S_t q_t
    let L = \sum_t g_t^\top o_t
    let e_t = v_t - \alpha_t S_{t-1} k_t
    """,
    [
        r"S_t = \alpha_t S_{t-1} + \beta_t e_t k_t^\top",
        r"\frac{\partial L}{\partial q_t} = S_t^\top g_t",
        r"\frac{\partial L}{\partial S_t} = g_t q_t^\top + \alpha_{t+1} \frac{\partial L}{\partial S_{t+1}}"
        r" (I - \beta_{t+1} k_{t+1} k_{t+1}^\top) \quad (t < T)",
        r"\frac{\partial L}{\partial v_t} = \beta_t \frac{\partial L}{\partial S_t} k_t",
        r"\frac{\partial L}{\partial \beta_t} = e_t^\top \frac{\partial L}{\partial S_t} k_t",
        r"\frac{\partial L}{\partial k_t} = \beta_t \left( \frac{\partial L}{\partial S_t} \right)^\top e_t"
        r" - \alpha_t \beta_t S_{t-1}^\top \frac{\partial L}{\partial S_t} k_t",
    ],
    [
        r"2 S_t = 2 \alpha_t S_{t-1} + 2 \beta_t e_t k_{t+1}^\top \quad (t < T)",
        r"\frac{\partial L}{\partial q_t} = S_{t-1}^\top g_t",
        r"\frac{\partial L}{\partial S_t} = g_t q_t^\top + \alpha_t \frac{\partial L}{\partial S_{t+1}}"
        r" (I - \beta_{t+1} k_{t+1} k_{t+1}^\top) \quad (t < T)",
        r"\frac{\partial L}{\partial S_t} = g_t q_t^\top + \alpha_{t+1} \frac{\partial L}{\partial S_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial \beta_t} = e_t^\top \frac{\partial L}{\partial S_{t+1}} k_t \quad (t < T)",
        r"\frac{\partial L}{\partial k_t} = \beta_t \left( \frac{\partial L}{\partial S_t} \right)^\top e_t",
    ],
)
LSTM = (
    r"""
    loss L
    range t = 1, \dots, T
    given a_t, b_t, x_t, g_t, w, u, h_0, c_0 \in \mathbb{R}
    let i_t = \text{sigmoid}(a_t + w h_{t-1})
    let f_t = \text{sigmoid}(b_t + u h_{t-1})
    let c_t = f_t c_{t-1} + i_t x_t
    let h_t = \tanh(c_t)
    let L = \sum_t g_t h_t
    """,
    [
        r"\frac{\partial L}{\partial c_t} = (1 - h_t^2) \frac{\partial L}{\partial h_t} + f_{t+1} \frac{\partial L}{\partial c_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial f_t} = c_{t-1} \frac{\partial L}{\partial c_t}",
        r"\frac{\partial L}{\partial h_t} = g_t + w i_{t+1} (1 - i_{t+1}) \frac{\partial L}{\partial i_{t+1}}"
        r" + u f_{t+1} (1 - f_{t+1}) \frac{\partial L}{\partial f_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial w} = \sum_t h_{t-1} i_t (1 - i_t) x_t \frac{\partial L}{\partial c_t}",
    ],
    [
        r"\frac{\partial L}{\partial c_t} = \frac{\partial L}{\partial h_t} + f_{t+1} \frac{\partial L}{\partial c_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial c_t} = (1 - h_t^2) \frac{\partial L}{\partial h_t} + f_t \frac{\partial L}{\partial c_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial f_t} = c_t \frac{\partial L}{\partial c_t}",
        r"\frac{\partial L}{\partial h_t} = g_t + w i_{t+1} (1 - i_{t+1}) \frac{\partial L}{\partial i_{t+1}} \quad (t < T)",
        r"\frac{\partial L}{\partial w} = \sum_t h_t i_t (1 - i_t) x_t \frac{\partial L}{\partial c_t}",
    ],
)
TEXTS = {"RNN": RNN, "scan": SCAN, "delta rule": DELTA_RULE, "LSTM": LSTM}


@pytest.mark.parametrize(
    ("text", "line"), [(name, k) for name, text in TEXTS.items() for k in range(len(text[1]))]
)
def test_a_recurrence_and_its_gradients_are_equal(text, line):
    definitions, right, _ = TEXTS[text]
    (verdict,) = verdicts(f"$$ {right[line]} $$", definitions)
    assert verdict.kind == "equal", verdict.message


@pytest.mark.parametrize(
    ("text", "line"), [(name, k) for name, text in TEXTS.items() for k in range(len(text[2]))]
)
def test_a_wrong_index_factor_term_or_range_is_refused(text, line):
    definitions, _, wrong = TEXTS[text]
    (verdict,) = verdicts(f"$$ {wrong[line]} $$", definitions)
    assert verdict.kind == "refused", verdict.message


def test_a_display_defines_a_sequence_by_a_recurrence():
    text = r"""
$$ h_t = A h_{t-1} + x_t $$

$$ H = \begin{bmatrix} 1 & 0 \end{bmatrix} \begin{bmatrix} 1 \\ 1 \end{bmatrix} $$

$$ h_{t+1} - x_{t+1} = A h_t \quad (t < T) $$

$$ h_{t+1} - x_t = A h_t \quad (t < T) $$
"""
    given = r"given X \in \mathbb{R}^{T \times n}, A \in \mathbb{R}^{n \times n}, h_0 \in \mathbb{R}^n; read x as X; slice X_t \in \mathbb{R}^n"
    assert [v.kind for v in verdicts(text, given)] == ["definition", "definition", "equal", "refused"]


def test_a_sequence_is_the_rows_of_an_array():
    derive(
        r"""
    given X \in \mathbb{R}^{T \times n}, W \in \mathbb{R}^{n \times p}
    slice X_t \in \mathbb{R}^n
    let   y_t = W^\top X_t
    y = X W
    y_{tj} = \sum_i X_{ti} W_{ij}
    """,
        name="rows",
    )


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (r"2 h_t = 2 h_{t+1}", r"assume h_{T+1} = 0"),
        (
            r"\frac{\partial L}{\partial h_t} = g_t + W^\top D_{t+1} \frac{\partial L}{\partial h_{t+1}}",
            "D has no element t+1 for T = 2 and t+1 = 3: state a condition such as t < T",
        ),
        (
            r"\frac{\partial L}{\partial x_t} = \frac{\partial L}{\partial x_{t-1}}",
            r"no \bar{x}_{0} is declared",
        ),
        (r"2 h_t = 2 h_{t-2}", "h has no element t-2 for T = 2 and t-2 = -1"),
        (r"2 x_1 = 2 x_0", "x has no element 0 for T = 2"),
        (r"\sum_{t=1}^n x_t = x_1", "this runs to T elsewhere"),
        (r"\sum_{t=1}^n \sum_{k=1}^t g_k = g_1", "this runs to T elsewhere"),
        (r"W^T h_t = h_t", r"say: read ^T as ^\top"),
    ],
)
def test_nothing_outside_a_sequence_is_0_unless_it_is_declared(formula, message):
    (verdict,) = verdicts(f"$$ {formula} $$", RNN[0])
    assert verdict.kind == "not readable"
    assert message in verdict.message


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (r"let h_t = x_t h_t + h_{t-1}", "an element of h is defined by itself"),
        ("let h_t = x_t c_t\nlet c_t = h_t", "an element of c is defined by itself"),
        (r"let h_t = x_t h_{t+1}", "h has no element t+1"),
        (r"let b_t = x_t b_{t-1}", "b_{t-1} is not declared"),
        (r"let h_t = 2 h_{t-1}", "what does t run over? Say range t = 1, …, n"),
        ("let y_t = x_t h_{t-1}\ny_t = x_t h_{t-1}", "h is not defined"),
        ("let y_t = x_t h", "h is not declared"),
        ("range n = 1, …, n", "expected a range such as"),
        (r"range x = 1, \dots, n", "x is already declared"),
        ("range t = 1, ..., n\nrange t = 1, ..., m", "t already runs to n"),
        ("assume x_{n+2} = 0", "sets its element T+1 to 0"),
        (r"given \bar{h} \in \mathbb{R}^n" + "\nlet h_t = x_t h_{t-1}", "h is defined by h"),
    ],
)
def test_a_definition_that_determines_nothing_is_refused(lines, message):
    given = r"given x \in \mathbb{R}^n, z \in \mathbb{R}^m, h_0, c_0 \in \mathbb{R}"
    with pytest.raises(DerivationError) as refused:
        derive(f"{given}\n{lines}\n1 = 1", name="undetermined")
    assert message in str(refused.value)


def test_a_recurrence_may_run_backwards_from_the_element_behind_it():
    definitions = r"""
    range t = 1, \dots, T
    given W \in \mathbb{R}^{n \times n}, x_t, g_{T+1} \in \mathbb{R}^n
    let g_t = W^\top g_{t+1} + x_t
    """
    text = r"""
$$ g_T = W^\top g_{T+1} + x_T $$

$$ g_t - x_t = W^\top g_{t+1} $$

$$ g_t - x_t = W g_{t+1} $$
"""
    assert [v.kind for v in verdicts(text, definitions)] == ["equal", "equal", "refused"]


def test_a_state_is_differentiated_by_another_and_moves_with_it():
    definitions = r"""
    range t = 1, \dots, T
    given a_t, w, h_0 \in \mathbb{R}
    let h_t = a_t h_{t-1} + w
    dot differential
    """
    text = r"""
$$ \frac{\partial h_T}{\partial h_t} = \prod_{k=t+1}^T a_k $$

$$ \frac{\partial h_T}{\partial h_t} = \prod_{k=t}^T a_k $$

$$ \frac{\partial h_t}{\partial w} = 1 + a_t \frac{\partial h_{t-1}}{\partial w} $$

$$ \frac{\partial h_t}{\partial w} = 1 $$

$$ \dot{h}_t = a_t \dot{h}_{t-1} + \dot{a}_t h_{t-1} + \dot{w} $$

$$ \dot{h}_t = a_t \dot{h}_t + \dot{a}_t h_{t-1} + \dot{w} $$
"""
    found = [v.kind for v in verdicts(text, definitions)]
    assert found == ["equal", "refused", "equal", "not readable", "equal", "refused"]


def test_whether_a_state_s_gradient_goes_through_later_states_is_not_guessed():
    direct, wrong = (rf"$$ \frac{{\partial L}}{{\partial h_t}} = {c} g_t $$" for c in ("", "2"))
    definitions = RNN[0] + "bar gradient"
    (asked,) = verdicts(direct, definitions)
    assert asked.kind == "not readable"
    assert "say: partial total" in asked.message
    (bar,) = verdicts(r"$$ \bar{h}_t = g_t $$", definitions)
    for found in (*verdicts(direct, RNN[0] + "partial total"), *verdicts(wrong, definitions), bar):
        assert found.kind == "refused"


def test_a_shape_that_does_not_fit_beside_a_sequence():
    definitions = r"""
    loss L; range t = 1, \dots, N
    given x_t \in \mathbb{R}^m, g_t, h_0 \in \mathbb{R}^n
    given W \in \mathbb{R}^{n \times n}, U \in \mathbb{R}^{n \times m}
    let h_t = W h_{t-1} + U x_t; let L = \sum_t g_t^\top h_t; partial total
    """
    right, wrong = (
        rf"$$ \frac{{\partial L}}{{\partial x_t}} = {u} \frac{{\partial L}}{{\partial h_t}} $$"
        for u in (r"U^\top", "U")
    )
    (found,), (other,) = verdicts(right, definitions), verdicts(wrong, definitions)
    assert (found.kind, other.kind) == ("equal", "ill-formed")
    assert r"U^\top" in other.message
