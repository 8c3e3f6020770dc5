"""The names that people give to gradients in the attributes of a layer."""

from __future__ import annotations

import re
from typing import Any

# The names that the gradient of w may have, apart from case and underscores, and those
# of a container of several gradients.
OF = (
    *("d{}", "g{}", "grad{}", "grads{}", "gradient{}", "gradients{}", "gradwrt{}"),
    *("gradof{}", "nabla{}", "delta{}", "{}grad", "{}gradient", "bar{}", "{}bar"),
    *(f"d{of}d{{}}" for of in ("l", "e", "j", "c", "loss", "error", "cost")),
)
CONTAINERS = ("grad", "grads", "gradient", "gradients", "dparams", "dparameters")
DATA = ("data", "value")
ALL = ("params", "parameters")  # one array of all parameters
WHERE = (
    "dw, grad_w, w_grad, grads['w'], grads[i] beside params[i], or grad where one "
    "parameter has its shape"
)


def names_gradient(of: Any, name: Any) -> bool:
    """Whether ``of`` is a name for the gradient of ``name``."""
    if not isinstance(of, str):
        return False
    of, name = plain(of), plain(name)
    singular, one = of.removesuffix("s"), name.removesuffix("s")
    return any(of == g.format(name) or singular == g.format(one) for g in OF)


def plain(name: Any) -> str:
    """Return a name without case, underscores, and the class of a private one."""
    public = re.sub(r"^_\w+?__(?=\w)", "", str(name))
    return re.sub(r"[^a-z0-9]", "", public.lower())
