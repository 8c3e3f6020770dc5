"""Watch whether forward does to complex numbers what is not analytic.

An absolute value or a real part drops the imaginary part of a complex step, and with it
a part of the gradient, which may be small.
"""

from __future__ import annotations

from typing import Any

import numpy as np

UFUNCS = (np.absolute, np.conjugate, np.sign)
FUNCTIONS = (
    *(np.real, np.imag, np.angle, np.var, np.std, np.cov, np.corrcoef, np.vdot),
    *(np.linalg.norm, np.linalg.cholesky, np.linalg.eigh, np.linalg.eigvalsh),
    *(np.linalg.svd, np.linalg.pinv, np.linalg.qr, np.linalg.lstsq, np.linalg.cond),
)


class Watched(np.ndarray):
    """An array of complex numbers that collects in ``seen`` the names of functions that
    are not analytic, where it is an argument. Results of operations are watched too."""

    seen: dict[str, None]

    def __array_finalize__(self, of: Any) -> None:
        self.seen = getattr(of, "seen", {})

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any
    ) -> Any:
        if ufunc in UFUNCS and any(map(_is_complex, inputs)):
            self.seen[f"np.{ufunc.__name__}"] = None
        if out := keywords.get("out"):
            keywords["out"] = tuple(map(_plain, out))
        keywords = {name: _plain(value) for name, value in keywords.items()}
        result = getattr(ufunc, method)(*map(_plain, inputs), **keywords)
        return self._watched(result)

    def __array_function__(
        self, function: Any, types: Any, arguments: Any, keywords: Any
    ) -> Any:
        if function in FUNCTIONS:
            name = f"{function.__module__}.{function.__name__}"
            self.seen[name.replace("numpy", "np", 1)] = None
        result = super().__array_function__(function, types, arguments, keywords)
        return self._watched(result)

    def _watched(self, result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(self._watched, result))
        return watched(result, self.seen) if _is_complex(result) else result

    def __getattribute__(self, name: str) -> Any:
        if name in ("real", "imag"):
            self.seen[f"x.{name}"] = None
        return super().__getattribute__(name)

    def view(self, *kinds: Any, **keywords: Any) -> Any:
        found = super().view(*kinds, **keywords)
        if not _is_complex(found):  # as np.var does
            self.seen["x.view"] = None
        return found

    def astype(self, dtype: Any, *others: Any, **keywords: Any) -> Any:
        if np.dtype(dtype).kind != "c":
            self.seen["x.astype"] = None
        return super().astype(dtype, *others, **keywords)


def watched(values: np.ndarray, seen: dict[str, None]) -> Watched:
    """Return the array as one that collects what is not analytic in ``seen``."""
    array = np.asarray(values).view(Watched)
    array.seen = seen
    return array


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, Watched) else value


def _is_complex(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "c"
