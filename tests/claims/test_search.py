"""Sentences in other words find the claim that they repeat, and ``backpass claims`` shows it."""

import json

import pytest

from backpass import cli
from backpass.cli import main
from backpass_ledger.claims.search import nearest, terms

SENTENCES = {
    "bfloat16 has the same exponent range as float32, so no loss scaling is required": "U43",
    "residual connections are free in the backward: the same gradient is just assigned to both branches": "G163",
    "in half precision small weight updates round to zero and so the weights do not change": "F206",
    "you should never recompute the inputs of the query, key and value projections; save them": "F316",
    "the backward pass always has exactly double the FLOPs of the forward pass": "F435",
    "a training step is 11 percent slower if you checkpoint each layer": "F310",
    "gradient descent moves the parameters so that the loss decreases": "T30",
    "memory usage grows with the batch size and the length of the sequence": "T83",
    "looking up token embeddings costs a matrix multiplication with one-hot vectors": "U5",
    "the optimizer's additional state makes the update negligible compared with computing the gradient": "T79",
    "with Adam in mixed precision you need 16 bytes for each parameter": "U28",
    "skip connections keep gradients from vanishing": "F15",
    "softmax gradients are especially costly to compute": "W41",
    "storing a checkpoint every ten layers needs less recomputation than at every layer": "F283",
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_in_other_words_finds_its_claim(sentence):
    assert SENTENCES[sentence] in [claim.name for _, claim in nearest(sentence, 3)]


def test_terms_are_words_and_stems_without_latex():
    assert terms(r"The $\frac{\partial L}{\partial x}$ of LayerNorm") == [
        "l", "x", "layer", "norm", "l*", "x*", "layer*", "norm*"
    ]  # fmt: skip


class TestCommand:
    def test_shows_verdict_text_and_what_is_right(self, capsys):
        assert main(["claims", "a backward has exactly twice the FLOPs of its forward", "--number", "1"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("The nearest claims.")
        assert lines[2] == "F435, the gradient-flow post, challenge 6:"
        assert lines[3] == "    “The backward has exactly twice the FLOPs of the forward.”"
        assert lines[4].startswith("    ✗ false. ") and "    Derivation: chapters/cost/ratio.md" in lines
        assert "    Check: backpass_ledger.claims.gradient_flow_post.challenges.F435" in lines

    def test_shows_the_check(self, capsys):
        main(["claims", "a backward has exactly twice the FLOPs of its forward", "--number", "1", "--check"])
        assert "    it.as_printed(" in capsys.readouterr().out

    def test_as_json(self, capsys):
        assert main(["claims", "loss scaling in bfloat16", "--json", "--number", "2"]) == 0
        first, _ = json.loads(capsys.readouterr().out)
        assert first.keys() == {"claim", "text", "where", "verdict", "says", "right", "page", "check"}

    def test_says_that_nothing_is_near(self, capsys):
        assert main(["claims", "zyzzyva"]) == 1
        assert capsys.readouterr().out == "No claim shares a word with this sentence.\n"

    def test_rejects_a_number_below_1(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["claims", "loss", "--number", "0"])
        assert stopped.value.code == 2
        assert "--number: expected at least 1; got 0" in capsys.readouterr().err

    def test_help_has_its_options(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["claims", "--help"])
        assert stopped.value.code == 0 and "SENTENCE" in capsys.readouterr().out

    def test_without_the_ledger_it_says_what_to_install(self, capsys, monkeypatch):
        monkeypatch.setattr(cli, "find_spec", lambda package: None)
        with pytest.raises(SystemExit):
            main(["claims", "loss"])
        assert (
            "claims: this command is in the package backpass-ledger; install it from a checkout: "
            in capsys.readouterr().err
        )
