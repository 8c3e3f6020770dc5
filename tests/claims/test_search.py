"""Sentences in other words find the claim that they repeat, and ``backpass claims`` shows it."""

import json

import pytest

from backpass import cli
from backpass.cli import main
from backpass_ledger.claims.ledger import TEXTS
from backpass_ledger.claims.search import nearest, terms, why_none

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
    "a larger batch makes clipping more frequent": "U39",
    "rotary embeddings rotate the gradient by the negative angle": "U36",
    "computing softmax's gradient requires the full Jacobian": "U33",
    # Long ones, which digress.
    "One thing people often forget when they switch a training run from half precision to bfloat16 is that the loss "
    "does not have to be multiplied by a large constant any more, because the range of exponents is as wide as in "
    "single precision": "U43",
    "As a rule of thumb that everybody uses when planning a budget, you can assume that the backward pass of any "
    "network takes about twice as many floating point operations as the forward pass did": "G2",
}
# On subjects outside the ledger.
OTHERS = [
    "Simmer the onions in butter until they are golden, then add the stock",
    "Knead the dough for ten minutes and let it rise overnight",
    "A good knife should be sharpened before each use",
    "The recipe needs two cups of flour, one cup of sugar, three eggs, and half a cup of milk; mix them and bake for "
    "thirty minutes at a low temperature",
    "The train to Edinburgh leaves at nine every morning",
    "The capital of France is Paris",
    "Diffusion models learn to denoise images step by step",
    "Batch normalization uses running statistics at inference time",
    "Speculative decoding uses a small draft model to propose tokens",
    "Reinforcement learning from human feedback trains a reward model on preferences",
    "Beam search keeps the most probable hypotheses while decoding",
    "Early stopping prevents overfitting on the validation set",
    "Tokenizers split rare words into several pieces",
    "State space models such as Mamba process a sequence in linear time",
    "Graph neural networks aggregate messages from neighbouring nodes",
    "In federated learning the clients never share their raw data with the server but only send updates of the model, "
    "which the server averages",
    "Scaling laws predict the loss from the number of parameters and tokens",
    "Quantising the KV cache to four bits speeds up inference",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_in_other_words_finds_its_claim(sentence):
    assert SENTENCES[sentence] in [claim.name for _, claim in nearest(sentence, 3)]


@pytest.mark.parametrize("sentence", OTHERS)
def test_a_sentence_on_another_subject_finds_no_claim(sentence):
    assert nearest(sentence) == []
    assert why_none(sentence).startswith("No close record: ")


@pytest.mark.parametrize("number", ["F435", "f435", " #F435 ", "F0435"])
def test_a_number_finds_its_claim(number):
    assert [claim.name for _, claim in nearest(number, 3)] == ["F435"]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.stem)
def test_a_number_without_a_claim_is_answered_with_the_numbers_that_have_one(text):
    last = len(text.claims())
    assert [claim.name for _, claim in nearest(f"{text.letter}{last}")] == [f"{text.letter}{last}"]
    for number in (0, last + 1):
        name = f"{text.letter}{number}"
        assert nearest(name.lower()) == []
        assert (
            why_none(name.lower())
            == f"No claim {name}: {text.name} has {text.letter}1 to {text.letter}{last}."
        )


def test_a_name_with_another_letter_is_a_sentence():
    assert nearest("H100") and why_none("X100").startswith("No close record: ")


@pytest.mark.parametrize(
    ("one", "other"), [("RoPE", "rotary"), ("requires", "needs"), ("needed", "required")]
)
def test_synonyms_are_one_word(one, other):
    assert terms(one) == terms(other)


def test_what_something_requires_is_not_what_it_costs():
    assert not set(terms("requires")) & set(terms("costs"))


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

    def test_shows_the_claim_with_a_number(self, capsys):
        assert main(["claims", "f435"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "F435, the gradient-flow post, challenge 6:"
        assert [line for line in lines if line.startswith("F")] == lines[:1]

    @pytest.mark.parametrize(
        ("sentence", "reason"),
        [
            (OTHERS[0], "No close record: no claim shares enough words with this sentence.\n"),
            ("f999", f"No claim F999: the gradient-flow post has F1 to F{len(TEXTS[3].claims())}.\n"),
        ],
    )
    def test_says_that_nothing_is_near(self, capsys, sentence, reason):
        assert main(["claims", sentence]) == 1
        assert capsys.readouterr() == (reason, "")
        assert main(["claims", sentence, "--json"]) == 1
        assert capsys.readouterr() == ("[]\n", reason)

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
