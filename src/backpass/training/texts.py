"""The text to train on: the bytes of a file or of the files in a folder, divided into a
part to train on and one that is held out."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _PACKAGE.parents[1] / "assets" / "text.txt"
# The text on which the chapters train. An installed package has a copy.
SAMPLE = _CHECKOUT if _CHECKOUT.is_file() else _PACKAGE / "text.txt"
ENDINGS = (".md", ".txt")  # of the files that are read in a folder
HELD_OUT = 10  # one byte in so many


def read(path: str | Path) -> bytes:
    """Return the bytes of a file. For a folder, return those of all ``.md`` and
    ``.txt`` files in it and in its folders, sorted by path and joined by a line break;
    capitals in an ending do not matter.

    Raises FileNotFoundError if the path does not exist; ValueError if a folder has no
    such files, or if the text is empty.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in ENDINGS and file.is_file()
        )
        if not files:
            raise ValueError(
                f"{path}: expected files ending in {' or '.join(ENDINGS)} in the "
                "folder; got none"
            )
        text = b"\n".join(file.read_bytes() for file in files)
    elif path.is_file():
        text = path.read_bytes()
    else:
        raise FileNotFoundError(f"{path}: there is no such file or folder")
    if not text.strip():
        raise ValueError(f"{path}: expected a text; got an empty one")
    return text


def divided(text: bytes) -> tuple[bytes, bytes]:
    """Return the first nine tenths of a text, to train on, and its last tenth, which is
    held out. Raises TypeError unless it is bytes."""
    check_bytes(text)
    at = len(text) - len(text) // HELD_OUT
    return text[:at], text[at:]


def digest(text: bytes) -> str:
    """Return the SHA-256 of a text, in hexadecimal. Raises TypeError unless it is
    bytes."""
    check_bytes(text)
    return hashlib.sha256(text).hexdigest()


def check_bytes(text: object) -> None:
    """Raise TypeError unless ``text`` is bytes."""
    if not isinstance(text, bytes | bytearray | memoryview):
        raise TypeError(
            f"text: expected bytes, such as 'text'.encode(); got {type(text).__name__}"
        )
