"""The verdicts on a text, for the tests."""

from backpass.derivation.document import form_of, read_document
from backpass.derivation.judge import judge


def verdicts(text, definitions="", name="text.md"):
    return judge(read_document(text, form_of(name, text), definitions), definitions)


def kinds(text, definitions="", name="text.md"):
    return [verdict.kind for verdict in verdicts(text, definitions, name)]


def one(formula, definitions=""):
    """The only verdict on a display."""
    (verdict,) = verdicts(f"$$ {formula} $$", definitions)
    return verdict
