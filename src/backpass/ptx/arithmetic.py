"""Instructions that compute each thread's result from its own operands.

Each instruction is a function of values ``[threads]``, found by its name. PTX does not
fix the results of ``approx`` and ``full`` instructions. Here they are rounded to the
nearest number, or moved by at most the error that the manual allows. PTX ISA 8.7,
chapter 9.7.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from backpass.ptx.approximate import moved
from backpass.ptx.eight_bits import is_eight_bits, modifiers_known, saturated
from backpass.ptx.faults import Unsupported
from backpass.ptx.formats import NAN, Values, bits_of, flushed, fused, values_of
from backpass.ptx.parse import width_of

# Modifiers without effect here: every result is already rounded to the nearest.
ROUNDING = {"rn", "approx", "full", "uni", "lo"}
COMPARISONS: dict[str, Callable[[Values, Values], Values]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


def is_float(type: str) -> bool:
    """Return whether a type is a floating-point type."""
    return type.startswith(("f", "bf", "tf"))


def compute(
    name: str, operands: list[np.ndarray], approximate: int | None = None
) -> tuple[np.ndarray, ...]:
    """Return the bits of the results of an instruction such as "add.s32", given the
    bits ``[threads]`` of its operands.

    ``approximate`` is the seed of the errors of approximate units; by default the units
    have no error. Raises Unsupported for an unknown instruction or modifier.
    """
    parts = name.split(".")
    with np.errstate(all="ignore"):
        if parts[0] in ("rcp", "rsqrt") and parts[1:] == ["approx", "ftz", "f64"]:
            return (_gross(parts[0], operands[0]),)
        if "cc" in parts or parts[0] in _CARRYING:
            return _carried(parts, operands)
        if parts[0] in _SPECIAL:
            return _SPECIAL[parts[0]](parts, operands)
        return (_simple(parts, operands, approximate),)


def _simple(
    parts: list[str], operands: list[np.ndarray], approximate: int | None = None
) -> np.ndarray:
    """Return the result of an instruction whose operands and result share a type."""
    operation, *modifiers, type = parts
    table = _OF_FLOATS if is_float(type) else _OF_INTEGERS
    function = table.get(operation)
    if function is None or len(operands) != _OPERANDS.get(operation, 2):
        raise _unknown(parts)
    known = ROUNDING | {"ftz", "NaN", "sat", *_DIRECTED} if is_float(type) else {"lo"}
    towards = next((x for x in modifiers if x in _DIRECTED), None)
    special = towards or "sat" in modifiers
    if (
        not {*modifiers} <= known
        or ("NaN" in modifiers and operation not in ("max", "min"))
        or (special and (operation not in _TERMS or type != "f32"))
    ):
        raise _unknown(parts)
    if "x2" in type:
        if width_of(type) != 32:
            raise _unknown(parts)
        parts = [operation, *modifiers, type[:-2]]
        halves = ([_half(x, i) for x in operands] for i in (0, 1))
        return _pair(*(_simple(parts, half, approximate) for half in halves))
    values = [values_of(x, type) for x in operands]
    if "ftz" in modifiers:
        values = [flushed(x) for x in values]
    if "NaN" in modifiers:
        function = _or_nan(function)
    if operation == "div" and "approx" in modifiers:
        function = _quick_quotient
    if operation == "fma" or towards:
        found = fused(*_TERMS[operation](*values), type, towards=towards)
    elif approximate is not None and {"approx", "full"} & {*modifiers}:
        exact = function(*(x.astype(np.float64) for x in values))
        found = moved(operation, type, exact, values, approximate)
    else:
        found = function(*values)
    found = flushed(found.astype(np.float32)) if "ftz" in modifiers else found
    found = _between_0_and_1(found) if "sat" in modifiers else found
    return bits_of(found, type)


def _between_0_and_1(x: Values) -> Values:
    """Return numbers with .sat: between +0 and 1, and 0 for NaN."""
    return (np.where(np.isnan(x), 0, np.clip(x, 0, 1)) + 0.0).astype(x.dtype)


def _wide(function: Callable[[Values], Values]) -> Callable[[Values], Values]:
    """Return the function computed in float64, so that only one rounding remains."""
    return lambda x: function(x.astype(np.float64))


def _largest(x: Values, y: Values) -> Values:
    """Return the larger of each pair: the number if the other operand is NaN, and the
    positive zero if the operands are zeros of different sign."""
    return np.where(x == y, np.where(np.signbit(x), y, x), np.fmax(x, y))


def _or_nan(function: Callable[[Values, Values], Values]) -> Callable[..., Values]:
    """Return a function that returns NaN if an operand is NaN."""
    return lambda x, y: np.where(np.isnan(x) | np.isnan(y), x + y, function(x, y))


def _quick_quotient(x: Values, y: Values) -> Values:
    """Return x / y, computed as x · (1/y): if |y| is above 2 to the power of 126, the
    reciprocal is 0."""
    reciprocal = np.copysign(np.zeros_like(y), y)
    return np.where(np.abs(y) > 2.0**126, x * reciprocal, x / y)


# Modifiers that round towards zero, down, and up.
_DIRECTED = ("rz", "rm", "rp")
# An instruction's result as a · b + c, which is rounded once.
_TERMS: dict[str, Callable[..., tuple[Values, Values, Values]]] = {
    "add": lambda a, b: (a, np.ones_like(a), b),
    "sub": lambda a, b: (a, np.ones_like(a), -b),
    "mul": lambda a, b: (a, b, -np.zeros_like(a)),  # x + −0 is x
    "fma": lambda a, b, c: (a, b, c),
}

_OF_FLOATS: dict[str, Callable[..., Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": fused,
    "max": _largest,
    "min": lambda x, y: -_largest(-x, -y),
    "neg": np.negative,
    "abs": np.abs,
    "ex2": _wide(np.exp2),
    "lg2": _wide(np.log2),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1 / np.sqrt(x)),
    "rcp": _wide(lambda x: 1 / x),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
}


# How many operands an instruction has, if not two.
_OPERANDS = {"fma": 3, "mad": 3, "sad": 3} | dict.fromkeys(
    ("neg", "abs", "not", "ex2", "lg2", "sqrt", "rsqrt", "rcp", "sin", "cos", "tanh"), 1
)


def _quotient(x: Values, y: Values) -> Values:
    """Return x / y rounded towards 0. The least integer divided by −1 is itself."""
    by = np.where(y == 0, 1, y).astype(x.dtype)
    found = x // by
    towards = (found < 0) & (found * by != x)
    return np.where(y == 0, -1, found + towards).astype(x.dtype)


def _remainder(x: Values, y: Values) -> Values:
    return np.where(y == 0, x, x - _quotient(x, y) * y).astype(x.dtype)


_OF_INTEGERS: dict[str, Callable[..., Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mad": lambda x, y, z: x * y + z,
    "div": _quotient,
    "rem": _remainder,
    "max": np.maximum,
    "min": np.minimum,
    "neg": lambda x: (0 - x.astype(x.dtype)).astype(x.dtype),
    "abs": np.abs,
    "sad": lambda x, y, z: np.where(x > y, x - y, y - x).astype(z.dtype) + z,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
}


def _logic(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """and, or, xor, and not, on bits or on predicates."""
    if parts[-1] != "pred":
        return (_simple(parts, operands),)
    a, *rest = (x.astype(bool) for x in operands)
    of = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
    return (of[parts[0]](a, *rest) if rest else ~a,)


def _product(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """mul and mad: the result is the lower half of the product, its upper half, or the
    whole product."""
    *modifiers, type = parts[1:]
    if is_float(type) or not {"wide", "hi"} & {*modifiers}:
        return (_simple(parts, operands),)
    width = width_of(type)
    if len(modifiers) > 1 or (width > 32 and "wide" in modifiers):
        raise _unknown(parts)
    a, b = (values_of(x, type) for x in operands[:2])
    if width > 32:
        upper = [(int(x) * int(y) >> 64) % 2**64 for x, y in zip(a, b, strict=True)]
        found = np.array(upper, np.uint64)
    else:  # 64 bits hold the product
        wide = "int64" if type[0] == "s" else "uint64"
        product = (a.astype(wide) * b.astype(wide)).view(np.uint64)
        product >>= np.uint64(width if "hi" in modifiers else 0)
        found = product.astype(f"uint{2 * width if 'wide' in modifiers else width}")
    return (found + operands[2] if len(operands) > 2 else found,)


_CARRYING = ("addc", "subc", "madc")


def _carried(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """add, sub, and mad of 32 bits with a carry. An instruction whose name ends in c
    takes a carry as its last operand; with .cc, the new carry is the second result."""
    operation, type = parts[0], parts[-1]
    if type not in ("u32", "s32") or not {*parts[1:-1]} <= {"cc", "lo", "hi"}:
        raise _unknown(parts)
    carry: np.ndarray | int = 0
    if operation in _CARRYING:
        *operands, last = operands
        carry = last.astype(np.int64)
    a, b, *c = (x.astype(np.int64) for x in operands)
    if operation in ("mad", "madc"):
        product = _product(["mul", "wide", type], operands[:2])[0]
        half = product >> np.uint64(32 if "hi" in parts else 0)
        total = (half & np.uint64(0xFFFFFFFF)).astype(np.int64) + c[0] + carry
    elif operation in ("sub", "subc"):
        total = a - b - carry
    else:
        total = a + b + carry
    found = (total & 0xFFFFFFFF).astype(np.uint32)
    return (found, total >> 32 != 0) if "cc" in parts else (found,)


def _shift(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """shl and shr. A shift by the width or more returns 0, or the sign bits."""
    type, (bits, by) = parts[-1], operands
    width = width_of(type)
    x, n = values_of(bits, type), np.minimum(by.astype(np.int64), width)
    last = np.minimum(n, width - 1).astype(x.dtype)
    if parts[0] == "shl":
        return (bits_of(np.where(n == width, 0, x << last), type),)
    beyond = np.where(x < 0, -1, 0) if type[0] == "s" else 0
    return (bits_of(np.where(n == width, beyond, x >> last), type),)


def _funnel(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """shf: concatenate two registers and shift them. A shift to the left returns the
    upper 32 bits, and a shift to the right the lower 32 bits."""
    way, mode = parts[1:3]
    lower, upper, by = (x.astype(np.uint64) for x in operands)
    by = by % np.uint64(32) if mode == "wrap" else np.minimum(by, np.uint64(32))
    both = upper << np.uint64(32) | lower
    shifted = (both << by) >> np.uint64(32) if way == "l" else both >> by
    return (shifted.astype(np.uint32),)


def _field(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """bfe: extract a bit field, given its position and length, and extend its sign."""
    type = parts[-1]
    numbers, (start, count) = (
        values_of(operands[0], type),
        (x & 0xFF for x in operands[1:]),
    )
    if width_of(type) > 32:
        fields = zip(numbers.tolist(), start.tolist(), count.tolist(), strict=True)
        found = [_one_field(*each, type) for each in fields]
        return (np.array(found, operands[0].dtype),)
    # 62 bits hold every number with its sign.
    n = np.minimum(count, 62).astype(np.int64)
    left = numbers.astype(np.int64) >> np.minimum(start, 63).astype(np.int64)
    field = left & ((1 << n) - 1)
    if type[0] == "s":
        field -= np.where(n > 0, field >> np.maximum(n - 1, 0) << n, 0)
    return (field.astype(operands[0].dtype),)


def _one_field(value: int, start: int, count: int, type: str) -> int:
    field = (value >> start) % 2**count  # Python's integers have their sign beyond
    if type[0] == "s" and count:
        field -= field >> (count - 1) << count
    return field % 2 ** width_of(type)


def _comparison(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """setp. If the comparison's name ends in u, a comparison with NaN is true."""
    _, how, *modifiers, type = parts
    if not {*modifiers} <= {"ftz"}:
        raise _unknown(parts)
    if "x2" in type:
        parts = [*parts[:-1], type[:-2]]
        return tuple(
            _comparison(parts, [_half(x, i) for x in operands])[0] for i in (0, 1)
        )
    a, b = (values_of(x, type) for x in operands[:2])
    if "ftz" in modifiers:
        a, b = flushed(a), flushed(b)
    if not is_float(type):
        if how not in COMPARISONS:
            raise _unknown(parts)
        return (COMPARISONS[how](a, b),)
    nan, ordered = np.isnan(a) | np.isnan(b), how.removesuffix("u")
    if how in ("num", "nan"):
        return (nan if how == "nan" else ~nan,)
    if ordered not in COMPARISONS or ordered in ("lo", "ls", "hi", "hs"):
        raise _unknown(parts)
    found = COMPARISONS[ordered](a, b)
    return (found & ~nan if how == ordered else found | nan,)


def _choice(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """selp: the first operand where the predicate is true, else the second."""
    a, b, chosen = operands
    return (np.where(chosen.astype(bool), a, b),)


def _conversion(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """cvt: convert between integers and floating-point numbers of all widths."""
    *modifiers, to, of = parts[1:]
    if is_eight_bits(to) or is_eight_bits(of):
        return (_of_eight_bits(modifiers, to, of, operands),)
    if modifiers == ["rna"] and to == "tf32":  # to the nearest, ties away from 0
        finite = operands[0] & np.uint32(0x7F800000) != np.uint32(0x7F800000)
        half = np.where(finite, np.uint32(0x1000), np.uint32(0))
        found = (operands[0] + half) & np.uint32(0xFFFFE000)
        return (np.where(np.isnan(values_of(operands[0], of)), NAN["f32"], found),)
    known = {"rn", "rz", "rzi", "rni", "rmi", "rpi", "sat", "ftz"}
    if not {*modifiers} <= known or "tf32" in (to, of):
        raise _unknown(parts)
    if "x2" in to:
        upper, lower = (
            _conversion(["cvt", *modifiers, to[:-2], of], [x])[0] for x in operands
        )
        return (_pair(lower, upper),)
    x = values_of(operands[0], of)
    if "ftz" in modifiers and of == "f32":
        x = flushed(x)
    ways = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor, "rpi": np.ceil}
    way = next((ways[m] for m in modifiers if m in ways), None)
    if is_float(to):
        x = way(x) if way is not None and is_float(of) else x
        shorter = is_float(of) and width_of(to) < width_of(of)
        if "rz" in modifiers and not shorter:
            raise _unknown(parts)
        x = _between_0_and_1(x) if "sat" in modifiers else x
        if not is_float(of) and width_of(of) > 32 and to != "f64":
            x = np.array([_to_odd(int(v)) for v in x], np.float64)
        found = bits_of(x.astype(np.float64) if not is_float(of) else x, to)
        if "rz" in modifiers:
            # Apart from the sign, the bits of the next number towards 0 are one less.
            found = found - (np.abs(values_of(found, to)) > np.abs(x)).astype(
                found.dtype
            )
        if "ftz" in modifiers and to == "f32":
            found = bits_of(flushed(values_of(found, to)), to)
        return (found,)
    width, highest = width_of(to), 2 ** (width_of(to) - 1)
    least, most = (-highest, highest - 1) if to[0] == "s" else (0, 2 * highest - 1)
    if not is_float(of):
        if "sat" in modifiers:
            clipped = [max(least, min(most, int(v))) % 2**width for v in x]
            return (np.array(clipped, f"uint{width}"),)
        return (bits_of(x, to),)
    if way is None:
        raise _unknown(parts)
    # NaN becomes 0, or, if the source is f64 or the target has 64 bits, the integer
    # with only its highest bit set.
    nan = highest if of == "f64" or width == 64 else 0
    whole = way(x)
    if width < 64:
        clipped = np.clip(whole.astype(np.float64), least, most)
        numbers = np.where(np.isnan(whole), nan, clipped).astype(np.int64)
        return (numbers.astype(f"uint{width}"),)
    exact = [
        nan if np.isnan(v) else max(least, min(most, v if np.isinf(v) else int(v)))
        for v in whole
    ]
    return (np.array([int(v) % 2**width for v in exact], np.uint64),)


def _of_eight_bits(
    modifiers: list[str], to: str, of: str, operands: list[np.ndarray]
) -> np.ndarray:
    """cvt between a pair of numbers of eight bits, and a pair of longer ones. Two
    operands are the upper and the lower number."""
    modifiers_known(modifiers, to)
    if "x2" in of:
        half = width_of(of) // 2
        kind = f"uint{half}"
        parts = [
            (operands[0] >> operands[0].dtype.type(by)).astype(kind) for by in (half, 0)
        ]
        operands, of = parts, of[:-2]
    upper, lower = (values_of(x, of) for x in operands)
    if is_eight_bits(to):
        pair = [saturated(x, to[:-2]).astype(np.uint16) for x in (upper, lower)]
        return pair[0] << np.uint16(8) | pair[1]
    return _pair(bits_of(lower, to[:-2]), bits_of(upper, to[:-2]))


def _to_odd(n: int) -> float:
    """Return an integer as float64, rounded to odd: a second rounding to the nearest
    then returns the integer rounded once."""
    found = float(n)
    if int(found) == n:
        return found
    bits = np.float64(found).view(np.int64)
    if bits & 1:
        return found
    up = (int(found) < n) == (found > 0)
    return float((bits + (1 if up else -1)).view(np.float64))


def _gross(operation: str, operand: np.ndarray) -> np.ndarray:
    """The approximate rcp and rsqrt of f64, which read and write only the upper 32
    bits."""
    upper = np.uint64(0xFFFFFFFF00000000)
    x = values_of(operand & upper, "f64")
    x = np.where(np.abs(x) < np.finfo(np.float64).tiny, np.copysign(0.0, x), x)
    found = _OF_FLOATS[operation](x)
    found = np.where(
        np.abs(found) < np.finfo(np.float64).tiny, np.copysign(0.0, found), found
    )
    return bits_of(found, "f64") & upper


def _permuted(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """prmt: each byte of the result is one of the eight bytes of two registers, or
    eight copies of that byte's sign bit."""
    if parts[1:] != ["b32"]:
        raise _unknown(parts)
    a, b, chosen = (x.astype(np.uint64) for x in operands)
    both, found = a | b << np.uint64(32), np.zeros_like(a)
    for i in range(4):
        selector = chosen >> np.uint64(4 * i) & np.uint64(0xF)
        byte = both >> np.uint64(8) * (selector & np.uint64(7)) & np.uint64(0xFF)
        sign = np.where(byte & np.uint64(0x80), np.uint64(0xFF), np.uint64(0))
        byte = np.where(selector & np.uint64(8), sign, byte)
        found |= byte << np.uint64(8 * i)
    return (found.astype(np.uint32),)


def _copysign(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """copysign: the second operand with the sign of the first."""
    sign, x = operands
    first = x.dtype.type(1 << (width_of(parts[-1]) - 1))
    return ((sign & first) | (x & ~first),)


def _counts(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """popc and clz: the number of bits that are set, and of leading zeros."""
    width = width_of(parts[-1])
    if parts[0] == "popc":
        return (np.bitwise_count(operands[0]).astype(np.uint32),)
    found = [width - x.bit_length() for x in operands[0].tolist()]
    return (np.array(found, np.uint32),)


def _highest(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """bfind: the place of the highest bit that is set, or, in a negative number, that
    is not; all bits if there is none. With .shiftamt, how far to shift it to the top.
    """
    *modifiers, type = parts[1:]
    if modifiers not in ([], ["shiftamt"]):
        raise _unknown(parts)
    numbers = (int(x) for x in values_of(operands[0], type))
    lengths = [(~x if x < 0 else x).bit_length() for x in numbers]
    width = width_of(type)
    places = [width - n if modifiers else n - 1 for n in lengths]
    found = [
        place if n else 2**32 - 1 for place, n in zip(places, lengths, strict=True)
    ]
    return (np.array(found, np.uint32),)


def _reversed(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """brev: the bits in reverse order."""
    (x,) = operands
    as_bytes = x.byteswap().view(np.uint8)
    found = np.packbits(np.unpackbits(as_bytes).reshape(-1, 8)[:, ::-1], axis=1)
    return (found.reshape(-1).view(x.dtype),)


def _looked_up(parts: list[str], operands: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    """lop3: any function of three bits a, b, and c. Its value is bit 4a + 2b + c of the
    last operand."""
    if parts[1:] != ["b32"]:
        raise _unknown(parts)
    *bits, table = operands
    found = np.zeros_like(bits[0])
    for case in range(8):
        chosen = [x if case >> (2 - at) & 1 else ~x for at, x in enumerate(bits)]
        listed = (table >> table.dtype.type(case) & table.dtype.type(1)).astype(bool)
        found |= np.where(listed, chosen[0] & chosen[1] & chosen[2], 0).astype(
            np.uint32
        )
    return (found,)


_SPECIAL: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    **dict.fromkeys(("and", "or", "xor", "not"), _logic),
    **dict.fromkeys(("mul", "mad"), _product),
    **dict.fromkeys(("shl", "shr"), _shift),
    **dict.fromkeys(("popc", "clz"), _counts),
    "bfe": _field,
    "bfind": _highest,
    "setp": _comparison,
    "selp": _choice,
    "cvt": _conversion,
    "brev": _reversed,
    "copysign": _copysign,
    "lop3": _looked_up,
    "shf": _funnel,
    "prmt": _permuted,
}


# The names of all instructions in this module.
OPERATIONS = {*_OF_FLOATS, *_OF_INTEGERS, *_CARRYING, *_SPECIAL}


def _half(x: np.ndarray, i: int) -> np.ndarray:
    """Return the lower half (i = 0) or the upper half (i = 1) of each 32 bits."""
    return (x >> np.uint32(16 * i)).astype(np.uint16)


def _pair(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    return lower.astype(np.uint32) | (upper.astype(np.uint32) << np.uint32(16))


def _unknown(parts: list[str]) -> Unsupported:
    return Unsupported(f"ptx: the instruction {'.'.join(parts)} is not supported")
