"""How long are the gradients in a deep network at initialisation, with its norms in different places?

    python benchmarks/gradient_depth.py [--quick]

The page "Gradient flow" defines the networks, and compares one draw of each kind with the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from experiment import digits, of_page
from harness import say, settings, write

QUESTION = (
    "How long are the gradients in a deep network at initialisation, with its norms in different places?"
)
COLUMNS = [
    ("order", "order", ""),
    ("spread", "spread of the matrices", ""),
    ("scaled", "last matrix of each block scaled by 1/√(2L)", ""),
    ("width", "width", ""),
    ("layers", "layers", ""),
    ("seed", "seed", ""),
    ("stream", "stream's gradient, first layer over last", ""),
    ("parameters", "parameters' gradient, first layer over last", ""),
    ("last", "parameters' gradient in the last layer, over the output's", ""),
    ("bottom", "stream's gradient at the bottom, over the output's", ""),
    ("grown", "stream, last over first", ""),
    ("norms", "product of the factors 1/s", ""),
    ("apart", "spread of the output's rows", ""),
    ("lengths", "stream's gradient over its length at the top, after every fifth layer", ""),
    ("queries", "queries' gradient over that of the layer's parameters, every fifth layer", ""),
]
DEPTHS, SEEDS = (8, 32, 80, 128), 5


def main() -> None:
    chosen = settings(QUESTION)
    descend = of_page("numerics/gradient_flow")["descend"]
    rows = []
    for kind in kinds(chosen.quick):
        rows.append(kind | row(descend(**renamed(kind)), curves=shown(kind)))
        say(f"{kind}: {rows[-1]['stream']:.3g}")
    method = (
        "One network a row, drawn and passed once, in float64: causal attention with 4 heads, a ReLU block four times "
        "as wide, 16 random rows, a random gradient of the output, and a final norm except in post-norm."
    )
    write(chosen, "gradient_depth", QUESTION, COLUMNS, rows, method=method)


def kinds(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield every network. The networks of one width and seed follow each other, because the page caches one draw."""
    for width in (8,) if quick else (32, 64, 128):
        for seed in range(1 if quick else SEEDS):
            for order in ("pre-norm", "post-norm", "sandwich", "QK-norm"):
                for spread, scaled in cases(width, order):
                    for layers in (8,) if quick else DEPTHS:
                        yield {
                            "order": order,
                            "spread": spread,
                            "scaled": scaled,
                            "width": width,
                            "layers": layers,
                            "seed": seed,
                        }


def cases(width: int, order: str) -> list[tuple[str, bool]]:
    """Return the initialisations: all of them only at width 64, in pre-norm and post-norm."""
    if order in ("sandwich", "QK-norm"):
        return [("Xavier", False)] if width in (8, 64) else []
    both = [("Xavier", False), ("Xavier", True)]
    others = [("0.02", False), ("0.02 at 4096", False), ("0.02 at 4096", True)]
    return both + others if width == 64 else both


def renamed(kind: dict[str, Any]) -> dict[str, Any]:
    return {"depth" if name == "layers" else name: value for name, value in kind.items()}


def shown(kind: dict[str, Any]) -> bool:
    """Whether the page plots values of this network layer by layer."""
    return (kind["width"], kind["layers"], kind["spread"]) == (64, 80, "Xavier")


def row(run: dict[str, Any], curves: bool) -> dict[str, Any]:
    """The rest of a row, from what the page's ``descend`` returns."""
    stream, parameters = run["stream"], run["parameters"]
    numbers = {
        "stream": stream[0] / stream[-1],
        "parameters": parameters[0] / parameters[-1],
        "last": parameters[-1],
        "bottom": stream[0],
        "grown": run["size"][-1] / run["size"][0],
        "norms": run["norms"],
        "apart": run["apart"][-1],
    }
    lengths, queries = stream / stream[-1], run["queries"] / parameters
    return dict(zip(numbers, digits(numbers.values()), strict=True)) | {
        "lengths": digits(lengths[::5]) if curves else None,
        "queries": digits(np.append(queries[::5], queries[-1])) if curves else None,
    }


if __name__ == "__main__":
    main()
