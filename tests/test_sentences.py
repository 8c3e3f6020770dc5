"""The check of sentences lists those that no cell asserts, and those whose reason is gone."""

import pytest

import sentences

CELL = "```{{code-cell}} python\n:tags: [hide-input]\n\n{}\n```\n"


def page(*parts):
    """A page of one section; a part in parentheses is a cell."""
    return "---\nsearch: [35]\n---\n\n# A page\n\n" + "\n".join(
        CELL.format(part[0]) if isinstance(part, tuple) else part + "\n" for part in parts
    )


def missing(*parts):
    return [each for _, _, found in sentences.unasserted(page(*parts)) for each in found]


# Four sentences that a review found wrong or too wide, each with the cells of its section, as they were.
RATES = """\
rates = np.array([schedule.rate(step, peak=1.0, warmup=4, steps=20) for step in range(20)])

assert np.allclose(rates[:5], [0.2, 0.4, 0.6, 0.8, 1.0])
assert (np.diff(rates[4:]) < 0).all() and (rates > 0).all()
print(rates.round(3))"""
CHANGES = """\
assert of_flash < 0 < 0.3 < of_layers < 1 / 3
saves = {name: less for name, _, less, _ in CHANGES}
assert saves["recomputation, k = 1"] > saves["flash attention"] > saves["8-bit states"] > saves["chunked head"]
whole_state = 16 * count
assert whole_state > whole_state - saves["8-bit states"] > 80 * 10**9"""
CURVES = """\
VARIANTS = {"plain attention": {}, "flash attention": {"flash": True}}
assert {*curves["plain attention"]} <= {2.0}
assert all(np.diff(curves["flash attention"]) > 0) and curves["flash attention"][-1] < 2.5"""


@pytest.mark.parametrize(
    ("sentence", "cell", "found"),
    [
        (
            "In the first steps $\\hat v$ is a mean of very few squares, so steps divided by its root can be far too long.",
            RATES,
            ["far"],
        ),
        (
            "It has to train fewer parameters, or divide the states among several accelerators, which this book does not cover.",
            CHANGES,
            ["this book does not"],
        ),
        (
            "It is exact for a network of matrix products if every weight is trained, every weight multiplies every token "
            "once, and nothing else counts.",
            CURVES,
            ["exact"],
        ),
        (
            "- The optimiser, the rate and clipping are forty lines beside a backward; with them, the steps equal autograd's.",
            RATES,
            ["forty"],
        ),
    ],
)
def test_it_lists_what_a_review_found(sentence, cell, found):
    assert missing(sentence, (cell,)) == found


@pytest.mark.parametrize(
    ("sentence", "cell", "asserted"),
    [
        ("The error is 0.0066.", "assert abs(error - 0.00658) < 1e-5", True),
        ("The error is 0.0066.", "assert abs(error - 0.0065) < 1e-5", False),
        ("The error is 0.0066.", "error = 0.0066", False),
        ("It takes 3 % longer.", "assert 1.03 < ratio", True),
        ("It takes 3 % longer.", "assert 1.04 < ratio", False),
        ("It has 124,439,808 parameters.", "assert count == 124_439_808", True),
        ("It has 124,439,809 parameters.", "assert count == 124_439_808", False),
        ("It takes 80 GB.", "assert bytes_ < 80 * 10**9", True),
        ("At width 768 it is right.", "x = draw(768)\nassert right(x)", True),
        ("At width 768 it is right.", "x = draw(768)\nprint(x)", False),
        ("It agrees to $10^{-10}$.", "assert error < 1e-10", True),
        ("It agrees to $10^{-10}$.", "assert error < 1e-9", False),
        ("It takes thirty-nine digits.", "assert digits == 39", True),
        ("It takes thirty-nine digits.", "assert digits == 30", False),
        ("It is 400 times as large.", "assert ratio > 400", True),
        ("It is three times as large.", "assert ratio > 4", False),
        ("It costs twice the forward.", "assert backward / forward == 2", True),
        ("It costs twice the forward.", "assert backward > forward", False),
        ("It frees a third of the bytes.", "assert less == whole / 3", True),
        ("It is a quarter of the sum.", "assert '¼ × sum' in reason", True),
        ("It frees two thirds of the bytes.", "assert less == whole / 7", False),
        ("They agree exactly.", "assert np.array_equal(a, b)", True),
        ("They agree exactly.", "assert np.allclose(a, b)", False),
        ("They agree exactly.", "check(op, x)", True),
        ("They agree exactly.", "check(op, x, raises=False)", False),
        ("It never grows.", "assert all(a > b for a, b in steps)", True),
        ("It never grows.", "assert a > b", False),
        ("It cannot run.", "with pytest.raises(ValueError):\n    run()", True),
        ("It is far longer.", "assert long > 10 * short", True),
        ("It is far longer.", "assert long > short", False),
        ("It is barely longer.", "assert steps[4:] > short", False),
        ("This book does not cover it.", "assert all(a == 10 * b < 3 for a, b in steps)", False),
    ],
)
def test_what_asserts_a_sentence(sentence, cell, asserted):
    assert not missing(sentence, (cell,)) if asserted else missing(sentence, (cell,))


@pytest.mark.parametrize(
    "sentence",
    [
        "Llama 3 70B has eight heads, and GPT-2 has 12; the page of 2024 is §3.2 or line (17) of it, in 16-bit types.",
        "The formula $2^{35}$, `x = 35`, and [a link](https://example.org/35) are left alone. So far they are.",
        "Is it exactly 35?",
        "    backpass train --steps 35",
        "```console\nbackpass train --steps 35\n```",
    ],
)
def test_what_states_no_result(sentence):
    assert missing(sentence) == []


def test_words_need_a_cell_near_and_numbers_one_on_the_page():
    near, between = ("assert a == 35.5",), ("print(a)",)
    assert missing("They are exactly 35.5.", near) == []
    assert missing("They are exactly 35.5.", between, near) == ["exactly"]
    assert missing("They are exactly 35.5.", "## Takeaways", near) == ["exactly"]


def test_captions_exercises_and_lines():
    caption = 'figures.show(\n    fig,\n    caption=f"It is 35 % of {x:.0f} or 36 of it.",\n)'
    found = list(sentences.unasserted(page("Text.", (caption,), "It is\nfar. It is 37 of it.")))
    assert [each for _, _, each in found] == [["35 %", "36"], ["far"], ["37"]]
    lines = page("Text.", (caption,), "It is\nfar. It is 37 of it.").split("\n")
    assert (
        "caption" in lines[found[0][0] - 1]
        and lines[found[1][0] - 1] == "It is"
        and "37" in lines[found[2][0] - 1]
    )
    exercise = "```{exercise-start} Derive\n:label: ex\n```\n\nIt is 35.\n\n```{exercise-end}\n```"
    assert missing(exercise) == ["35"]


def test_the_list(tmp_path, monkeypatch, capsys):
    (tmp_path / "chapters").mkdir()
    path, reasons = tmp_path / "chapters" / "a.md", tmp_path / "list.toml"
    monkeypatch.setattr(sentences, "ROOT", tmp_path)
    monkeypatch.setattr(sentences, "LIST", reasons)
    path.write_text(page('The forward is always right, and so is "this" one here and there.'))
    reasons.write_text("")
    assert sentences.main() == 1
    said = capsys.readouterr().out
    assert said.startswith("chapters/a.md:7: no cell asserts this")
    key = said.rpartition(': "')[2].rstrip('"\n')
    assert key == "a.md: The forward is always right, and so is this [always]"

    def status(listed):
        reasons.write_text(f'["a kind"]\n{listed}\n')
        return sentences.main(), capsys.readouterr().out

    assert status(f'"{key}" = "a reason"') == (0, "")
    assert status(f'"{key}" = " "') == (1, f'list.toml: give a reason: "{key}"\n')
    path.write_text(page("The forward is right."))
    assert status(f'"{key}" = "a reason"') == (1, f'list.toml: no such sentence; delete the line: "{key}"\n')
    path.write_text(page("| a | 35 |\n| b | 36 |"))
    assert status('"a.md: | …" = "a table that a test holds"') == (0, "")


def test_pages_of_claims_are_read_too(tmp_path, monkeypatch, capsys):
    path, reasons = tmp_path / "chapters" / "claims" / "a.md", tmp_path / "list.toml"
    path.parent.mkdir(parents=True)
    path.write_text(page("The forward is always right."))
    reasons.write_text("")
    monkeypatch.setattr(sentences, "ROOT", tmp_path)
    monkeypatch.setattr(sentences, "LIST", reasons)
    assert sentences.main() == 1
    assert capsys.readouterr().out.startswith("chapters/claims/a.md:7: no cell asserts this")
