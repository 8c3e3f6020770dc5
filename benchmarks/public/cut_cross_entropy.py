"""Cut Cross-Entropy: a loss without its logits in memory."""

from __future__ import annotations

import torch.nn.functional as F

from public import Case, Draw, Project

CUT = Project("cut_cross_entropy", "cut-cross-entropy")


@CUT.program("linear_cross_entropy:linear_cross_entropy")
def linear_cross_entropy(it: Draw) -> Case:
    call = CUT.get("linear_cross_entropy:linear_cross_entropy")
    return it.case(
        lambda x, w, target: call(x, w, target, impl="cce", filter_eps=None),
        lambda x, w, target: F.cross_entropy(x @ w.T, target),
        it.normal(20, 32),
        it.normal(150, 32, scale=0.3),
        it.below(150, 20),
    )


@CUT.program("linear_cross_entropy:linear_cross_entropy")
def linear_cross_entropy_capped(it: Draw) -> Case:
    call = CUT.get("linear_cross_entropy:linear_cross_entropy")
    return it.case(
        lambda x, w, target: call(x, w, target, impl="cce", softcap=5.0, filter_eps=None),
        lambda x, w, target: F.cross_entropy(5 * (x @ w.T / 5).tanh(), target),
        it.normal(20, 32),
        it.normal(150, 32, scale=0.3),
        it.below(150, 20),
    )
