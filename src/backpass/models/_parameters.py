"""Read the parameters of a model from a mapping, and choose those to train."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from backpass.contract.arrays import Array, is_array, namespace
from backpass.contract.shapes import Kind, kind, parse
from backpass.contract.spec import axis_length
from backpass.contract.stems import nearest, no_such
from backpass.contract.wanted import Wanted

Shapes = dict[str, tuple[int, ...]]
Names = tuple[str, ...]  # of the wanted gradients of a part
Config = TypeVar("Config")

HEAD = "lm_head.weight"  # the output head's weight, in all models

# Buffers that older versions of Hugging Face's models saved: masks and frequencies.
BUFFERS = re.compile(
    r"h\.\d+\.attn\.(masked_)?bias|(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
)


def check_faults(heading: str, faults: Collection[str], error: type = ValueError):
    """Raise the error if there are faults, with all of them under the heading."""
    if faults:
        raise error("\n    ".join([f"{heading}:", *faults]))


def preset_in(presets: Mapping[str, Config], name: str) -> Config:
    """Return the preset of that name. Raises LookupError, which names the nearest."""
    if name not in presets:
        raise LookupError(no_such("preset", name, presets))
    return presets[name]


def check_config(config: object, expected: type) -> None:
    """Raise TypeError unless ``config`` is one of the model's own class."""
    if not isinstance(config, expected):
        name, came = map(_full_name, (expected, type(config)))
        raise TypeError(f"config: expected a {name}; got {came}")


def _full_name(kind: type) -> str:
    """Return a class's name with its module, unless it is built in: the models' own
    classes share one name."""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__name__}"


def shapes_in_layer(layer: ModuleType, lengths: Mapping[str, int]) -> Shapes:
    """Return the shape of each parameter of a layer, by its argument, from the lengths
    of the letters of its SHAPES."""
    return {
        spec.name: tuple(axis_length(axis, lengths) for axis in spec.axes)
        for spec in parse(layer.SHAPES).inputs
        if spec.name in layer.PARAMETERS
    }


def read(
    parameters: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    wanted: Wanted,
    *,
    prefix: str = "",
    tied_to: str | None = None,
) -> tuple[dict[str, Array], dict[str, str], frozenset[str]]:
    """Return the arrays of a mapping by the names in ``shapes``, the names that the
    mapping gives them, which may begin with ``prefix``, and which are ``wanted``.

    If the output head is ``tied_to`` another parameter, it is not among ``shapes``. It
    may be in the mapping, and must then be equal.

    Raises TypeError unless ``parameters`` is a mapping. Raises ValueError for entries
    that are missing, unknown, given twice, not floating-point arrays, of the wrong
    shape, of different kinds, or recorded by autograd; it names all of them.
    """
    check_mapping("parameters", parameters)
    faults: list[str] = []
    given: dict[str, str] = {}
    known = [*shapes, HEAD] if tied_to else [*shapes]
    for name in parameters:
        own = str(name).removeprefix(prefix)
        if own in given:
            faults.append(f"{name}: is also given as {given[own]}")
        elif own in known:
            given[own] = name
        elif not BUFFERS.fullmatch(own):
            faults.append(f"{name}: is not a parameter; {nearest(own, known)}")
    faults += [f"{name}: is missing" for name in shapes if name not in given]

    arrays = {own: parameters[name] for own, name in given.items()}
    expected = {**shapes, HEAD: shapes[tied_to]} if tied_to else shapes
    wrong = {own: _fault_of(array, expected[own]) for own, array in arrays.items()}
    faults += [f"{given[own]}: {fault}" for own, fault in wrong.items() if fault]
    sound = [own for own, fault in wrong.items() if fault is None]
    faults += _differences(arrays, given, sound)
    if tied_to and HEAD in given and not faults:
        if not _equal(arrays[HEAD], arrays[tied_to]):
            faults.append(f"{given[HEAD]}: is tied to {given[tied_to]}, but differs")
    check_faults("parameters: they do not fit the configuration", faults)
    if tied_to:
        arrays.pop(HEAD, None)
        given.pop(HEAD, None)
    return arrays, given, _chosen(wanted, given, tied_to)


def words(of: Kind) -> str:
    """Return the library, the device, and the dtype of an array in words."""
    return " ".join(map(str, of))


def check_mapping(what: str, arrays: object) -> None:
    """Raise TypeError unless ``arrays`` is a mapping."""
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"{what}: expected a mapping from names to arrays; "
            f"got {type(arrays).__name__}"
        )


def check_arrays(
    arrays: Mapping[str, Array],
    shapes: Mapping[str, tuple[int, ...]],
    what: str = "parameters",
    *,
    complete: bool = False,
) -> None:
    """Raise TypeError unless ``arrays`` is a mapping; ValueError, naming all of them,
    for entries whose names are not among ``shapes``, or whose shapes are others, and
    for entries that are missing if there has to be a ``complete`` set."""
    check_mapping(what, arrays)
    faults = []
    for name, x in arrays.items():
        if name not in shapes:
            faults.append(f"{name}: is not a parameter; {nearest(str(name), shapes)}")
        elif fault := _fault_of(x, shapes[name]):
            faults.append(f"{name}: {fault}")
    if complete and not faults:
        faults = [f"{name}: is missing" for name in shapes if name not in arrays]
    check_faults(f"{what}: they do not fit", faults)


def _chosen(
    wanted: Wanted, given: Mapping[str, str], tied_to: str | None
) -> frozenset[str]:
    """Return the model's own names of the parameters to train. ``wanted`` has the names
    under which they were given, or is None for all. Raises TypeError or ValueError."""
    if wanted is None:
        return frozenset(given)
    if isinstance(wanted, str) or not isinstance(wanted, Collection):
        came = repr(wanted) if isinstance(wanted, str) else type(wanted).__name__
        raise TypeError(
            "wanted: expected a collection of names of parameters, or None for all; "
            f"got {came}"
        )
    own = {name: own for own, name in given.items()}
    unknown = [name for name in wanted if name not in own]
    if unknown:
        hint = nearest(unknown[0], own)
        if tied_to and unknown[0] == HEAD:
            hint = f"it is tied to {given[tied_to]}"
        raise ValueError(
            f"wanted: expected names of parameters; got {unknown[0]!r}; {hint}"
        )
    return frozenset(own[name] for name in wanted)


def chosen_own(
    wanted: Wanted, names: Iterable[str], tied_to: str | None = None
) -> frozenset[str]:
    """Return the same where the parameters have the model's own ``names``."""
    return _chosen(wanted, {name: name for name in names}, tied_to)


def wanted_in_parts(
    parts: Iterable[Mapping[str, str]], wanted: Collection[str], x: bool
) -> list[tuple[str, ...]]:
    """Return the wanted gradients of each part of a model, in the order of the forward.

    A part is given as the name of each parameter by its argument. ``x`` says whether
    anything before the first part is trained. The gradient of a part's x is wanted if
    anything before it is.
    """
    found: list[tuple[str, ...]] = []
    for names in parts:
        trained = [argument for argument, name in names.items() if name in wanted]
        found.append(("x", *trained) if x else tuple(trained))
        x = bool(found[-1])
    return found


def check_unused(parts: Collection[Any], expected: int) -> None:
    """Raise ValueError if ``backward`` has freed what the parts saved."""
    if len(parts) != expected:
        raise ValueError(
            "saved: backward frees what forward saved and has already run; "
            "call forward again"
        )


def _fault_of(array: object, shape: tuple[int, ...]) -> str | None:
    """Return what is wrong with one entry, or None."""
    if not is_array(array):
        return f"expected an array; got {type(array).__name__}"
    if tuple(array.shape) != shape:
        return f"expected shape {list(shape)}; got shape {list(array.shape)}"
    floating = ("real floating", "complex floating")
    if not namespace(array).isdtype(array.dtype, floating):
        return f"expected floating-point numbers; got dtype {array.dtype}"
    if getattr(array, "requires_grad", False):
        return "has requires_grad=True; pass it detached, as in a state_dict"
    return None


def _differences(
    arrays: Mapping[str, Array], given: Mapping[str, str], sound: Iterable[str]
) -> list[str]:
    """Return a fault for each entry whose library, device, or dtype differs from the
    first's."""
    kinds = {given[own]: kind(arrays[own]) for own in sound}
    first = next(iter(kinds), "")
    return [
        f"{name}: expected {words(kinds[first])}, as {first}; got {words(came)}"
        for name, came in kinds.items()
        if came != kinds[first]
    ]


def _equal(a: Array, b: Array) -> bool:
    """Whether the arrays are equal, NaN counting as equal to NaN."""
    same = (a == b) | ((a != a) & (b != b))
    return a is b or bool(namespace(a, b).all(same))
