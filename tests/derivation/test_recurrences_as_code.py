"""Derivations of recurrences, each with the code that its last lines give: `check` accepts it, and rejects it with one mistake."""

from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import check

from .judging import kinds
from .test_sequences import DELTA_RULE, LSTM, RNN


def sigmoid(t):
    return 1 / (1 + np.exp(-t))


def rnn(slip=False):
    def forward(x, h0, W, U):
        h = [h0]
        for row in x:
            h.append(np.tanh(W @ h[-1] + U @ row))
        return np.stack(h[1:]), (x, W, U, np.stack(h))

    def backward(g, saved):
        x, W, U, h = saved
        dx, dW, dU, dh = np.zeros_like(x), np.zeros_like(W), np.zeros_like(U), np.zeros_like(h[0])
        for t in reversed(range(len(x))):
            D = 1 - h[t + 1] * h[t + 1]
            moved = D * (g[t] + dh)
            dW, dU = dW + np.outer(moved, h[t]), dU + np.outer(moved, x[t])
            dx[t], dh = U.T @ moved, (W if slip else W.T) @ moved
        return dx, dh, dW, dU

    return SimpleNamespace(forward=forward, backward=backward)


def delta_rule(slip=False):
    def forward(k, q, v, beta, alpha, S0):
        S = [S0]
        for t in range(len(k)):
            e = v[t] - alpha[t] * S[-1] @ k[t]
            S.append(alpha[t] * S[-1] + beta[t] * np.outer(e, k[t]))
        o = np.stack([S[t + 1] @ q[t] for t in range(len(k))])
        return o, (k, q, v, beta, alpha, np.stack(S))

    def backward(g, saved):
        k, q, v, beta, alpha, S = saved
        dk, dq, dv, dbeta, dalpha = (np.zeros_like(one) for one in (k, q, v, beta, alpha))
        dS = np.zeros_like(S[0])
        for t in reversed(range(len(k))):
            e = v[t] - alpha[t] * S[t] @ k[t]
            dS = dS + np.outer(g[t], q[t])
            dq[t], dv[t], dbeta[t] = S[t + 1].T @ g[t], beta[t] * dS @ k[t], e @ dS @ k[t]
            dk[t] = beta[t] * dS.T @ e - (0 if slip else alpha[t] * beta[t] * S[t].T @ dS @ k[t])
            forgotten = dS - beta[t] * np.outer(dS @ k[t], k[t])
            dalpha[t], dS = np.sum(S[t] * forgotten), alpha[t] * forgotten
        return dk, dq, dv, dbeta, dalpha, dS

    return SimpleNamespace(forward=forward, backward=backward)


def lstm(slip=False):
    def forward(a, b, x, w, u):
        h, c, states = np.zeros_like(w), np.zeros_like(w), []
        for t in range(len(a)):
            i, f = sigmoid(a[t] + w * h), sigmoid(b[t] + u * h)
            before, c = (h, c), f * c + i * x[t]
            h = np.tanh(c)
            states.append((i, f, *before, h))
        return np.stack([one[-1] for one in states]), (x, w, u, states)

    def backward(g, saved):
        x, w, u, states = saved
        da, db, dx = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
        dw, du, dh, dc = (np.zeros_like(w) for _ in range(4))
        for t in reversed(range(len(x))):
            i, f, h_before, c_before, h = states[t]
            dc = dc + (1 if slip else 1 - h * h) * (g[t] + dh)
            da[t], db[t], dx[t] = i * (1 - i) * x[t] * dc, f * (1 - f) * c_before * dc, i * dc
            dw, du = dw + h_before * da[t], du + h_before * db[t]
            dh, dc = w * da[t] + u * db[t], f * dc
        return da, db, dx, dw, du

    return SimpleNamespace(forward=forward, backward=backward)


GAIN = (
    r"""
    loss L; layout denominator
    given P \in \mathbb{R}^{n \times n}, R, G \in \mathbb{R}^{m \times m}, H \in \mathbb{R}^{m \times n}
    let S = H P H^\top + R
    let L = \operatorname{tr}(G^\top S^{-1})
    """,
    [
        r"\frac{\partial L}{\partial S} = - S^{-\top} G S^{-\top}",
        r"\frac{\partial L}{\partial R} = \frac{\partial L}{\partial S}",
        r"\frac{\partial L}{\partial P} = H^\top \frac{\partial L}{\partial S} H",
        r"\frac{\partial L}{\partial H} = \frac{\partial L}{\partial S} H P^\top + \left( \frac{\partial L}{\partial S} \right)^\top H P",
    ],
    [
        r"\frac{\partial L}{\partial S} = - S^{-1} G S^{-1}",
        r"\frac{\partial L}{\partial P} = H \frac{\partial L}{\partial S} H^\top",
        r"\frac{\partial L}{\partial H} = 2 \frac{\partial L}{\partial S} H P",
    ],
)


def gain(slip=False):
    """The gain K = P Hᵀ S⁻¹ of a Kalman filter."""

    def forward(P, R, H):
        inverse = np.linalg.inv(H @ P @ H.T + R)
        return P @ H.T @ inverse, (P, H, inverse)

    def backward(dK, saved):
        P, H, inverse = saved
        G = H @ P.T @ dK  # the gradient of S⁻¹
        dS = -(inverse if slip else inverse.T) @ G @ inverse.T
        through = dK @ inverse.T  # that of P Hᵀ
        return through @ H + H.T @ dS @ H, dS, through.T @ P + dS @ H @ P.T + dS.T @ H @ P

    return SimpleNamespace(forward=forward, backward=backward)


SINKHORN = (
    r"""
    loss L
    given K \in \mathbb{R}^{n \times m}, a, s \in \mathbb{R}^n, v \in \mathbb{R}^m
    let r_i = \sum_j K_{ij} v_j
    let u_i = \frac{a_i}{r_i}
    let L = \sum_i s_i u_i
    """,
    [
        r"\frac{\partial L}{\partial a_i} = \frac{s_i}{r_i}",
        r"\frac{\partial L}{\partial r_i} = -\frac{s_i u_i}{r_i}",
        r"\frac{\partial L}{\partial K_{ij}} = \frac{\partial L}{\partial r_i} v_j",
        r"\frac{\partial L}{\partial v_j} = \sum_i K_{ij} \frac{\partial L}{\partial r_i}",
    ],
    [
        r"\frac{\partial L}{\partial r_i} = -\frac{s_i u_i}{r_i^2}",
        r"\frac{\partial L}{\partial K_{ij}} = \frac{\partial L}{\partial r_i} K_{ij}",
        r"\frac{\partial L}{\partial v_j} = \sum_i K_{ij} \frac{\partial L}{\partial a_i}",
    ],
)


def sinkhorn(slip=False):
    """Rows and columns are scaled in turn, three times."""

    def forward(K, a, b, v):
        saved = []
        for _ in range(3):
            u = a / (K @ v)
            saved.append((K, a, v, u))
            v = b / (K.T @ u)
            saved.append((K.T, b, u, v))
        return u[:, None] * K * v, (saved, K, u, v)

    def backward(dP, saved):
        steps, K, u, v = saved
        dK = dP * u[:, None] * v
        into_u, into_v = (dP * K) @ v, (dP * K).T @ u
        scales = [np.zeros_like(u), np.zeros_like(v)]
        for number, (M, a, x, y) in reversed([*enumerate(steps)]):
            r, dy = a / y, into_v if number % 2 else into_u
            dr = -dy * y / (r * r if slip else r)
            scales[number % 2] = scales[number % 2] + dy / r
            dK = dK + (np.outer(x, dr) if number % 2 else np.outer(dr, x))
            into_u, into_v = (into_u + M.T @ dr, 0 * v) if number % 2 else (0 * u, into_v + M.T @ dr)
        return dK, *scales, into_v

    return SimpleNamespace(forward=forward, backward=backward)


def drawn(*shapes, positive=False):
    draw = np.random.default_rng(7)
    return [draw.uniform(0.5, 1.5, s) if positive else 0.7 * draw.standard_normal(s) for s in shapes]


CODE = {
    "RNN": (RNN, rnn, drawn((5, 3), (4,), (4, 4), (4, 3))),
    "delta rule": (DELTA_RULE, delta_rule, drawn((5, 3), (5, 3), (5, 4), (5,), (5,), (4, 3))),
    "LSTM": (LSTM, lstm, drawn((5, 3), (5, 3), (5, 3), (3,), (3,))),
    "Kalman gain": (GAIN, gain, [np.eye(4) + 0.1 * drawn((4, 4))[0], np.eye(3), drawn((3, 4))[0]]),
    "Sinkhorn": (SINKHORN, sinkhorn, drawn((4, 3), (4,), (3,), (3,), positive=True)),
}


@pytest.mark.parametrize("name", CODE)
def test_the_code_that_a_derivation_ends_in_is_accepted(name):
    (definitions, right, wrong), code, inputs = CODE[name]
    for lines, accepted in ((right, {"equal"}), (wrong, {"refused", "ill-formed"})):
        assert {kind for line in lines for kind in kinds(f"$$ {line} $$", definitions)} <= accepted
    methods = ["complex_step", "contract"]
    assert check(code(), *inputs, methods=methods).passed
    assert not check(code(slip=True), *inputs, methods=methods, raises=False).passed
