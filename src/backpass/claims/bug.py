"""A gradient bug of a public project, re-created in a few lines beside its mended twin,
and what finds it.

::

    @bug("owner/project#123", "norms", check=USUAL, gradcheck=MISSED)
    def weight_of_one() -> Pair:
        \"\"\"The backward left the weight out.

        The tests had w = 1.
        \"\"\"
        ...
        return Pair(wrong, right, usual=(x, w))

The first paragraph of the docstring says what the code did, the second which inputs its
tests lacked.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

KINDS = (
    "norms",
    "losses",
    "attention",
    "positions",
    "embeddings",
    "activations",
    "products",
    "experts",
    "low precision",
    "strides",
    "in-place writes",
    "races",
    "frozen inputs",
    "state between calls",
    "recomputation",
    "parallel training",
    "accumulation and optimisers",
)
USUAL = "at usual inputs"
TELLING = "at telling inputs only"
MISSED = "not"


class NotAsRecorded(Exception):
    """A bug is caught otherwise than its record says, or its mended twin is accused."""


@dataclass(frozen=True)
class Pair:
    """A wrong and a right object, each with ``forward`` and ``backward`` of tensors or
    arrays, and inputs: the usual ones of a test, and ones that tell, if others do."""

    wrong: Any
    right: Any
    usual: Sequence[Any]
    telling: Sequence[Any] | None = None
    telling_dy: Any = None  # the cotangent, if it has to be a special one
    options: Mapping[str, Any] = field(default_factory=dict)  # of check


@dataclass(frozen=True)
class Found:
    """What found a bug, and what ``check`` said of it; "" if nothing."""

    check: str
    gradcheck: str
    said: str


@dataclass(frozen=True)
class Bug:
    """One bug."""

    name: str
    thread: str  # owner/project#number
    kind: str
    check: str
    gradcheck: str
    says: str
    lacked: str
    make: Callable[[], Pair]

    @property
    def address(self) -> str:
        """The thread's address."""
        project, _, number = self.thread.partition("#")
        return f"https://github.com/{project}/issues/{number}"

    @property
    def code(self) -> str:
        """The lines that re-create it."""
        source = textwrap.dedent(inspect.getsource(self.make))
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        first = function.body[0].end_lineno or 0
        return textwrap.dedent("\n".join(source.split("\n")[first:])).strip("\n")

    def run(self, *, explain: bool = False) -> Found:
        """Give both twins to ``check`` and to ``torch.autograd.gradcheck``, which
        catches a bug if it rejects the wrong twin and accepts the right one. With
        ``explain``, ``check`` says what is wrong, which takes longer.

        Raises NotAsRecorded if the right one is accused by ``check``, or a bug is
        caught at other inputs than recorded.
        """
        pair = self.make()
        by_check, said = _judged(self.name, pair, explain)
        found = Found(by_check, _by_gradcheck(pair), said)
        if (found.check, found.gradcheck) != (self.check, self.gradcheck):
            raise NotAsRecorded(
                f"{self.name}: recorded: check {self.check}, gradcheck "
                f"{self.gradcheck}; found: check {found.check}, gradcheck "
                f"{found.gradcheck}"
            )
        return found


def _judged(name: str, pair: Pair, explain: bool) -> tuple[str, str]:
    from backpass.verify import METHODS, check

    level, said = MISSED, ""
    for where, inputs, dy in (
        (USUAL, pair.usual, None),
        (TELLING, pair.telling, pair.telling_dy),
    ):
        if inputs is None:
            continue
        common = {**pair.options, "dy": dy, "raises": False}
        of_right = check(pair.right, *inputs, explain=False, **common)
        if not of_right.passed:
            raise NotAsRecorded(
                f"{name}: the right twin is accused {where}: {of_right}"
            )
        if level == MISSED:
            of_wrong = check(pair.wrong, *inputs, explain=False, **common)
            if of_wrong.failed:
                level, row = where, of_wrong.failed[0]
                if explain:
                    key = next(k for k, m in METHODS.items() if m.NAME == row.method)
                    only = {**common, "methods": [key]}
                    row = check(pair.wrong, *inputs, **only).failed[0]
                said = f"{row.quantity}: {row.reason}"
    return level, said


def _by_gradcheck(pair: Pair) -> str:
    for where, inputs in ((USUAL, pair.usual), (TELLING, pair.telling)):
        if (
            inputs is not None
            and not _passes_gradcheck(pair.wrong, inputs)
            and _passes_gradcheck(pair.right, inputs)
        ):
            return where
    return MISSED


def _passes_gradcheck(subject: Any, inputs: Sequence[Any]) -> bool:
    """Whether ``torch.autograd.gradcheck`` accepts a subject by its own settings."""
    import numpy as np
    import torch

    of_numpy = isinstance(next(a for a in inputs if hasattr(a, "dtype")), np.ndarray)

    def given(a: Any) -> Any:
        if not hasattr(a, "dtype"):
            return a
        a = torch.as_tensor(a)
        return a.double().requires_grad_() if a.is_floating_point() else a

    def plain(a: Any) -> Any:
        return a.detach().numpy() if of_numpy and isinstance(a, torch.Tensor) else a

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arrays: Any) -> Any:
            y, ctx.saved = subject.forward(*map(plain, arrays))
            return torch.as_tensor(y) if of_numpy else y

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            found = subject.backward(plain(dy), ctx.saved)
            many = isinstance(found, tuple | list)
            gradients = [
                None if g is None else torch.as_tensor(g)
                for g in (found if many else [found])
            ]
            return tuple(gradients)

    if isinstance(subject, type) and issubclass(subject, torch.autograd.Function):
        apply = subject.apply
    else:
        apply = Function.apply
    try:
        return bool(torch.autograd.gradcheck(apply, tuple(map(given, inputs))))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False


def bug(
    thread: str, kind: str, *, check: str, gradcheck: str
) -> Callable[[Callable[[], Pair]], Bug]:
    """Make a bug of a function that re-creates it. Raises ValueError for a record that
    is not complete."""

    def made(make: Callable[[], Pair]) -> Bug:
        says, _, lacked = inspect.cleandoc(make.__doc__ or "").partition("\n\n")
        fits = kind in KINDS and {check, gradcheck} <= {USUAL, TELLING, MISSED}
        if not (fits and says and lacked and "#" in thread):
            raise ValueError(
                f"{make.__name__}: expected a kind, what finds it, two paragraphs, and a thread"
            )
        return Bug(
            make.__name__,
            thread,
            kind,
            check,
            gradcheck,
            " ".join(says.split()),
            " ".join(lacked.split()),
            make,
        )

    return made


def subject(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> SimpleNamespace:
    """Put a forward and a backward together, as ``check`` takes them."""
    return SimpleNamespace(forward=forward, backward=backward)
