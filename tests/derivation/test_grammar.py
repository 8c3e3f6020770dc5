"""A parser whose analysis was stored reads as the one that was analysed."""

import pytest
from lark import Lark

from backpass.derivation.language import grammar

SUM = 'expression: LETTER "+" LETTER -> sum\nLETTER: /[a-z]/'
SHIFTED = "expression: SHIFTED -> shifted\nSHIFTED: /[a-z] *[+] *1/"


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.setitem(grammar.OPTIONS, "start", ["expression"])
    return lambda text: grammar.stored(text, tmp_path / "language.pyc")


def test_the_analysis_is_read_once_it_was_stored(stored, tmp_path, monkeypatch):
    analysed = stored(SUM)
    (path,) = tmp_path.iterdir()  # nothing else was left
    with monkeypatch.context() as patch:
        patch.setattr(Lark, "_build_parser", lambda self: pytest.fail("the grammar was analysed again"))
        read = stored(SUM)
    assert read.parse("a+b") == analysed.parse("a+b")

    path.write_bytes(path.read_bytes()[:200])
    assert stored(SUM).parse("a+b") == analysed.parse("a+b")


def test_another_grammar_is_analysed(stored):
    stored(SUM)
    for _ in range(2):  # analysed, then read
        (token,) = stored(SHIFTED).parse("b + 1").children
        assert token == "b+1"


def test_where_nothing_can_be_written_the_grammar_is_analysed(monkeypatch, tmp_path):
    monkeypatch.setitem(grammar.OPTIONS, "start", ["expression"])
    assert grammar.stored(SUM, tmp_path / "missing" / "language.pyc").parse("a+b").data == "sum"
