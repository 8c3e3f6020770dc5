"""The names that people give to gradients in the attributes of a layer."""

from __future__ import annotations

import re
from typing import Any

# The names that the gradient of w may have, apart from case and underscores, and those
# of a container of several gradients.
OF = ("d{}", "grad{}", "g{}", "nabla{}", "delta{}", "dld{}", "{}grad", "{}gradient")
CONTAINERS = ("grad", "grads", "gradient", "gradients", "dparams", "dparameters")
DATA = ("data", "value")
ALL = ("params", "parameters")  # one array of all parameters
WHERE = "dw, grad_w, w_grad, grads['w'], or grads[i] beside params[i]"


def names_gradient(of: Any, name: Any) -> bool:
    """Whether ``of`` is a name for the gradient of ``name``."""
    return isinstance(of, str) and plain(of) in [g.format(plain(name)) for g in OF]


def plain(name: Any) -> str:
    """Return a name without case, underscores, and the class of a private one."""
    public = re.sub(r"^_\w+?__(?=\w)", "", str(name))
    return re.sub(r"[^a-z0-9]", "", public.lower())
