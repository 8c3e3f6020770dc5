"""Kernels of projects of which a few programs are run: FlagGems, xFormers, MegaBlocks, bitsandbytes, and torchao."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from public import Case, Draw, Project

GEMS = Project("flag_gems", "flag-gems")
XFORMERS = Project(
    "xformers",
    "xformers",
    bare=("xformers", "xformers.ops", "xformers.ops._triton"),
    facts={"_is_triton_available": lambda: True},
)
MEGABLOCKS = Project("megablocks", "megablocks", bare=("megablocks", "megablocks.backend"))
BITSANDBYTES = Project(
    "bitsandbytes",
    "bitsandbytes",
    bare=("bitsandbytes", "bitsandbytes.backends", "bitsandbytes.backends.triton"),
)
TORCHAO = Project(
    "torchao",
    "torchao",
    bare=("torchao", "torchao.prototype", "torchao.prototype.quantized_training", "torchao.prototype.hqq"),
)


@GEMS.program("ops.softmax:softmax")
def softmax(it: Draw) -> Case:
    call = GEMS.get("ops.softmax:softmax")
    return it.case(lambda x: call(x, -1), lambda x: x.softmax(-1), it.fixed(7, 70))


@GEMS.program("ops.layernorm:layer_norm")
def layer_norm(it: Draw) -> Case:
    call = GEMS.get("ops.layernorm:layer_norm")
    return it.case(
        lambda x, w, b: call(x, (70,), w, b)[0],
        lambda x, w, b: F.layer_norm(x, (70,), w, b),
        it.fixed(7, 70, mean=1.0),
        it.fixed(70),
        it.fixed(70),
    )


@GEMS.program("ops.gelu:gelu")
def gelu(it: Draw) -> Case:
    return it.case(GEMS.get("ops.gelu:gelu"), lambda x: F.gelu(x), it.fixed(7, 70))


@GEMS.program("ops.bmm:bmm")
def bmm(it: Draw) -> Case:
    return it.case(GEMS.get("ops.bmm:bmm"), lambda x, y: x @ y, it.fixed(2, 20, 24), it.fixed(2, 24, 28))


@GEMS.program("ops.cumsum:cumsum")
def cumsum(it: Draw) -> Case:
    call = GEMS.get("ops.cumsum:cumsum")
    return it.case(lambda x: call(x, 1), lambda x: x.cumsum(1), it.fixed(5, 300))


@GEMS.program("ops.argmax:argmax")
def argmax(it: Draw) -> Case:
    call = GEMS.get("ops.argmax:argmax")
    return it.case(lambda x: call(x, 1), lambda x: x.argmax(1), it.fixed(7, 70))


@GEMS.program("ops.var_mean:var_mean")
def var_mean(it: Draw) -> Case:
    call = GEMS.get("ops.var_mean:var_mean")
    return it.case(lambda x: call(x, [1]), lambda x: torch.var_mean(x, 1), it.fixed(7, 70, mean=1.0))


@GEMS.program("ops.topk:topk")
def topk(it: Draw) -> Case:
    call = GEMS.get("ops.topk:topk")
    return it.case(
        lambda x: tuple(call(x, 5)),
        lambda x: tuple(x.topk(5)),
        it.of(torch.randperm(140).view(2, 70) / 8.0, False),
    )


@GEMS.program("ops.sort:sort", "float32")
def sort(it: Draw) -> Case:
    call = GEMS.get("ops.sort:sort")
    return it.case(lambda x: tuple(call(x)), lambda x: tuple(x.sort()), it.fixed(2, 70))


@XFORMERS.program("ops._triton.k_index_select_cat:index_select_cat_fwd")
def index_select(it: Draw) -> Case:
    call = XFORMERS.get("ops._triton.k_index_select_cat:index_select_cat_fwd")
    return it.case(
        lambda x, at: call(torch.empty(len(at), x.shape[1], dtype=x.dtype), x, at),
        lambda x, at: x[at],
        it.fixed(11, 38),
        it.of(torch.tensor([3, 0, 7, 10, 2])),
    )


@XFORMERS.program("ops._triton.k_scaled_index_add:scaled_index_add_fwd")
def scaled_index_add(it: Draw) -> Case:
    call = XFORMERS.get("ops._triton.k_scaled_index_add:scaled_index_add_fwd")

    def called(x, at, source, scaling):
        call(x, at, source, scaling, 0.5)
        return x

    return it.case(
        called,
        lambda x, at, source, scaling: x.index_add(0, at, 0.5 * source * scaling),
        it.fixed(7, 3, 38),
        it.of(torch.tensor([3, 0, 6])),
        it.fixed(3, 3, 38),
        it.fixed(38),
    )


@XFORMERS.program("ops.rmsnorm:rms_norm")
def rms_norm(it: Draw) -> Case:
    call = XFORMERS.get("ops.rmsnorm:rms_norm")
    return it.case(
        lambda x, w: call(x, w, 1e-6),
        lambda x, w: F.rms_norm(x, (70,), w, 1e-6),
        it.fixed(2, 5, 70),
        it.fixed(70),
    )


@XFORMERS.program("ops._triton.tiled_matmul_kernels:_launch_triton_matmul", "float16", "bfloat16")
def tiled_matmul(it: Draw) -> Case:
    call = XFORMERS.get("ops._triton.tiled_matmul_kernels:_launch_triton_matmul")

    def called(a, b):
        y = torch.empty(len(a), b.shape[1], dtype=a.dtype)
        call([[a]], [[b]], [[y]], [len(a)], [b.shape[1]], [len(b)])
        return y

    return it.case(called, torch.matmul, it.fixed(40, 64), it.fixed(64, 48))


@MEGABLOCKS.program("backend.kernels:padded_gather")
def padded_gather(it: Draw) -> Case:
    call = MEGABLOCKS.get("backend.kernels:padded_gather")
    of_expert = torch.tensor([1, 0, 2, 1, 0, 1])
    bins, at = of_expert.sort(stable=True)
    ends, padded = torch.tensor([2, 5, 6]), torch.tensor([4, 8, 12])
    rows = torch.tensor([0, 1, 4, 5, 6, 8])

    def reference(x, weights):
        return torch.zeros(12, x.shape[1], dtype=x.dtype).index_copy(0, rows, x[at] * weights[at, None])

    def called(x, weights):
        return call(x, at.int(), bins.int(), weights, ends.int(), padded.int(), 1)

    return it.case(called, reference, it.fixed(6, 64), it.fixed(6))


@BITSANDBYTES.program("backends.triton.kernels_8bit_quant:quantize_blockwise_triton")
def quantise_8_bits(it: Draw) -> Case:
    quantise = BITSANDBYTES.get("backends.triton.kernels_8bit_quant:quantize_blockwise_triton")
    restore = BITSANDBYTES.get("backends.triton.kernels_8bit_quant:dequant_8bit_blockwise")
    code = torch.linspace(-1, 1, 255)
    code = torch.cat([code, code[-1:] + 1e-3])

    def called(x):
        y, largest = quantise(x, code, 64)
        return restore(y, largest.float(), code, 64, x.dtype), largest

    def reference(x):
        rows = x.double().unflatten(-1, (-1, 64))
        largest = rows.abs().amax(-1, keepdim=True)
        at = (rows / largest).unsqueeze(-1).sub(code.double()).abs().argmin(-1)
        return (code.double()[at] * largest).flatten(-2).to(x.dtype), largest.flatten().to(x.dtype)

    return it.case(called, reference, it.fixed(256))


@BITSANDBYTES.program("backends.triton.ops:quantize_4bit")
def quantise_4_bits(it: Draw) -> Case:
    quantise, restore = (
        BITSANDBYTES.get(f"backends.triton.ops:{name}_4bit") for name in ("quantize", "dequantize")
    )
    table = torch.tensor(
        [0, 0.0052083333, 0.6666666667, 1, 0.3333333333, 0.5, 0.1666666667, 0.25], dtype=torch.float64
    )
    table = torch.cat([table, -table])

    def called(x):
        packed, largest = quantise(x, 64, "fp4", torch.uint8)
        return restore(packed, largest, 64, "fp4", x.shape, x.dtype)

    def reference(x):
        rows = x.double().unflatten(-1, (-1, 64))
        largest = rows.abs().amax(-1, keepdim=True)
        at = (rows / largest).unsqueeze(-1).sub(table).abs().argmin(-1)
        return (table[at] * largest).flatten(-2).to(x.dtype)

    return it.case(called, reference, it.fixed(256))


@BITSANDBYTES.program("backends.triton.kernels_optim:optimizer_update_32bit_impl")
def adam(it: Draw) -> Case:
    call = BITSANDBYTES.get("backends.triton.kernels_optim:optimizer_update_32bit_impl")

    def called(p, g, m, v):
        call("adam", g, p, m, v, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.1, 3, 0.01, 1.0)
        return p, m, v

    def reference(p, g, m, v):
        g = g.to(m.dtype)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        size = 0.01 * (1 - 0.99**3) ** 0.5 / (1 - 0.9**3)
        step = size * m / (v.sqrt() + 1e-8 * (1 - 0.99**3) ** 0.5)
        return (p.to(m.dtype) * (1 - 0.01 * 0.1) - step).to(p.dtype), m, v

    wide = torch.float32
    return it.case(
        called,
        reference,
        it.fixed(300),
        it.fixed(300),
        it.of(it.normal(300).value, False, wide),
        it.of(it.normal(300).value.square(), False, wide),
    )


@TORCHAO.program("prototype.quantized_training.int8_mm:scaled_int8_mm_cuda")
def int8_product(it: Draw) -> Case:
    call = TORCHAO.get("prototype.quantized_training.int8_mm:scaled_int8_mm_cuda")
    a, b = (
        torch.randint(-128, 128, shape, generator=it.random).to(torch.int8) for shape in ((40, 64), (64, 48))
    )

    def reference(rows, columns):
        product = (a.long() @ b.long()).to(rows.dtype)
        return product * rows[:, None] * columns

    return it.case(lambda rows, columns: call(a, b, rows, columns), reference, it.fixed(40), it.fixed(48))


@TORCHAO.program("prototype.blockwise_fp8_inference.kernels:fp8_blockwise_act_quant", capability=(8, 9))
def quantise_to_fp8(it: Draw) -> Case:
    call = TORCHAO.get("prototype.blockwise_fp8_inference.kernels:fp8_blockwise_act_quant")

    def called(x):
        y, scale = call(x)
        return y.float().to(x.dtype), scale

    def reference(x):
        scale = (x.double().abs().amax(-1, keepdim=True) / 448).float()
        return (x.float() / scale).to(torch.float8_e4m3fn).float().to(x.dtype), scale

    return it.case(called, reference, it.fixed(3, 128))


@TORCHAO.program(
    "quantization.quantize_.workflows.float8.kernels:_blockwise_fp8_gemm", "float32", capability=(8, 9)
)
def fp8_product(it: Draw) -> Case:
    call = TORCHAO.get("quantization.quantize_.workflows.float8.kernels:_blockwise_fp8_gemm")
    a, b = (it.normal(*shape).value.to(torch.float8_e4m3fn) for shape in ((20, 128), (128, 128)))

    def reference(rows, block):
        product = (a.to(rows.dtype) * rows) @ (b.to(rows.dtype) * block).T
        return product.to(torch.bfloat16)

    def called(rows, block):
        return call(a, rows, b, block).float()

    return it.case(
        called,
        reference,
        it.of(it.normal(20, 1).value.abs(), False),
        it.of(it.normal(1, 1).value.abs(), False),
    )


def _mixed_product(it: Draw, n: int) -> Case:
    """A product with 4-bit weights ``[n, 64]``, in groups of 64."""
    call = TORCHAO.get("prototype.hqq.mixed_mm:triton_mixed_mm")
    pack = TORCHAO.get("prototype.hqq.mixed_mm:pack_2xint4")
    w = torch.randint(0, 16, (n, 64), generator=it.random).to(torch.uint8)

    def reference(x, scales, zeros):
        return x @ ((w.to(x.dtype) - zeros) * scales).T

    return it.case(
        lambda x, scales, zeros: call(x, pack(w.T), scales.T, zeros.T, group_size=64),
        reference,
        it.fixed(16, 64),
        it.fixed(n, 1),
        it.fixed(n, 1),
    )


@TORCHAO.program("prototype.hqq.mixed_mm:triton_mixed_mm", "float16")
def mixed_product(it: Draw) -> Case:
    return _mixed_product(it, 256)


@TORCHAO.program("prototype.hqq.mixed_mm:triton_mixed_mm", "float16")
def mixed_product_of_48_columns(it: Draw) -> Case:
    return _mixed_product(it, 48)
