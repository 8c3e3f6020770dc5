"""What every operation owes: one test a clause of the contract, run for every stem."""

import inspect
import itertools
import re

import numpy as np
import pytest
import torch

from backpass import kernels, ops
from backpass.contract.arrays import is_array
from backpass.contract.shapes import parse
from backpass.contract.spec import axis_length
from backpass.interpreters import counting
from backpass.interpreters.closed_world import Array
from backpass.verify import references
from backpass.verify.drawing import FACTORS, fitting, leaving_out, missing_options, options_for

LENGTHS = (5, 7, 3, 4, 6)  # of the letters, in order of appearance: all different
LEADING = {"*": (2, 3), "*a": (2, 1), "*b": (3,)}

STEMS = pytest.mark.parametrize("stem", ops.STEMS)
NUMPY_DTYPES = ["float32", "float64"]
TORCH_DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def lengths_of(stem, lengths=None):
    """The length of each letter; ``lengths`` replaces some."""
    shapes = parse(ops.load(stem).SHAPES)
    heads = [letter for letter in shapes.letters if letter in shapes.factors]
    others = [letter for letter in shapes.letters if letter not in shapes.factors]
    found = dict(zip(others, LENGTHS, strict=False)) | dict(zip(heads, FACTORS, strict=False))
    return fitting(stem, found | (lengths or {}))


def shapes_of(stem, lengths=None, **leading):
    """The shape of each input of ``stem``, by name; ``leading`` replaces groups: star=(2,), a=(), b=()."""
    spec = parse(ops.load(stem).SHAPES)
    lengths = lengths_of(stem, lengths)
    groups = LEADING | {"*" if key == "star" else f"*{key}": value for key, value in leading.items()}
    return {
        array.name: tuple(
            length
            for axis in array.axes
            for length in (groups[axis] if axis[0] == "*" else (axis_length(axis, lengths),))
        )
        for array in spec.inputs
    }


def draw(stem, dtype="float64", seed=0, **how):
    """Standard normal inputs by name, without signs where they must be positive; integers among the V classes."""
    rng = np.random.default_rng(seed)
    spec = parse(ops.load(stem).SHAPES)
    lengths = lengths_of(stem, how.get("lengths"))
    integers = {array.name for array in spec.inputs if array.integer}
    booleans = {array.name for array in spec.inputs if array.boolean}
    positive = getattr(ops.load(stem), "POSITIVE", ())
    drawn = {
        name: np.asarray(rng.integers(0, lengths.get("V") or 1, shape))
        if name in integers
        else np.asarray(rng.random(shape) < 0.7)
        if name in booleans
        else rng.standard_normal(shape).astype(dtype)
        for name, shape in shapes_of(stem, **how).items()
    }
    return {name: np.abs(x).astype(dtype) if name in positive else x for name, x in drawn.items()}


def tensors(inputs, dtype):
    """The inputs in PyTorch, those that are not integers in that dtype."""
    made = {name: torch.tensor(x) for name, x in inputs.items()}
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in made.items()}


def shapes_of_gradients(stem, inputs):
    """The shape that each gradient owes: that of its input."""
    return [tuple(inputs[spec.name].shape) for spec in differentiable(stem)]


def forward(stem, inputs):
    return ops.load(stem).forward(*inputs.values(), **options_for(stem))


def backward(stem, dy, saved):
    """The gradients as a tuple, also where there is one."""
    found = ops.load(stem).backward(dy, saved)
    return found if type(found) is tuple else (found,)


def cotangent(y, seed=1):
    return np.random.default_rng(seed).standard_normal(tuple(y.shape)).astype(y.dtype)


def run(stem, inputs):
    y, saved = forward(stem, inputs)
    return y, backward(stem, cotangent(y), saved)


def floating(stem):
    return [spec for spec in parse(ops.load(stem).SHAPES).inputs if spec.floating]


def differentiable(stem):
    constants = getattr(ops.load(stem), "CONSTANTS", ())
    return [spec for spec in floating(stem) if spec.name not in constants]


def plain(x):
    """A copy in NumPy, float64 where a tensor's dtype is unknown there; a fact that is not an array as it is."""
    if isinstance(x, torch.Tensor):
        return x.double().numpy().copy()
    return x.to_numpy() if isinstance(x, Array) else np.array(x)


def refused(stem, error, message, inputs):
    """Forward raises the error, with that message, and no arithmetic ran before it."""
    with counting.tally() as t, pytest.raises(error, match=message) as caught:
        forward(stem, inputs)
    assert t.total == 0
    assert "expected" in str(caught.value) and "got" in str(caught.value), caught.value


# What the module holds


@STEMS
def test_the_module_has_the_contracts_parts(stem):
    op = ops.load(stem)
    assert parse(op.SHAPES).outputs
    assert issubclass(op.Saved, tuple) and hasattr(op.Saved, "_fields")
    for part in (op.forward, op.backward, op.forward_flops, op.backward_flops):
        assert inspect.getdoc(part), part
    assert list(inspect.signature(op.backward).parameters)[:2] == ["dy", "saved"]
    names = {spec.name for spec in parse(op.SHAPES).inputs}
    assert set(getattr(op, "PARAMETERS", ())) <= names
    assert set(getattr(op, "CONSTANTS", ())) <= names
    assert set(getattr(op, "POSITIVE", ())) <= names


@STEMS
def test_arrays_are_positional_and_options_keyword_only(stem):
    op = ops.load(stem)
    parameters = inspect.signature(op.forward).parameters.values()
    specs = parse(op.SHAPES).inputs
    arrays = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in arrays] == [spec.name for spec in specs]
    assert [p.default is None for p in arrays] == [spec.optional for spec in specs]


@STEMS
def test_flops_ask_only_for_what_shapes_and_options_give(stem):
    op = ops.load(stem)
    given = {"m", *parse(op.SHAPES).letters, *(p for p in inspect.signature(op.forward).parameters)}
    for spec in parse(op.SHAPES).inputs:
        given |= {f"has_{spec.name}"} if spec.optional else set()
        given |= {f"size_{spec.name}"} if spec.broadcast else set()
        given |= {f"m_{axis[1:]}" for axis in spec.axes if axis[0] == "*" and len(axis) > 1}
    if hasattr(op, "data_lengths"):
        given |= op.data_lengths(*draw(stem).values()).keys()
    for function in (op.forward_flops, op.backward_flops):
        assert set(inspect.signature(function).parameters) <= given


FACTS = re.compile(r"^([A-Z_]+) = ", re.MULTILINE)


@STEMS
def test_the_facts_of_the_module_are_of_the_kinds_that_are_read(stem):
    """A misspelt name would be read by nobody."""
    _, found, facts = inspect.getsource(ops.load(stem)).partition(
        "\n# Facts for checks, pages and functional: "
    )
    assert found, "state the facts at the end of the module, as the other modules do"
    documented = set(re.findall(r"^- ``([A-Z_]+)``", ops.__doc__, re.MULTILINE))
    assert {*FACTS.findall(facts)} <= documented, "backpass.ops lists the names"


@STEMS
def test_autocast_has_a_rule(stem):
    rules = ("float32", "matmul", "widest")
    assert getattr(ops.load(stem), "AUTOCAST", None) in rules, f"state AUTOCAST, one of {rules}"


@STEMS
def test_the_facts_name_what_the_operation_has(stem):
    op = ops.load(stem)
    shapes = parse(op.SHAPES)
    inputs = {spec.name for spec in shapes.inputs}
    options = inspect.signature(op.forward).parameters.keys() - inputs
    lengths, absent = {*shapes.letters}, {spec.name for spec in shapes.inputs if spec.optional}
    examples = getattr(op, "EXAMPLES", ({},))
    assert missing_options(op) is None
    # A loss that is wide is not of the dtype of its inputs, as a check expects; test_functional.py has it.
    assert options - {"wanted", "wide"} <= set().union(*examples), "give every option a value in EXAMPLES"
    assert isinstance(examples, tuple) and examples[0].keys() <= options
    assert all(example and example.keys() <= options | lengths | absent for example in examples[1:])
    assert all(example[name] is None for example in examples[1:] for name in absent & example.keys())
    assert getattr(op, "MULTIPLES", {}).keys() <= lengths
    assert {*getattr(op, "FAN_IN", ())} <= inputs
    assert getattr(op, "ZERO_PRODUCTS", {}).keys() <= options
    assert getattr(op, "FORMULA_OPTIONS", {}).keys() <= options
    assert getattr(op, "FLOAT32_DEFAULTS", {}).keys() <= options
    drawn = {name for name, value in vars(op.Saved).items() if isinstance(value, property)}
    assert getattr(op, "LETTERS", {}).keys() <= inputs | options | {*op.Saved._fields} | drawn
    for name, (others, instead) in getattr(op, "LEFT_OUT", {}).items():
        assert {name, *others} <= {spec.name for spec in shapes.inputs if spec.optional}
        assert instead.keys() <= options


@STEMS
def test_an_option_of_a_wrong_kind_is_rejected_by_name(stem):
    op = ops.load(stem)
    inputs = draw(stem).values()
    options = inspect.signature(op.forward).parameters.keys() - {
        spec.name for spec in parse(op.SHAPES).inputs
    }
    for name in options - {"wanted"}:
        with pytest.raises((TypeError, ValueError), match=rf"^{name}: expected"):
            op.forward(*inputs, **{**options_for(stem), name: object()})


@STEMS
def test_there_is_a_reference_in_pytorch(stem):
    assert stem in references.STEMS, f"write a function {stem} in src/backpass/verify/references.py"
    takes = inspect.signature(ops.load(stem).forward).parameters.values()
    inputs = [p.name for p in takes if p.kind is not p.KEYWORD_ONLY]
    options = {p.name: None for p in takes if p.kind is p.KEYWORD_ONLY and p.name != "wanted"}
    inspect.signature(references.load(stem)).bind(*inputs, **options)


def test_references_and_kernels_have_an_operation():
    assert {*references.STEMS} <= {*ops.STEMS}
    assert {*kernels.STEMS} < {*ops.STEMS}
    assert ops.STEMS == tuple(sorted(ops.STEMS))


@STEMS
def test_the_docstring_names_a_page(stem):
    assert ops.page(stem).split("/")[0] in ("foundations", "operations", "attention", "parallel")


def test_a_docstring_without_a_page_is_named(monkeypatch):
    monkeypatch.setattr(ops.load("softmax"), "__doc__", "Softmax.")
    with pytest.raises(
        LookupError, match=r"^softmax: src/backpass/ops/softmax\.py names no page; write 'Derived on"
    ):
        ops.page("softmax")


def test_an_unknown_stem_names_the_nearest():
    with pytest.raises(LookupError, match="did you mean 'softmax'"):
        ops.load("sofmax")
    with pytest.raises(LookupError, match="there are: all_gather, "):
        ops.load("zzz")
    assert ops.load("softmax") is ops.softmax
    assert set(ops.STEMS) <= set(dir(ops))
    with pytest.raises(AttributeError, match="sofmax"):
        _ = ops.sofmax


# dtypes, shapes, and inputs left as they were


@STEMS
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_dtype_in_is_dtype_out_in_numpy(stem, dtype):
    y, gradients = run(stem, draw(stem, dtype))
    assert {a.dtype for a in (y, *gradients)} == {np.dtype(dtype)}
    assert all(isinstance(a, np.ndarray) for a in (y, *gradients) if a.shape)  # without axes: NumPy's scalar


@STEMS
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_dtype_in_is_dtype_out_in_torch(stem, dtype):
    y, saved = forward(stem, tensors(draw(stem), dtype))
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    gradients = backward(stem, dy, saved)
    assert {a.dtype for a in (y, *gradients)} == {dtype}
    assert {a.device.type for a in (y, *gradients)} == {"cpu"}


@STEMS
@pytest.mark.parametrize("rank", range(5))
def test_gradients_have_the_inputs_shapes_at_any_number_of_leading_axes(stem, rank):
    leading = (2, 1, 3, 2)[:rank]
    inputs = draw(stem, star=leading, a=leading, b=leading[1:])
    y, gradients = run(stem, inputs)
    assert [g.shape for g in gradients] == shapes_of_gradients(stem, inputs)
    lengths = parse(ops.load(stem).SHAPES).bind(inputs | {"y": y})  # y too has the shape declared
    assert lengths.get("*") == leading


@STEMS
def test_leading_axes_are_only_rows(stem):
    """Four leading axes give what one gives, rearranged."""
    nested = (2, 1, 3, 2)
    deep = draw(stem, star=nested, a=nested, b=nested)
    # Dropout's * includes the last axis, and its mask depends on the place in a row.
    merged = shapes_of(stem, star=(6, 2) if stem == "dropout" else (12,), a=(12,), b=(12,))
    flat = {name: x.reshape(merged[name]) for name, x in deep.items()}
    y, saved = forward(stem, deep)
    flat_y, flat_saved = forward(stem, flat)
    np.testing.assert_allclose(y.reshape(flat_y.shape), flat_y, rtol=1e-12)
    dy = cotangent(y)
    pairs = zip(backward(stem, dy, saved), backward(stem, dy.reshape(flat_y.shape), flat_saved), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-12, atol=1e-13)


@STEMS
@pytest.mark.parametrize("leading", [(0,), (0, 3), (2, 0)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_rows_give_empty_gradients_or_zeros(stem, leading, library):
    inputs = draw(stem, star=leading, a=leading, b=leading)
    make = torch.tensor if library == "torch" else np.asarray
    y, saved = forward(stem, {name: make(x) for name, x in inputs.items()})
    gradients = backward(stem, make(np.zeros(tuple(y.shape))), saved)
    assert [tuple(g.shape) for g in gradients] == shapes_of_gradients(stem, inputs)
    assert all(not plain(g).any() for g in gradients)


@STEMS
def test_axes_that_may_be_empty_may_be(stem):
    specs = parse(ops.load(stem).SHAPES)
    for letter in set(specs.letters) - set(specs.least):
        inputs = draw(stem, lengths={letter: 0})
        y, gradients = run(stem, inputs)
        assert [g.shape for g in gradients] == shapes_of_gradients(stem, inputs)
        assert not np.isnan(y).any()


@STEMS
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_inputs_are_never_modified(stem, library):
    make = (lambda x: torch.tensor(x)) if library == "torch" else np.array
    inputs = {name: make(x) for name, x in draw(stem).items()}
    before = {name: plain(x) for name, x in inputs.items()}
    y, saved = forward(stem, inputs)
    kept = [plain(part) if is_array(part) else part for part in saved]
    value = plain(y)
    dy = make(np.random.default_rng(2).standard_normal(tuple(y.shape)))
    dy_before = plain(dy)
    backward(stem, dy, saved)
    for name, x in inputs.items():
        assert np.array_equal(plain(x), before[name]), name
    for part, was in zip(saved, kept, strict=True):
        assert np.array_equal(plain(part), was) if is_array(part) else part == was
    assert np.array_equal(plain(dy), dy_before)
    assert np.array_equal(plain(y), value)


@STEMS
def test_read_only_inputs_pass(stem):
    inputs = draw(stem)
    for x in inputs.values():
        x.flags.writeable = False
    y, saved = forward(stem, inputs)
    dy = cotangent(y)
    dy.flags.writeable = False
    backward(stem, dy, saved)


def turned(x):
    """The same numbers with the axes stored the other way round."""
    return np.asfortranarray(x) if x.ndim > 1 else x


def strided(x):
    """The same numbers, every second of a longer array."""
    return np.repeat(x, 2, axis=-1)[..., ::2] if x.ndim else x


def reversed_(x):
    """The same numbers, read from the end."""
    return np.flip(np.flip(x, -1).copy(), -1) if x.ndim else x


@STEMS
@pytest.mark.parametrize("store", [turned, strided, reversed_])
def test_how_inputs_are_stored_does_not_matter(stem, store):
    inputs = draw(stem)
    y, saved = forward(stem, inputs)
    dy = cotangent(y)
    stored_y, stored_saved = forward(stem, {name: store(x) for name, x in inputs.items()})
    np.testing.assert_allclose(stored_y, y, rtol=1e-13)
    for found, expected in zip(
        backward(stem, store(dy), stored_saved), backward(stem, dy, saved), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@STEMS
def test_expanded_and_transposed_tensors_pass(stem):
    """Leading axes without storage of their own, last axes swapped: what attention hands on."""
    inputs = {name: torch.tensor(x) for name, x in draw(stem, star=(2, 3), a=(2, 3), b=(2, 3)).items()}
    parameters = getattr(ops.load(stem), "PARAMETERS", ())
    views = {
        name: x[:1].expand(x.shape)
        if x.ndim > 2 and name not in parameters
        else x.mT.contiguous().mT
        if x.ndim > 1
        else x
        for name, x in inputs.items()
    }
    copies = {name: x.clone(memory_format=torch.contiguous_format) for name, x in views.items()}
    y, saved = forward(stem, views)
    copied_y, copied_saved = forward(stem, copies)
    one = (1, *y.shape[1:]) if y.ndim else ()
    dy = torch.randn(one, dtype=y.dtype, generator=torch.Generator().manual_seed(3)).expand(y.shape)
    torch.testing.assert_close(y, copied_y)
    gradients, expected = backward(stem, dy, saved), backward(stem, dy.contiguous(), copied_saved)
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a, b)


@STEMS
def test_libraries_agree(stem):
    inputs = draw(stem)
    y, gradients = run(stem, inputs)
    torch_y, torch_saved = forward(stem, {name: torch.tensor(x) for name, x in inputs.items()})
    np.testing.assert_allclose(torch_y.numpy(), y, rtol=1e-12, atol=1e-14)
    for found, expected in zip(
        backward(stem, torch.tensor(cotangent(y)), torch_saved), gradients, strict=True
    ):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-14)


@STEMS
def test_complex_numbers_pass(stem):
    """A complex step needs the forward, and only the forward, to be written with analytic functions."""
    inputs = draw(stem, "complex128")
    y, _ = forward(stem, inputs)
    assert y.dtype == np.complex128


@STEMS
def test_an_optional_input_left_out_has_gradient_none(stem):
    for spec in parse(ops.load(stem).SHAPES).inputs:
        if spec.optional:
            without, options = leaving_out(stem, [spec.name])
            inputs = draw(stem) | dict.fromkeys(without)
            y, saved = ops.load(stem).forward(*inputs.values(), **options)
            names = [array.name for array in differentiable(stem)]
            gradients = dict(zip(names, backward(stem, cotangent(y), saved), strict=True))
            missing = [name for name in names if name in without]
            assert [name for name, gradient in gradients.items() if gradient is None] == missing


# Gradients left out


@STEMS
def test_wanted_is_taken_by_every_operation_with_several_gradients_and_no_other(stem):
    op = ops.load(stem)
    several = len(differentiable(stem)) > 1
    for function, takes in ((op.forward, 2), (op.backward, 2), (op.backward_flops, 1)):
        *_, last = inspect.signature(function).parameters.values()
        assert (last.name == "wanted") is several, function
        if several:
            assert last.default is None
            assert takes == 1 or last.kind is last.KEYWORD_ONLY
    assert ("wanted" in op.Saved._fields) is several


SEVERAL = [stem for stem in ops.STEMS if len(differentiable(stem)) > 1]
WITH_WANTED = pytest.mark.parametrize("stem", SEVERAL)
LIBRARIES = pytest.mark.parametrize("make", [np.asarray, torch.tensor], ids=["numpy", "torch"])


def subsets(names):
    """Every choice of up to four names; of more, none, each alone, and all but each."""
    if len(names) <= 4:
        sizes = range(len(names) + 1)
    else:
        sizes = (0, 1, len(names) - 1)
    return [chosen for size in sizes for chosen in itertools.combinations(names, size)]


def leaving(stem):
    """The inputs drawn, all of them and without each optional one, each with its options."""
    optional = [spec.name for spec in parse(ops.load(stem).SHAPES).inputs if spec.optional]
    for names in ([], *([name] for name in optional)):
        without, options = leaving_out(stem, names) if names else ([], options_for(stem))
        yield draw(stem) | dict.fromkeys(without), options


@WITH_WANTED
@LIBRARIES
def test_an_unwanted_gradient_is_none_and_the_others_are_the_same(stem, make):
    """Bit for bit, whether forward is given the names or backward, which may be given fewer."""
    op, names = ops.load(stem), [spec.name for spec in differentiable(stem)]
    for inputs, options in leaving(stem):
        given = [None if x is None else make(x) for x in inputs.values()]
        y, saved = op.forward(*given, **options)
        dy = make(cotangent(plain(y)))
        full = dict(zip(names, op.backward(dy, saved), strict=True))
        for chosen in subsets(names):
            told_y, told = op.forward(*given, **options, wanted=chosen)
            assert np.array_equal(plain(told_y), plain(y))
            assert told.wanted == tuple(name for name in chosen if inputs[name] is not None)
            for gradients in (op.backward(dy, told), op.backward(dy, saved, wanted=told.wanted)):
                for name, got in zip(names, gradients, strict=True):
                    if name not in told.wanted:
                        assert got is None, (chosen, name)
                    else:
                        assert np.array_equal(plain(got), plain(full[name])), (chosen, name)


def leaves(part, path=()):
    """The arrays of a Saved and of those within it, each with its place."""
    if is_array(part):
        yield path
    elif isinstance(part, tuple):
        for at, inner in enumerate(part):
            yield from leaves(inner, (*path, at))


def with_nan(part, path):
    """A Saved with NaN in place of one of its arrays, or with the booleans of one negated."""
    if not path:
        return ~part if part.dtype == bool else np.full_like(part, np.nan)
    at, *rest = path
    parts = [with_nan(inner, rest) if i == at else inner for i, inner in enumerate(part)]
    return type(part)(*parts) if hasattr(part, "_fields") else tuple(parts)


@WITH_WANTED
def test_what_is_saved_is_what_the_wanted_gradients_need(stem):
    """No array of ``saved`` can be another without one of them being another too."""
    op, names = ops.load(stem), [spec.name for spec in differentiable(stem)]
    for inputs, options in leaving(stem):
        for chosen in subsets(names):
            y, saved = op.forward(*inputs.values(), **options, wanted=chosen)
            right = op.backward(cotangent(y), saved)
            for path in leaves(saved):
                with np.errstate(all="ignore"):
                    gradients = op.backward(cotangent(y), with_nan(saved, path))
                pairs = zip(gradients, right, strict=True)
                assert any(g is not None and not np.array_equal(g, its) for g, its in pairs), (chosen, path)


@WITH_WANTED
def test_what_forward_was_not_asked_to_save_is_rejected(stem):
    op, (first, *others) = ops.load(stem), [spec.name for spec in differentiable(stem)]
    others = [name for name in others if draw(stem)[name] is not None]
    y, saved = op.forward(*draw(stem).values(), **options_for(stem), wanted=others)
    message = (
        rf"^wanted: expected names among {', '.join(others)}, for which forward saved what they need; "
        rf"got '{first}'$"
    )
    with pytest.raises(ValueError, match=message):
        op.backward(cotangent(y), saved, wanted=(first,))


@WITH_WANTED
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (
            "x",
            TypeError,
            r"^wanted: expected a collection of names, such as \('x',\), or None for all; got 'x'$",
        ),
        (3, TypeError, "^wanted: expected a collection of names, .*; got int$"),
        (["sofa"], ValueError, "^wanted: expected names among .*; got 'sofa'$"),
    ],
    ids=str,
)
def test_what_names_no_gradient_is_rejected(stem, wrong, error, message):
    inputs = counted(draw(stem))
    op = ops.load(stem)
    with counting.tally() as t, pytest.raises(error, match=message):
        op.forward(*inputs.values(), **options_for(stem), wanted=wrong)
    assert t.total == 0
    y, saved = forward(stem, inputs)
    with counting.tally() as t, pytest.raises(error, match=message.removesuffix("$")):
        op.backward(y, saved, wanted=wrong)
    assert t.total == 0


# Bad input, rejected before any arithmetic


def counted(inputs):
    return {name: None if x is None else counting.array(x) for name, x in inputs.items()}


@STEMS
def test_too_few_axes_are_rejected(stem):
    for spec in floating(stem):
        if any(axis[0] != "*" for axis in spec.axes) and not spec.broadcast:
            inputs = counted(draw(stem) | {spec.name: np.ones(())})
            refused(
                stem, ValueError, rf"^{spec.name}: expected {re.escape(str(spec))}.*got shape \[\]", inputs
            )


@STEMS
def test_too_many_axes_are_rejected_where_there_is_no_group(stem):
    for spec in floating(stem):
        if spec.group is None:
            inputs = draw(stem)
            inputs[spec.name] = inputs[spec.name][None]
            message = rf"^{spec.name}: expected .*exactly {len(spec.axes)} ax[ei]s; got shape \[1, "
            refused(stem, ValueError, message, counted(inputs))


@STEMS
def test_lengths_that_do_not_fit_are_rejected(stem):
    """Each letter or group that two inputs share, changed in the later one."""
    seen = set()
    for spec in floating(stem):
        for at, axis in enumerate(spec.axes):
            if axis in seen and axis[0] != "*":
                inputs = draw(stem)
                shape = list(inputs[spec.name].shape)
                shape[at - len(spec.axes)] += 1
                inputs[spec.name] = np.ones(shape)
                message = rf"^{spec.name}: expected .*with {re.escape(axis)} = .*; got shape {re.escape(str(shape))}"
                refused(stem, ValueError, message, counted(inputs))
            elif axis in seen:
                inputs = draw(stem)
                inputs[spec.name] = np.ones((4, *inputs[spec.name].shape))
                message = rf"^{spec.name}: expected .*leading axes (that broadcast to )?\[2, 3\].*; got shape \[4, 2, 3"
                refused(stem, ValueError, message, counted(inputs))
        seen |= {*spec.axes}


@STEMS
def test_axes_that_may_not_be_empty_are_rejected_empty(stem):
    for spec in floating(stem):
        for letter, _ in spec.least:
            inputs = counted(draw(stem, lengths={letter: 0}))
            refused(stem, ValueError, rf"^{spec.name}: expected", inputs)


@STEMS
@pytest.mark.parametrize("dtype", ["int64", "bool"])
def test_what_is_not_floating_is_rejected(stem, dtype):
    for spec in floating(stem):
        inputs = counted(draw(stem))
        inputs[spec.name] = counting.array(np.ones(inputs[spec.name].shape, dtype=dtype))
        refused(stem, TypeError, rf"^{spec.name}: expected floating-point numbers; got dtype {dtype}", inputs)


@STEMS
def test_differing_dtypes_are_rejected(stem):
    for spec in floating(stem)[1:]:
        inputs = draw(stem)
        inputs[spec.name] = inputs[spec.name].astype(np.float32)
        refused(stem, TypeError, rf"^{spec.name}: expected \w+'s dtype, float64; got float32", inputs)


@STEMS
def test_mixed_libraries_are_rejected(stem):
    for spec in floating(stem)[1:]:
        inputs = draw(stem)
        inputs[spec.name] = torch.tensor(inputs[spec.name])
        refused(stem, TypeError, rf"^{spec.name}: expected \w+'s array library, numpy; got torch", inputs)


@STEMS
def test_mixed_devices_are_rejected(stem):
    for spec in floating(stem)[1:]:
        inputs = {name: torch.tensor(x) for name, x in draw(stem).items()}
        inputs[spec.name] = inputs[spec.name].to("meta")
        refused(stem, TypeError, rf"^{spec.name}: expected \w+'s device, cpu; got meta", inputs)


@STEMS
@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, "x", None], ids=lambda v: type(v).__name__)
def test_what_is_not_an_array_is_rejected(stem, value):
    for spec in floating(stem):
        if value is None and spec.optional:
            continue
        inputs = counted(draw(stem)) | {spec.name: value}
        refused(stem, TypeError, rf"^{spec.name}: expected an array .*; got {type(value).__name__}", inputs)


def refused_cotangent(stem, dy, error, message, inputs=None):
    _, saved = forward(stem, inputs or counted(draw(stem)))
    with counting.tally() as t, pytest.raises(error, match=message):
        ops.load(stem).backward(dy, saved)
    assert t.total == 0


@STEMS
def test_a_cotangent_of_another_shape_is_rejected(stem):
    y, _ = forward(stem, draw(stem))
    longer = [(y.shape[0] + 1, *y.shape[1:])] if y.shape else []
    for shape in {(), (*y.shape, 1), (1, *y.shape), y.shape[1:], *longer} - {y.shape}:
        expected, came = re.escape(str([*y.shape])), re.escape(str([*shape]))
        message = rf"dy: expected the output's shape {expected}; got shape {came}"
        refused_cotangent(stem, counting.array(np.ones(shape)), ValueError, message)


@STEMS
def test_a_cotangent_that_is_not_a_floating_array_is_rejected(stem):
    y, _ = forward(stem, draw(stem))
    refused_cotangent(stem, [1.0], TypeError, "dy: expected an array .*; got list")
    refused_cotangent(stem, None, TypeError, "dy: expected an array .*; got NoneType")
    integers = counting.array(np.ones(y.shape, dtype=int))
    refused_cotangent(stem, integers, TypeError, "dy: expected floating-point numbers; got dtype int64")


@STEMS
def test_a_cotangent_of_another_library_device_or_dtype_is_rejected(stem):
    inputs = draw(stem)
    y, _ = forward(stem, inputs)
    message = "dy: expected forward's array library, numpy; got torch"
    refused_cotangent(stem, torch.ones(y.shape), TypeError, message, inputs)
    message = "dy: expected forward's dtype, float64; got float32"
    refused_cotangent(stem, np.ones(y.shape, dtype=np.float32), TypeError, message, inputs)
    inputs = {name: torch.tensor(x) for name, x in inputs.items()}
    message = "dy: expected forward's device, cpu; got meta"
    refused_cotangent(
        stem, torch.ones(y.shape, dtype=torch.float64, device="meta"), TypeError, message, inputs
    )


@STEMS
@pytest.mark.parametrize("wrong", [None, 3.0, (), "array", "too long"], ids=str)
def test_what_forward_did_not_save_is_rejected(stem, wrong):
    y, saved = forward(stem, counted(draw(stem)))
    wrong = {"array": y, "too long": (*saved, y)}.get(wrong, wrong) if isinstance(wrong, str) else wrong
    fields = ", ".join(saved._fields)
    message = rf"^saved: expected what forward returned second, Saved\({fields}\); got {type(wrong).__name__}"
    with counting.tally() as t, pytest.raises(TypeError, match=message):
        ops.load(stem).backward(y, wrong)
    assert t.total == 0


def test_another_operations_saved_is_rejected():
    """Of equal length too, where the arrays would be read under other names; and so is a kernel's."""
    saved = {stem: ops.load(stem).Saved for stem in ops.STEMS}
    pairs = [
        (a, b) for a in saved for b in saved if a != b and len(saved[a]._fields) == len(saved[b]._fields)
    ]
    assert len(pairs) > 100
    for stem, other in pairs:
        with pytest.raises(TypeError, match=rf"^saved: .*; got {other}'s Saved"):
            ops.load(stem).backward(None, saved[other](*saved[other]._fields))
    kernels_own = type("Saved", (saved["softmax"],), {"__module__": "backpass.kernels.softmax"})
    with pytest.raises(TypeError, match=r"got kernels\.softmax's Saved"):
        ops.load("softmax").backward(None, kernels_own(None))
