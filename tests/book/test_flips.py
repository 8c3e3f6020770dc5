"""Every single mistake in every displayed line of the book is noticed, or changes no value.

A sign turned, an index replaced, a factor dropped, a number raised by 1, a transpose or a condition left out: each is
made in the author's text, one at a time, and run. The mistakes that no check notices are printed (``pytest -rP``) with
the reason, which must be that the value is the same for every index at every size, decided exactly.
"""

import pytest

import proofs

from .chapters import BOOK, derivations

PAGES = list(dict.fromkeys(page for page, _ in derivations()))


def _pieces(derivation):
    return [*(_pieces(derivation.after) if derivation.after else []), derivation]


def _last_ones(page):
    """The page's derivations that no other goes on from; flips reach back to those before them."""
    own = [derivation for where, derivation in derivations() if where == page]
    return [d for d in own if not any(d is other.after for other in own)]


def _checks():
    """The code that notices a mistake."""
    package = BOOK / "src" / "backpass"
    return [proofs.imports("backpass.derivation"), *sorted(package.glob("derivation/**/*.lark"))]


@pytest.mark.rotates(share=0.05, of=lambda page: [page], checks=_checks)
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(BOOK)) for page in PAGES])
def test_every_mistake_that_changes_a_value_is_noticed(page):
    found = [(derivation, derivation.survivors()) for derivation in _last_ones(page)]
    unseen = [{(survivor.flip.piece, survivor.flip.text) for survivor in survivors} for _, survivors in found]

    def is_noticed(survivor):
        """By another derivation that goes on from the same piece."""
        mistake = survivor.flip.piece, survivor.flip.text
        return any(
            mistake[0] in _pieces(derivation) and mistake not in missed
            for (derivation, _), missed in zip(found, unseen, strict=True)
        )

    survivors = [survivor for _, some in found for survivor in some if not is_noticed(survivor)]
    print(*survivors, sep="\n")
    assert all(survivor.equivalent for survivor in survivors)
