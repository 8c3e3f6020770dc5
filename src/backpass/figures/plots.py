"""Create plots in the book's style, and draw what the package measured."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's blue, vermilion, bluish green and reddish purple, the last a little
# darker. Colour-blind readers can tell them apart, and their contrast is at least 3:1
# against white and against #121212. The fifth colour is the text's.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#C06A9A", "#000000")
MARKERS = ("o", "s", "^", "D", "v")
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))


def new(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.4, 3.6)
) -> tuple[Figure, Any]:
    """Create a figure of ``size`` in inches; return it with its axes.

    The axes are one object, or an array of them as from ``plt.subplots``.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "axes.grid": True,
        "axes.prop_cycle": cycler(color=PALETTE, marker=MARKERS, linestyle=DASHES),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 11,
        "grid.alpha": 0.18,
        "grid.color": "black",
        "lines.markersize": 4.5,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        return figure, figure.subplots(rows, columns)


def of_record(
    record: Any, x: str, y: str, by: str = "provider"
) -> tuple[Figure, Any, str]:
    """Plot a record's column ``y`` against ``x`` on logarithmic axes.

    There is a line for each value of the column ``by``. Rows without a ``y`` are left
    out. Returns the figure, its axes, and the numbers in words for the ``alt`` of
    ``show``.
    """
    headings = {
        key: f"{heading}, {unit}" if unit else heading
        for key, heading, unit in record.columns
    }
    lines: dict[Any, dict[float, float]] = {}
    for row in record.rows:
        if row[y] is not None:
            lines.setdefault(row[by], {})[row[x]] = row[y]

    figure, axes = new()
    for label, points in lines.items():
        axes.loglog([*points], [*points.values()], label=label)
    ticks = sorted({at for points in lines.values() for at in points})
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlabel=headings[x], ylabel=headings[y])
    axes.legend(fontsize=9)
    words = []
    for label, points in lines.items():
        numbers = {at: float(f"{value:.3g}") for at, value in points.items()}
        each = ", ".join(f"{value:,.9g} at {at:,}" for at, value in numbers.items())
        words.append(f"{label}: {each}")
    axes_in_words = f"{headings[y]} against {headings[x]}, both axes logarithmic"
    return figure, axes, f"{axes_in_words}. {'; '.join(words)}."


def of_timeline(timeline: Any) -> tuple[Figure, Any, str]:
    """Plot the bytes alive at each moment of ``backpass.cost.timeline``, one kind on
    another. Kinds that are nowhere 1/500 of the peak are left out.

    Returns the figure, its axes, and the numbers in words for the ``alt`` of ``show``.
    """
    figure, axes = new(size=(6.4, 4.0))
    moments, peak = timeline.moments, timeline.peak
    at, below = range(len(moments)), [0.0] * len(moments)
    hatches = ("", "//", "", "..", "", "xx")
    least = peak.total / 500
    kinds = [k for k in peak.bytes if max(m.bytes[k] for m in moments) >= least]
    for i, kind in enumerate(kinds):
        sizes = [moment.bytes[kind] / 2**20 for moment in moments]
        style = {"hatch": hatches[i], "alpha": 0.5 if i % 2 else 0.75}
        colour = PALETTE[i % len(PALETTE)]
        axes.bar(at, sizes, 0.9, below, label=kind, color=colour, linewidth=0, **style)
        below = [low + high for low, high in zip(below, sizes, strict=True)]
    step = -(-len(moments) // 24)
    names = [f"{m.part}, {m.phase}" for m in moments]
    axes.set_xticks(at[::step], names[::step], rotation=90, fontsize=7)
    axes.set(ylabel="bytes alive, MiB")
    axes.grid(visible=False, axis="x")
    axes.margins(x=0.01)
    # Above the highest bar, so that the legend covers none.
    axes.set_ylim(0, 1.25 * max(below))
    axes.legend(fontsize=9, ncols=3, loc="upper center")
    words = ", ".join(f"{kind} {peak.bytes[kind] / 2**20:,.1f} MiB" for kind in kinds)
    alt = (
        f"Bytes alive at {len(moments)} moments of a training step. The most, "
        f"{peak.total / 2**20:,.1f} MiB, in the {peak.phase} of {peak.part}: {words}."
    )
    return figure, axes, alt


def of_norms(records: Any) -> tuple[Figure, Any, str]:
    """Plot the gradient's norm by part of the model against the step, on a logarithmic
    axis, from the records of a ``backpass.training.run.Run``. Norms of 0 are left out.

    The name of each part stands at the end of its line. Returns the figure, its axes,
    and the numbers in words for the ``alt`` of ``show``. Raises ValueError if there are
    no records.
    """
    records = list(records)
    if not records:
        raise ValueError("records: expected at least one; got none")
    figure, axes = new(size=(6.4, 4.0))
    steps, ends, words = [record.step for record in records], {}, []
    for i, part in enumerate(records[0].norms):
        norms = [record.norms[part] or float("nan") for record in records]
        width = 1.2 + i // len(PALETTE)  # colours and dashes repeat, wider
        axes.semilogy(steps, norms, marker="", linewidth=width)
        ends[part] = norms[-1]
        high = max(records, key=lambda record: record.norms[part])
        words.append(f"{part}: at most {high.norms[part]:.2g}, in step {high.step}")
    axes.set(xlabel="step", ylabel="norm of the gradient")
    low, high = (math.log(limit) for limit in axes.get_ylim())
    at = -1.0
    for i, part in sorted(enumerate(ends), key=lambda entry: ends[entry[1]]):
        if ends[part] == ends[part]:
            # At the height of the line's end, or just above the name below it.
            at = max((math.log(ends[part]) - low) / (high - low), at + 0.055)
            axes.annotate(
                part,
                (1.01, at),
                xycoords="axes fraction",
                color=PALETTE[i % len(PALETTE)],
                fontsize=9,
                va="center",
            )
    what = "The norm of the gradient of each part against the step, logarithmic"
    return figure, axes, f"{what}. {'; '.join(words)}."
