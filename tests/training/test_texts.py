"""The text: a file, or the files of a folder in a fixed order, and its held-out part."""

import hashlib
from pathlib import Path

import pytest

from backpass.training import texts


def test_a_file(tmp_path):
    path = tmp_path / "some.bin"
    path.write_bytes(b"\xff\x00text")
    assert texts.read(path) == texts.read(str(path)) == b"\xff\x00text"


def test_a_folder_in_the_order_of_its_paths(tmp_path):
    for name in ("b.md", "a/z.txt", "c.txt", "a/figure.svg", "a.md", "READ.MD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.md").mkdir()
    assert texts.read(tmp_path) == b"READ.MD\na/z.txt\na.md\nb.md\nc.txt"


def test_what_is_rejected(tmp_path):
    with pytest.raises(FileNotFoundError, match="none: there is no such file or folder"):
        texts.read(tmp_path / "none")
    with pytest.raises(ValueError, match=r"expected files ending in \.md or \.txt"):
        texts.read(tmp_path)
    (tmp_path / "empty.md").write_text(" \n")
    for path in (tmp_path, tmp_path / "empty.md"):
        with pytest.raises(ValueError, match="expected a text; got an empty one"):
            texts.read(path)


@pytest.mark.parametrize("length", [0, 9, 10, 101])
def test_the_last_tenth_is_held_out(length):
    text = bytes(range(length))
    train, held_out = texts.divided(text)
    assert train + held_out == text and len(held_out) == length // 10


def test_the_digest_is_a_sha_256():
    assert texts.digest(b"text") == hashlib.sha256(b"text").hexdigest()


@pytest.mark.parametrize("of", [texts.digest, texts.divided])
def test_a_string_is_not_bytes(of):
    with pytest.raises(TypeError, match=r"text: expected bytes, .* got str"):
        of("text")


def test_the_text_of_the_pages_never_changes():
    # The pages that train on it assert and print what these very bytes give, so no edit of a chapter may change it.
    path = Path(__file__).parents[2] / "assets" / "text.txt"
    assert (
        texts.digest(texts.read(path)) == "c933a2f80a84059b8b2bb1e4cd616ec3783fc8c37389c918f64f0a08c82f311a"
    )
