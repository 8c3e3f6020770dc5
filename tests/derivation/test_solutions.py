"""An equation below one that restricts its name is a claim, and defines nothing."""

import pytest

from backpass.derivation.document import read_document
from backpass.derivation.judge import judge
from backpass.derivation.text.limit import TooLong
from tests.derivation.test_first_sight import displays, kinds, sight

# Equations, the last with a value that solves those above it, and one that does not.
SOLVED = {
    "linear": (["2w - 6 = 0", "w = {}"], "3", "4"),
    "the name on the right": (["5 = 2w - 1", "w = {}"], "3", "2"),
    "a square": (["w^2 = 9", "w = {}"], "3", "4"),
    "a product": (["x(x - 3) = 0", "x = {}"], "3", "-3"),
    "a critical point": (["f(x) = x^2 - 4x", "f'(x) = 2x - 4 = 0", "x = {}"], "2", "3"),
    "a derivative": (
        ["f(x) = x^2 - 4x", r"\frac{df}{dx} = 2x - 4", r"\frac{df}{dx} = 0", "x = {}"],
        "2",
        "3",
    ),
    "an estimate": (["f(w) = (w - 3)^2", "f'(w) = 2(w - 3) = 0", r"\hat{w} = {}"], "3", "4"),
    "a labelled estimate": (
        ["f(w) = (w - 3)^2", "f'(w) = 2(w - 3) = 0", r"\hat{w}_{\text{ML}} = {}"],
        "3",
        "4",
    ),
    "a value of a name": ([r"\hat{y} = 3x + 1", r"\hat{y} = 10", "x = {}"], "3", "4"),
    "two equations": (["x + y = 10", "x - y = 2", "x = {}", "y = 4"], "6", "7"),
    "a second value": (["h = 2u", "u = 3", "h = {}"], "6", "5"),
    "letters": (["a x + b = 0", "x = {}"], r"-\frac{b}{a}", r"\frac{b}{a}"),
    "a product of letters": (["a x = b", "x = {}"], r"\frac{b}{a}", r"\frac{a}{b}"),
    "least squares": (
        [r"L = \|X w - y\|^2", r"\nabla_w L = 2 X^\top (X w - y) = 0", "w = {}"],
        r"(X^\top X)^{-1} X^\top y",
        r"(X X^\top)^{-1} X^\top y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_a_solution_is_accepted_and_another_value_is_not(name):
    formulas, right, wrong = SOLVED[name]
    place = next(n for n, one in enumerate(formulas) if one.endswith("{}"))
    rest = sum(one.count("=") for one in formulas[place + 1 :])

    def found(value):
        texts = [*formulas[:place], formulas[place].replace("{}", value), *formulas[place + 1 :]]
        return sight(displays(*texts))[-1 - rest]

    assert found(right).kind in ("definition", "equal")
    assert found(wrong).kind in ("refused", "not readable")


def test_a_contradiction_is_refused_and_nothing_rests_on_it():
    text = displays("2w - 6 = 0", "w = {}", "w^2 = {}^2")
    _, value, square = sight(text.replace("{}", "4"))
    assert (value.kind, value.message) == ("refused", "line 1 does not hold with it")
    assert square.kind == "not readable"
    assert kinds(text.replace("{}", "3"))[1:] == ["equal", "equal"]


def test_nothing_inferred_is_needed():
    found = [
        judge(read_document(displays("2w - 6 = 0", f"w = {n}", f"w^2 = {n * n}"), "markdown")) for n in (3, 4)
    ]
    assert [one.kind for one in found[0]] == ["not readable", "definition", "equal"]
    assert [one.kind for one in found[1]] == ["not readable", "refused", "not readable"]


@pytest.mark.parametrize(
    "text",
    [
        "$$ 2w - 6 = 0 $$\n\nLet now\n\n$$ w = 4 $$\n",
        "$$ 2w - 6 = 0 $$\n\n$$ w := 4 $$\n",
        "$$ 2w - 6 = 0 $$\n\n## Another one\n\n$$ w = 4 $$\n",
        "$$ w + w = 2w $$\n\n$$ w = 4 $$\n",
        "$$ 2w - 6 = 0 $$\n\n<!-- derive: restart -->\n\n$$ w = 4 $$\n",
    ],
)
def test_a_name_is_defined_anew_where_the_text_says_so(text):
    assert kinds(text)[-1] == "definition"


def test_a_value_is_not_refused_where_another_equation_may_be_meant():
    assert kinds("$$ 2w - 6 = 0 $$\n\nThe next exercise is easier.\n\n$$ w = 4 $$\n")[-1] == "not readable"
    assert kinds(displays("z = x + y", "x + y = 10", "x = 7"))[-1] == "not readable"
    assert kinds(displays("2w = 6", "2w = 8", "w = 4"))[-1] == "not readable"


def test_an_equation_in_a_sentence_restricts_a_name():
    text = "Suppose $2w - 6 = 0$. Then\n\n$$ w = {} $$\n"
    assert kinds(text.replace("{}", "3")) == ["definition"]
    assert kinds(text.replace("{}", "4")) == ["refused"]
    assert kinds("The layer is $y = W x$.\n\n$$ y = W x $$\n") == ["definition"]


@pytest.mark.parametrize("arrow", [r"\implies", r"\Rightarrow", "=>", r"\text{ so }"])
def test_a_power_is_not_defined_below_a_row_that_was_not_read(arrow):
    assert kinds(displays(f"2w = 6 {arrow} w = 4", "w^2 = 16"))[-1] == "not readable"


def test_the_value_of_a_function_is_not_its_definition():
    text = "Let $f(w) = (w - 3)^2$.\n\n" + displays("f'(w) = 2(w - 3) = 0", r"\hat{w} = 4", r"f(\hat{w}) = 1")
    assert kinds(text)[-2:] == ["refused", "not readable"]


def test_a_function_of_another_variable_is_asked_about():
    vector = r"Let $x \in \mathbb{R}^n$." + "\n\n"
    *_, asked = sight(vector + displays("f(t) = t^2", r"f(x) = \sum_i x_i^2"))
    assert asked.kind == "not readable"
    assert "line 3 defines f as a function of t" in asked.message
    assert kinds(displays("f(t) = t^2", "f(3) = 9", "f(3) = 8"))[1:] == ["equal", "refused"]


def test_a_sentence_that_is_complete_introduces_no_definition():
    assert kinds("Let $c = 2$.\n\n$$ c^3 = 6 $$\n") == ["not readable"]


def test_what_a_name_depends_on_is_named_with_its_label():
    *_, found = sight(
        displays("u = a t", r"\frac{\partial z_1}{\partial t} = \frac{\partial z_1}{\partial u} a")
    )
    assert "z_{1} depends on t only through u" in found.inferred


def test_declared_names_are_not_supposed_to_be_numbers(monkeypatch):
    def late(seconds):
        raise TooLong

    monkeypatch.setattr("backpass.derivation.judge.limited", late)
    text, given = displays("(a + b)^2 = a^2 + 2 a b + b^2"), r"given a, b \in \mathbb{R}"
    for definitions, words in ((given, ()), ("", ("names are numbers",))):
        document = read_document(text, "markdown", definitions)
        (found,) = judge(document, definitions, infer=True)
        assert (found.kind, found.inferred) == ("equal", words)


def test_a_derivative_that_is_set_to_0_without_a_word_and_solved_below():
    given = r"<!-- derive: given w \in \mathbb{R}; let Q = (1 - w)^3 w -->"
    slope = r"$$ \frac{\partial}{\partial w} \log Q = 0 $$"
    solution = "\n\n" + r"$$ 3 \frac{-1}{1 - w} + \frac{1}{w} = 0 $$" + "\n\n" + r"$$ w = \frac14 $$"

    def first(text):
        found = judge(read_document(f"{given}\n\nlog likelihood\n\n{text}", "markdown"), infer=True)
        return found[0].kind, found[0].message

    kind, message = first(slope + solution)
    assert kind == "not readable" and "is it imposed" in message
    for other in (slope, slope + "\n\n# Next\n" + solution, slope + solution.replace(r"\frac14", r"\frac13")):
        assert first(other)[0] == "refused"
