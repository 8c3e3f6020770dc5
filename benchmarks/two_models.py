"""How do the losses and the norms of the gradients of two small models change in 300 steps?

    python benchmarks/two_models.py [--quick]

The page "Training without autograd" defines the runs, and compares the first steps of each with the record.
"""

from __future__ import annotations

from experiment import digits, of_page
from harness import say, settings, write

from backpass.training import sampling

QUESTION = "How do the losses and the norms of the gradients of two small models change in 300 steps?"
COLUMNS = [
    ("model", "model", ""),
    ("loss", "loss of each batch", ""),
    ("held_out", "loss of the held-out text, every 50 steps", ""),
    ("norms", "norms of the gradients of each part, every step", ""),
    ("written", "what the model writes at the end", ""),
]


def main() -> None:
    chosen = settings(QUESTION)
    page = of_page("networks/training")
    steps, every = chosen.pick((300, 50), quick=(2, 1))
    rows = []
    for name in page["models"]:
        run = page["begun"](name)
        held_out, records = [run.held_out_loss()], []
        for _ in range(steps):
            records.append(run.step())
            if run.made % every == 0:
                held_out.append(run.held_out_loss())
        drawn = sampling.sample(
            run.model, run.parameters, b"The ", config=run.config, tokens=160, window=64, temperature=0.7
        )
        rows.append(
            {
                "model": name,
                "loss": digits(r.loss for r in records),
                "held_out": digits(held_out),
                "norms": {
                    part: [float(f"{r.norms[part]:.5g}") for r in records] for part in records[0].norms
                },
                "written": b"".join(drawn).decode(errors="replace"),
            }
        )
        say(f"{name}: held-out loss {held_out[0]:.2f} → {held_out[-1]:.2f}")
    method = "One run of each model, in float32."
    write(chosen, "two_models", QUESTION, COLUMNS, rows, method=method)


if __name__ == "__main__":
    main()
