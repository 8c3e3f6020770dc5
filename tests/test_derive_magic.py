"""``%%derive`` shows a cell's Markdown, and prints the verdicts on it."""

from IPython.core.interactiveshell import InteractiveShell

from backpass import derive_magic

CELL = "$$ \\sum_j 2 x_j = 3 \\sum_j x_j $$\n"


def test_a_cell_is_shown_and_judged(capsys):
    shell = InteractiveShell()
    derive_magic.load_ipython_extension(shell)
    shell.run_cell_magic("derive", r"given x \in \mathbb{R}^n", CELL)
    shown = capsys.readouterr().out
    assert "✗ line 1: refused" in shown
    assert "with x (definitions)" in shown
