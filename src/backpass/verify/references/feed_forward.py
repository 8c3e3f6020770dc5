"""The block as models write it, from PyTorch's ``linear`` and activations."""

import torch


def operator(x, w_up, w_down, b_up, b_down, w_gate, b_gate, *, activation="gelu"):
    functional = torch.nn.functional
    u = functional.linear(x, w_up.mT, b_up)
    if activation == "swiglu":
        a = functional.silu(functional.linear(x, w_gate.mT, b_gate)) * u
    elif activation == "relu":
        a = functional.relu(u)
    else:
        a = functional.gelu(
            u, approximate="tanh" if activation == "gelu_tanh" else "none"
        )
    return functional.linear(a, w_down.mT, b_down)
