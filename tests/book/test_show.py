"""Code on a page is the file's text, under the file's name."""

import functools
import inspect

import pytest

from backpass.book.show import source
from backpass.ops import softmax
from backpass.parallel import tensor


def test_a_function_is_shown_as_it_stands_in_its_file():
    shown = source(softmax.backward)
    assert inspect.getsource(softmax.backward).strip() in shown._repr_markdown_()
    assert "`src/backpass/ops/softmax.py`" in shown._repr_markdown_()
    assert repr(shown).startswith("# src/backpass/ops/softmax.py\ndef backward")


def test_several_objects_are_shown_one_after_the_other():
    shown = source(softmax.Saved, softmax.backward)._repr_markdown_()
    assert shown.index("class Saved") < shown.index("def backward")
    assert shown.count("```python") == 2


def test_a_kernel_shows_its_python_function():
    kernel = type("Kernel", (), {"fn": staticmethod(softmax.backward)})()
    assert "def backward" in repr(source(kernel))


def test_a_decorated_function_is_shown_from_its_own_file():
    @functools.wraps(softmax.backward)
    def decorated(*arguments):
        return softmax.backward(*arguments)

    assert repr(source(decorated)).startswith("# src/backpass/ops/softmax.py\ndef backward")


def test_what_has_no_source_is_rejected():
    with pytest.raises(TypeError, match="expected a function, a class or a module to show; got 'softmax'"):
        source("softmax")


def test_a_method_begins_at_the_margin():
    _, shown = repr(source(tensor.Norm.backward)).split("\n", 1)
    assert shown.startswith("def backward(\n    self,") and shown.count("\n    return ") == 1
