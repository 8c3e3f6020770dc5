"""Random programs: what is accused is what other definitions of a race and of an open order find."""

import random
from itertools import permutations, product

import numpy as np
import pytest

from backpass import ptx
from tests.ptx.test_faults import HEAD, TAIL

BLOCKS, WORDS = 3, 2
START = [3, 4]


def of_blocks(rng):
    """Draw a program: accesses by the first threads of blocks, each a kind, a word, a value, and the blocks."""
    kinds = ["ld", "ld", "st", "st", "red"]
    return [
        (rng.choice(kinds), rng.randrange(WORDS), rng.choice([1, 2, 5]), rng.choice([{0}, {1}, {2}, {0, 1}, {0, 1, 2}]))
        for _ in range(rng.randint(2, 5))
    ]  # fmt: skip


def written(program):
    """The program in PTX; each block stores what it has read in y."""
    lines = ["setp.eq.s32 %p2, %r1, 0; mul.wide.u32 %rd7, %r2, 32; add.s64 %rd7, %rd7, %rd2;"]
    for at, (kind, word, value, blocks) in enumerate(program):
        mask, address = sum(1 << block for block in blocks), f"[%rd1+{4 * word}]"
        chosen = f"shr.u32 %r6, %r6, %r2; and.b32 %r6, %r6, 1; setp.ne.s32 %p3, %r6, 0; mov.b32 %r7, {value};"
        access = {
            "ld": f"@%p3 ld.global.b32 %r5, {address}; @%p3 st.global.b32 [%rd7+{4 * at}], %r5;",
            "st": f"@%p3 st.global.b32 {address}, %r7;",
            "red": f"@%p3 red.global.gpu.relaxed.add.u32 {address}, %r7;",
        }[kind]
        lines.append(f"mov.b32 %r6, {mask}; {chosen} and.pred %p3, %p3, %p2; {access}")
    return HEAD.format(threads=32) + "\n".join(lines) + TAIL


def results(program):
    """What memory and the reads may be: of all orders of the blocks, and of 300 in which they alternate."""
    rng, steps = random.Random(0), len(program)
    orders = [[block for block in order for _ in range(steps)] for order in permutations(range(BLOCKS))]
    for _ in range(300):
        order = [block for block in range(BLOCKS) for _ in range(steps)]
        rng.shuffle(order)
        orders.append(order)
    found = set()
    for order in orders:
        memory, read, place = [*START], {}, [0] * BLOCKS
        for block in order:
            at = place[block]
            place[block] += 1
            kind, word, value, blocks = program[at]
            if block in blocks:
                if kind == "ld":
                    read[block, at] = memory[word]
                else:
                    memory[word] = value if kind == "st" else memory[word] + value
        found.add((*memory, *sorted(read.items())))
    return found


@pytest.mark.parametrize("seed", range(80))
def test_a_result_that_depends_on_the_order_of_blocks_is_never_missed(seed):
    program = of_blocks(random.Random(seed))
    x, y = np.array(START, np.uint32), np.zeros(64, np.uint32)
    arguments = {"x": ptx.Tensor(x.view(np.uint8)), "y": ptx.Tensor(y.view(np.uint8))}
    try:
        ptx.run(ptx.parse(written(program)), arguments, blocks=BLOCKS)
    except ptx.Order:
        # Accused with one result are only programs in which blocks write a word that others access.
        assert any(
            (kind, other) != ("ld", "ld") and word == place and len(blocks | more) > 1
            for (kind, word, _, blocks), (other, place, _, more) in product(program, program)
        )
    else:
        assert len(results(program)) == 1


MEETINGS = ("bar.sync 0", "bar.warp.sync -1", "shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1")


def of_threads(rng):
    """Draw a program of one block: barriers, exchanges, and accesses to shared memory. Thread t accesses the word of number
    (t >> shift ^ mix) & mask, if t is at least ``first``, and writes t or a constant; what "ld" reads is used."""
    found = []
    for _ in range(rng.randint(2, 6)):
        kind = rng.choice(["ld", "st", "ld", "st", "red", "unused", *MEETINGS])
        place = rng.choice([0, 0, 1, 5, 6]), rng.choice([0, 1, 32, 33]), rng.choice([63, 31, 3, 0])
        found.append((kind, place, rng.choice([0, 0, 32, 63]), rng.choice([None, 0, 1])))
    return found


def shared_text(program):
    lines = ["mov.b32 %r5, 0; st.shared.b32 [%r4], %r5; bar.sync 0;"]
    for kind, (shift, mix, mask), first, value in program:
        if kind in MEETINGS:
            lines.append(f"{kind};")
            continue
        lines.append(f"shr.u32 %r6, %r1, {shift}; xor.b32 %r6, %r6, {mix}; and.b32 %r6, %r6, {mask};")
        lines.append(f"shl.b32 %r6, %r6, 2; setp.ge.u32 %p2, %r1, {first};")
        lines.append("mov.u32 %r7, %r1;" if value is None else f"mov.u32 %r7, {value};")
        lines.append({
            "ld": "mov.b32 %r8, 0; @%p2 ld.shared.b32 %r8, [%r6]; setp.eq.s32 %p3, %r8, 0; @%p3 st.global.b32 [%rd5], %r1;",
            "unused": "@%p2 ld.shared.b32 %r8, [%r6];", "st": "@%p2 st.shared.b32 [%r6], %r7;",
            "red": "@%p2 red.shared.relaxed.cta.add.u32 [%r6], 1;",
        }[kind])  # fmt: skip
    return HEAD.format(threads=64) + "\n".join(lines) + TAIL


def conflicts(program):
    """How two accesses of a word by two threads conflict that no barrier separates, nor an exchange in a warp that wrote
    after it read: "race", or "equal" if both write the same, or "open" if they write different values in one instruction."""
    events, times = {}, dict.fromkeys(MEETINGS, 0)
    for at, (kind, (shift, mix, mask), first, value) in enumerate(program):
        if kind in MEETINGS:
            times[kind] += 1
            continue
        for thread in range(first, 64):
            word = (thread >> shift ^ mix) & mask
            wrote = thread if value is None else value
            events.setdefault(word, []).append((at, thread, kind, wrote, *times.values()))
    found = set()
    for own in events.values():
        for a, b in product(own, own):
            if a[0] > b[0] or a[1] == b[1] or a[4] != b[4]:
                continue
            if a[1] // 32 == b[1] // 32 and (a[5] != b[5] or (a[2] == "ld" and a[6] != b[6])):
                continue
            kinds = {a[2], b[2]}
            if "unused" in kinds:
                continue
            if kinds == {"st"} and (a[3] == b[3] or a[0] == b[0]):
                found.add("equal" if a[3] == b[3] else "open")
            elif kinds not in ({"ld"}, {"red"}):
                found.add("race")
    return found


@pytest.mark.parametrize("seed", range(160))
def test_a_race_is_neither_missed_nor_invented(seed):
    program = of_threads(random.Random(seed))
    expected, y = conflicts(program), ptx.Tensor(np.zeros(256, np.uint8))
    try:
        report = ptx.run(ptx.parse(shared_text(program)), {"x": y, "y": y}, blocks=1, shared=256)
    except ptx.Race:
        assert "race" in expected
    else:
        assert "race" not in expected and bool(report.unsettled) == ("open" in expected)
