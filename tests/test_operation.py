"""One view of an operation: what a module states, and the default of what it does not."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from backpass import operation, ops
from backpass.operation import Operation


def facts():
    """The facts that the documentation of `backpass.ops` lists."""
    return set(re.findall(r"^- ``([A-Z][A-Z0-9_]+)``", ops.__doc__, re.MULTILINE)) - {"SHAPES"}


def test_every_fact_that_is_documented_is_read_here_but_those_of_a_page_or_of_autocast():
    source = open(operation.__file__, encoding="utf-8").read()
    read = set(re.findall(r'_fact\("([A-Z0-9_]+)"', source))
    assert facts() - read == {"AUTOCAST", "PLACES"} and read <= facts()


def test_an_object_that_states_nothing():
    view = Operation(SimpleNamespace(forward=abs, backward=abs))
    assert view.shapes is None and view.inputs == () and view.differentiable == []
    assert view.constants == view.positive == () and view.examples == ({},)


def test_a_stem_and_its_module_are_the_same():
    assert Operation("rope").op is Operation(ops.rope).op is ops.rope
    assert Operation("rope").name == "rope"
    assert [spec.name for spec in Operation("rope").differentiable] == ["x"]
    assert Operation("dropout").option_names == ["p", "seed", "training"]


def test_an_unknown_stem_is_named_with_the_nearest():
    with pytest.raises(LookupError, match="softmax"):
        Operation("sotfmax")


def test_values_are_made_such_as_the_input_must_be():
    view = Operation(SimpleNamespace(POSITIVE=("x",), FAN_IN=("w",)))
    values = np.array([[-3.0, 1.0], [2.0, 1.0], [0.0, 4.0], [1.0, 1.0]])
    np.testing.assert_array_equal(view.suited("x", values), np.abs(values))
    np.testing.assert_array_equal(view.suited("w", values), values / 2)
    assert view.suited("b", values) is values
