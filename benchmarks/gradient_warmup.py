"""What does a warm-up change in the training of a small encoder, step by step?

    python benchmarks/gradient_warmup.py [--quick]

The page "Gradient flow" defines the runs, and compares the first steps of each with the record.
"""

from __future__ import annotations

from experiment import digits, of_page
from harness import say, settings, write

QUESTION = "What does a warm-up change in the training of a small encoder, step by step?"
COLUMNS = [
    ("order", "order", ""),
    ("warmup", "steps of warm-up", ""),
    ("loss", "loss of each step", ""),
    ("apart", "spread of the output's rows before each step", ""),
    ("ratio", "gradient of the first layer's parameters over the last's in each step", ""),
]


def main() -> None:
    chosen = settings(QUESTION)
    train = of_page("numerics/gradient_flow")["train"]
    rows = []
    for order in ("pre-norm", "post-norm"):
        for warmup in (0, 66):
            ran = train(order, 1e-2, warmup, until=chosen.pick(200, quick=2))
            ratio = ran["first"] / ran["last"]
            rows.append(
                {
                    "order": order,
                    "warmup": warmup,
                    "loss": digits(ran["loss"]),
                    "apart": digits(ran["apart"]),
                    "ratio": digits(ratio),
                }
            )
            say(f"{order}, warm-up {warmup}: loss {ran['loss'][-1]:.2f}, ratio {ratio[-1]:.1e}")
    method = (
        "One run of 200 steps a row, with the seed 0 and the peak learning rate 0.01, as in gradient_flow."
    )
    write(chosen, "gradient_warmup", QUESTION, COLUMNS, rows, method=method)


if __name__ == "__main__":
    main()
