"""Join a LaTeX text with the files that it includes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_INCLUDES = re.compile(
    r"\\begin\{(?P<verbatim>verbatim|lstlisting|minted|comment)\*?\}.*?\\end\{(?P=verbatim)\*?\}"
    r"|(?<!\\)%[^\n]*"
    r"|\\endinput(?![a-zA-Z])"
    r"|\\(?P<command>input|include|subfile)(?![a-zA-Z])\s*(?:\{(?P<braced>[^{}]*)\}|(?P<bare>[^\s{}\\%]+))"
    r"|\\(?P<imports>import|subimport|includefrom|inputfrom)\*?\s*\{(?P<folder>[^{}]*)\}\s*\{(?P<file>[^{}]*)\}",
    re.S,
)
_BODY = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.S)


class Piece(NamedTuple):
    """Lines of one file: where they begin in the joined text, and in the file."""

    first: int
    name: str
    line: int


def joined(source: str, path: Path) -> tuple[str, tuple[Piece, ...]]:
    """Return a text with the files that it includes, and which lines are whose. A text
    without includes has no pieces.

    Names of files are relative to the folder of the main file, `path`. Raises
    `ValueError`, which names the line, for a file that is missing or includes itself.
    """
    tree = _Tree(path)
    tree.add(source, path, 1, (path.resolve(),))
    pieces = tuple(tree.pieces)
    return ("".join(tree.texts), pieces) if len(pieces) > 1 else (source, ())


class _Tree:
    def __init__(self, main: Path) -> None:
        self.main = main
        self.texts: list[str] = []
        self.pieces: list[Piece] = []
        self._line = 1

    def add(self, source: str, path: Path, first: int, above: tuple[Path, ...]) -> None:
        """Add a file, with those that it includes; `above` are those that include it.

        `first` is the line of the file on which the source begins.
        """
        at = 0
        self._begin(path, first)
        for match in _INCLUDES.finditer(source):
            if match[0].startswith(r"\endinput"):
                self._write(source[at : match.start()])
                return
            if match["command"] is None and match["imports"] is None:
                continue
            self._write(source[at : match.start()] + "\n")
            line = first + source.count("\n", 0, match.start())
            self._include(match, path, line, above)
            at = match.end()
            self._write("\n")
            self._begin(path, first + source.count("\n", 0, at))
        self._write(source[at:])

    def _include(
        self, match: re.Match[str], path: Path, line: int, above: tuple[Path, ...]
    ) -> None:
        folder = self.main.parent / (match["folder"] or "")
        name = (match["file"] or match["braced"] or match["bare"] or "").strip()
        where = f"line {line}: {' '.join(match[0].split())}"
        if path != self.main:
            where = f"{path}, {where}"
        choices = [folder / f"{name}.tex", folder / name]
        if match["imports"] or match["command"] == "subfile":
            choices += [
                path.parent / (match["folder"] or "") / one.name for one in choices
            ]
        found = next((one for one in choices if name and one.is_file()), None)
        if found is None:
            raise ValueError(f"{where}: expected a file; there is no {choices[0]}")
        if found.resolve() in above:
            raise ValueError(f"{where}: this file includes itself")
        text, first = _read(found), 1
        if body := _BODY.search(text):
            first = 1 + text.count("\n", 0, body.start(1))
            text = body[1]
        self.add(text, found, first, (*above, found.resolve()))

    def _begin(self, path: Path, line: int) -> None:
        self.pieces.append(Piece(self._line, str(path), line))

    def _write(self, text: str) -> None:
        self.texts.append(text)
        self._line += text.count("\n")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8; {error}") from error
