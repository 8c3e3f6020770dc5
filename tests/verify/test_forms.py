"""A backward in each form that people write: a layer with state, several outputs, the saved object first, a dictionary."""

import pickle
import random
from types import SimpleNamespace

import numpy as np
import pytest

from backpass.verify import VerificationError, check

RNG = np.random.default_rng(7)
X, W, B, DY = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 5)), RNG.normal(size=5), RNG.normal(size=(4, 5))


class Dense:
    """The commonest form: arrays as attributes, the input kept, gradients beside them."""

    wrong = 1.0

    def __init__(self):
        self.W, self.b, self.x = W.copy(), B.copy(), None

    def forward(self, x):
        self.x = x
        return x @ self.W + self.b

    def backward(self, dout):
        self.dW = self.wrong * self.x.T @ dout
        self.db = dout.sum(0)
        return dout @ self.W.T


class Accumulating(Dense):
    def __init__(self):
        super().__init__()
        self.grad_W, self.grad_b = np.ones_like(W), np.ones_like(B)  # of an earlier call

    def backward(self, grad):
        self.grad_W += self.wrong * self.x.T @ grad
        self.grad_b += grad.sum(axis=0)
        return grad @ self.W.T


class Lists:
    """The parameters and their gradients in two lists, written in place."""

    wrong = 1.0

    def __init__(self):
        self.params, self.grads = [W.copy(), B.copy()], [np.zeros_like(W), np.zeros_like(B)]

    def forward(self, x):
        self.x = x
        w, b = self.params
        return np.dot(x, w) + b

    def backward(self, dout):
        self.grads[0][...] = self.wrong * np.dot(self.x.T, dout)
        self.grads[1][...] = np.sum(dout, axis=0)
        return np.dot(dout, self.params[0].T)


class Aliased(Lists):
    """The same, and each parameter is an attribute too."""

    def __init__(self):
        super().__init__()
        self.W, self.b = self.params

    def forward(self, x):
        self.x = x
        return x @ self.W + self.b


class Dictionaries:
    wrong = 1.0

    def __init__(self):
        self.params, self.grads = {"W": W.copy(), "b": B.copy()}, {}

    def forward(self, x):
        self.cache = x
        return x @ self.params["W"] + self.params["b"]

    def backward(self, dout):
        self.grads["W"] = self.wrong * self.cache.T @ dout
        self.grads["b"] = dout.sum(0)
        return dout @ self.params["W"].T


class Parameters:
    """Each parameter is an object with its data and its gradient."""

    wrong = 1.0

    def __init__(self):
        self.W, self.b = SimpleNamespace(data=W.copy(), grad=None), SimpleNamespace(data=B.copy(), grad=None)

    def forward(self, x):
        self.x = x
        return x @ self.W.data + self.b.data

    def backward(self, dout):
        self.W.grad, self.b.grad = self.wrong * self.x.T @ dout, dout.sum(0)
        return dout @ self.W.data.T


class Returning(Dense):
    def backward(self, dout):
        return dout @ self.W.T, self.wrong * self.x.T @ dout, dout.sum(0)


class TwoLists(Lists):
    """Two lists of their own, of weights and of biases, each beside that of its gradients."""

    def __init__(self):
        self.weights, self.biases, self.dweights, self.dbiases = [W.copy()], [B.copy()], [None], [None]

    def forward(self, x):
        self.x = x
        return x @ self.weights[0] + self.biases[0]

    def backward(self, dout):
        self.dweights[0], self.dbiases[0] = self.wrong * self.x.T @ dout, dout.sum(0)
        return dout @ self.weights[0].T


class Nabla(Dense):
    def backward(self, dout):
        self.nabla_W, self.delta_b = self.wrong * self.x.T @ dout, dout.sum(0)
        return dout @ self.W.T


class Slots:
    """Attributes without a dictionary; backward has an option."""

    __slots__ = ("W", "b", "dW", "db", "x")
    wrong = None

    def __init__(self):
        self.W, self.b, self.x = W.copy(), B.copy(), None

    def forward(self, x):
        self.x = x
        return x @ self.W + self.b

    def backward(self, dout, scale=1.0):
        self.dW, self.db = (Slots.wrong or 1.0) * self.x.T @ dout, dout.sum(0)
        return scale * dout @ self.W.T


LAYERS = [Dense, Accumulating, Lists, Aliased, Dictionaries, Parameters, Returning, TwoLists, Nabla]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_keeps_its_state_is_checked_with_its_parameters(layer):
    report = check(layer(), X)
    named = {row.quantity for row in report.rows if row.verdict == "passed"}
    assert {"dx"} < named and len([name for name in named if name.startswith("d")]) == 3


@pytest.mark.parametrize("layer", LAYERS)
def test_a_wrong_gradient_of_a_parameter_is_found(layer):
    wrong = layer()
    wrong.wrong = 0.5
    with pytest.raises(VerificationError) as caught:
        check(wrong, X)
    failed = {row.quantity for row in caught.value.report.rows if row.verdict == "FAILED"}
    assert failed and failed <= {"dW", "dparams_0", "dweights_0"}
    assert "½ × reference" in " ".join(str(caught.value).split())


@pytest.mark.parametrize("layer", [*LAYERS, Slots])
def test_the_lengths_of_a_layer_s_parameters_are_varied_with_its_input(layer):
    """Buffers of gradients get the new length."""
    report = check(layer(), X, vary=True)
    assert {"length 293 in place of 4", "length 1061 in place of 3"} <= {row.note for row in report.rows}


class Network:
    """Layers in a list, in an attribute, and a loss that takes no cotangent."""

    def __init__(self, wrong=1.0):
        class Square(Dense):
            def __init__(self, seed, factor):
                rng = np.random.default_rng(seed)
                self.W, self.b, self.wrong = rng.normal(size=(3, 3)), rng.normal(size=3), factor

        self.layers, self.last = [Square(1, 1.0), Square(2, wrong)], Square(3, 1.0)

    def forward(self, x):
        for layer in self.layers:
            x = np.tanh(layer.forward(x))
            layer.y = x
        self.y = self.last.forward(x)
        return (self.y**2).mean()

    def backward(self):
        d = self.last.backward(2 * self.y / self.y.size)
        for layer in reversed(self.layers):
            d = layer.backward(d * (1 - layer.y**2))
        return d


def test_parameters_of_sub_layers():
    report = check(Network(), X, vary=True)
    names = [f"d{at}_{name}" for at in ("layers_0", "layers_1", "last") for name in "Wb"]
    assert {"dx", *names} == {row.quantity for row in report.rows if row.method == "finite differences"}
    wrong = check(Network(wrong=7.0), X, raises=False)
    assert {row.quantity for row in wrong.failed} == {"dlayers_1_W"}


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_loss_whose_cotangent_has_a_default(factor):
    class Loss:
        def forward(self, x, at):
            e = np.exp(x - x.max(1, keepdims=True))
            self.p, self.at = e / e.sum(1, keepdims=True), at
            return -np.log(self.p[np.arange(len(at)), at]).mean()

        def backward(self, dout=1):
            d = self.p.copy()
            d[np.arange(len(self.at)), self.at] -= 1
            return factor * dout * d / len(self.at)

    assert check(Loss(), X, np.array([0, 2, 2, 1]), vary=True, raises=False).passed is (factor == 1)


def test_two_outputs_of_a_layer():
    class Cell:
        wrong = 0.0

        def __init__(self):
            self.W, self.dW = W.copy(), None

        def forward(self, x, c):
            self.x, self.h = x, np.tanh(x @ self.W)
            self.c = c
            return self.h * c, c + self.h

        def backward(self, dh, dc):
            d = (dh * self.c + dc) * (1 - self.h**2)
            self.dW = self.x.T @ d
            return d @ self.W.T, dh * self.h + (1 - self.wrong) * dc

    c = RNG.normal(size=(4, 5))
    assert check(Cell(), X, c, vary=True).passed
    wrong = Cell()
    wrong.wrong = 0.01
    assert {row.quantity for row in check(wrong, X, c, raises=False).failed} == {"dc"}


def test_a_layer_s_random_numbers_are_the_same_each_time():
    class Dropout:
        keep = 1.0

        def forward(self, x):
            self.mask = np.random.rand(*x.shape) > 0.3
            return x * self.mask

        def backward(self, dout):
            return self.keep * dout * self.mask

    np.random.standard_normal()  # of two drawn at once, NumPy keeps the second
    before = pickle.dumps((np.random.get_state(), random.getstate()))
    report = check(Dropout(), X)
    assert {row.method for row in report.rows if row.verdict == "passed"} > {"finite differences"}
    assert pickle.dumps((np.random.get_state(), random.getstate())) == before
    wrong = Dropout()
    wrong.keep = 0.7
    assert not check(wrong, X, raises=False).passed


def test_a_tensor_with_its_own_gradient():
    torch = pytest.importorskip("torch")

    class Own:
        wrong = 1.0

        def __init__(self):
            self.W = torch.nn.Parameter(torch.tensor(W))
            self.W.grad = torch.zeros_like(self.W)

        @torch.no_grad()
        def forward(self, x):
            self.x = x
            return x @ self.W

        @torch.no_grad()
        def backward(self, g):
            self.W.grad += self.wrong * self.x.T @ g
            return g @ self.W.T

    assert check(Own(), torch.tensor(X), vary=True).passed
    wrong = Own()
    wrong.wrong = 0.5
    assert {row.quantity for row in check(wrong, torch.tensor(X), raises=False, explain=False).failed} == {
        "dW"
    }


class Normalised:
    """A declaration of forward's own inputs; the parameters have the lengths of its letters."""

    SHAPES = "x[n, d] -> y[n, d]"

    def __init__(self, width=3):
        self.gamma, self.beta = RNG.normal(size=width) + 1, RNG.normal(size=width)

    def forward(self, x):
        centred = x - x.mean(0)
        self.rstd = 1 / np.sqrt((centred**2).mean(0) + 1e-5)
        self.h = centred * self.rstd
        return self.gamma * self.h + self.beta

    def backward(self, dy):
        self.dgamma, self.dbeta = (dy * self.h).sum(0), dy.sum(0)
        g = dy * self.gamma
        return self.rstd * (g - g.mean(0) - self.h * (g * self.h).mean(0))


def test_a_layer_declares_its_own_inputs():
    report = check(Normalised(), X, vary=True)
    (axis,) = (row for row in report.rows if row.variation == "one more leading axis")
    assert axis.reason.endswith("SHAPES does not allow it")
    with pytest.raises(ValueError, match=r"SHAPES: expected the parameters of Normalised too.* n and d"):
        check(Normalised(4), RNG.normal(size=(4, 4)))


@pytest.mark.parametrize("slip", ["sum", "transpose", "scalar"])
def test_a_gradient_of_another_shape_is_found_by_its_name(slip):
    class Slip(Dense):
        def backward(self, dout):
            dx = super().backward(dout)
            if slip == "sum":
                self.db = dout
            elif slip == "transpose":
                self.dW = self.dW.T
            else:
                self.db = np.asarray(dout.sum())
            return dx

    report = check(Slip(), X, raises=False, explain=False)
    assert ("dW" if slip == "transpose" else "db") in {row.quantity for row in report.failed}


def test_what_a_forward_keeps_is_not_a_parameter():
    """Of a layer that has run before: its output and dz are not gradients of a parameter."""

    class Tanh(Dense):
        def forward(self, x):
            self.z = super().forward(x)
            self.out = np.tanh(self.z)
            return self.out

        def backward(self, dout):
            self.dz, self.dout = dout * (1 - self.out**2), dout
            return super().backward(self.dz)

    layer = Tanh()
    layer.forward(X)
    layer.backward(DY)
    assert {row.quantity for row in check(layer, X).of("finite differences")} == {"dx", "dW", "db"}


def test_parameters_whose_names_look_like_gradients():
    class Gate(Dense):
        def __init__(self):
            super().__init__()
            self.gW = W + 1

        def forward(self, x):
            self.gate = 1 / (1 + np.exp(-x @ self.gW))
            self.plain = super().forward(x)
            return self.plain * self.gate

        def backward(self, dout):
            dgate = dout * self.plain * self.gate * (1 - self.gate)
            self.grad_gW = self.x.T @ dgate
            return super().backward(dout * self.gate) + dgate @ self.gW.T

    names = {row.quantity for row in check(Gate(), X).of("finite differences")}
    assert names == {"dx", "dW", "db", "dgW"}


def test_returned_gradients_have_the_order_of_the_names_in_the_last_line():
    class Scale:
        def __init__(self):
            self.beta, self.gamma = RNG.normal(size=3), RNG.normal(size=3)

        def forward(self, x):
            self.x = x
            return self.gamma * x + self.beta

        def backward(self, dy):
            dgamma, dbeta = (dy * self.x).sum(0), dy.sum(0)
            return dy * self.gamma, dgamma, dbeta

    assert check(Scale(), X).passed


def test_a_private_parameter_and_one_of_the_class():
    class Hidden:
        w = W[:, 0].copy()

        def __init__(self):
            self.__b, self.__db = B[:3].copy(), None

        def forward(self, x):
            self.x = x
            return self.w * x + self.__b

        def backward(self, dy):
            self.dw, self.__db = (dy * self.x).sum(0), dy.mean(0)
            return dy * self.w

    report = check(Hidden(), X, raises=False, explain=False)
    assert {row.quantity for row in report.failed} == {"d_Hidden__b"}
    assert "dw" in {row.quantity for row in report.rows}


def test_what_cannot_be_copied_gets_the_next_step():
    class Locked(Dense):
        def __init__(self):
            super().__init__()
            self.numbers = (n for n in range(3))

    with pytest.raises(TypeError, match=r"a layer that can be copied.* give its two functions"):
        check(Locked(), X)


def test_two_keys_of_one_gradient():
    op = SimpleNamespace(
        forward=lambda x: (2 * x, None), backward=lambda dy, saved: {"dx": 3 * dy, "x": 2 * dy}
    )
    with pytest.raises(VerificationError, match="expected one gradient of each input"):
        check(op, X)


def test_options_of_a_function_by_name():
    torch = pytest.importorskip("torch")

    class Power(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale=1.0, power=2):
            ctx.save_for_backward(x)
            ctx.options = scale, power
            return scale * x**power

        @staticmethod
        def backward(ctx, dy):
            (x,), (scale, power) = ctx.saved_tensors, ctx.options
            return dy * scale * power * x ** (power - 1), None, None

    assert "power=3" in check(Power, torch.tensor(X), power=3).inputs
    with pytest.raises(TypeError, match="options of Power"):
        check(Power, torch.tensor(X), pwer=3)


def test_a_module_keeps_its_statistics_and_may_leave_a_parameter_unused():
    torch = pytest.importorskip("torch")

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            return 2 * dy

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3, dtype=torch.float64)
            self.unused = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

        def forward(self, x):
            return self.norm(Double.apply(x)) ** 2

    block = Block()
    assert check(block, torch.tensor(X), zero_gradients=["unused"]).passed
    assert (block.norm.running_mean == 0).all() and block.norm.num_batches_tracked == 0


def test_a_layer_needs_its_inputs():
    with pytest.raises(TypeError, match="expected the inputs of Dense's forward"):
        check(Dense())


def test_a_declaration_of_several_outputs():
    op = SimpleNamespace(
        forward=lambda x: ((np.tanh(x), x.sum(-1)), x),
        backward=lambda dys, x: dys[0] * (1 - np.tanh(x) ** 2) + dys[1][..., None],
        SHAPES="x[*, n] -> y[*, n], total[*]",
    )
    assert check(op, X, vary=True).passed
    op.SHAPES = "x[*, n] -> y[*, n], total[*, n]"
    with pytest.raises(VerificationError, match="total"):
        check(op, X)
    op.SHAPES = ("x", "n")
    with pytest.raises(TypeError, match="SHAPES: expected a text"):
        check(op, X)


def test_the_inputs_again_in_the_place_of_saved_objects():
    op = SimpleNamespace(forward=lambda x, w: x @ w, backward=lambda dy, x, w: (dy @ w.T, x.T @ dy))
    assert check(op, X, W).passed


def test_a_layer_on_tensors_without_parameters():
    torch = pytest.importorskip("torch")

    class Tanh:
        def forward(self, x):
            self.out = torch.tanh(x)
            return self.out

        def backward(self, grad_output):
            return grad_output * (1 - self.out**2)

    assert check(Tanh(), torch.tensor(X)).passed


def test_statistics_that_have_no_gradient_are_named():
    class Scaled(Dense):
        def __init__(self):
            super().__init__()
            self.running_mean = RNG.normal(size=3)

        def forward(self, x):
            return super().forward(x - self.running_mean)

    report = check(Scaled(), X)
    (row,) = (row for row in report.rows if row.method == "form")
    assert (row.quantity, row.verdict) == ("drunning_mean", "not run")
    assert "no attribute holds its gradient" in row.reason


def test_the_layer_that_was_given_is_not_touched():
    layer = Accumulating()
    check(layer, X)
    assert layer.x is None and (layer.grad_W == 1).all() and (layer.W == W).all()


def test_options_of_a_layer_s_forward():
    class Scaled(Dense):
        def forward(self, x, scale=1.0):
            self.scale = scale
            return super().forward(scale * x)

        def backward(self, dout):
            return self.scale * super().backward(dout)

    assert check(Scaled(), X, scale=0.5).passed


def step(x, h, W):
    new = np.tanh(x @ W + h)
    return new, new * h, (x, h, W, new)


def step_back(dnew, dproduct, cache):
    x, h, W, new = cache
    d = (dnew + dproduct * h) * (1 - new**2)
    return d @ W.T, d + dproduct * new, x.T @ d


def test_outputs_beside_the_saved_object():
    h = RNG.normal(size=(4, 5))
    assert check(SimpleNamespace(forward=step, backward=step_back), X, h, W).passed

    def wrong(dnew, dproduct, cache):
        return step_back(dnew, 0 * dproduct, cache)

    with pytest.raises(VerificationError):
        check(SimpleNamespace(forward=step, backward=wrong), X, h, W)


def test_another_number_of_outputs_is_explained():
    def forward(x):
        return np.tanh(x), x

    op = SimpleNamespace(forward=forward, backward=lambda dy, dother, saved: dy)
    with pytest.raises(VerificationError) as caught:
        check(op, X)
    said = " ".join(str(caught.value).split())
    assert (
        "expected 2 outputs and the saved object, because backward takes 3 arguments; got tuple of 2" in said
    )


@pytest.mark.parametrize("nested", [True, False])
def test_saved_objects_side_by_side(nested):
    def forward(x, w):
        return (x @ w, (x, w)) if nested else (x @ w, x, w)

    def backward(dy, x, w):
        return dy @ w.T, x.T @ dy

    assert check(SimpleNamespace(forward=forward, backward=backward), X, W).passed
    exchanged = SimpleNamespace(forward=forward, backward=lambda dy, x, w: backward(dy, x, w)[::-1])
    assert not check(exchanged, X, W, raises=False).passed


def test_three_results_for_a_backward_of_two_arguments_get_the_next_step():
    op = SimpleNamespace(forward=lambda x: (x, 2 * x, x), backward=lambda dy, saved: dy)
    with pytest.raises(
        VerificationError, match=r"a tuple of 3; give several\s+outputs as \(\(y1, y2\), saved\)"
    ):
        check(op, X)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_the_saved_object_first(factor):
    def bwd(res, g):
        return factor * g * (1 - res**2)

    op = SimpleNamespace(forward=lambda x: (np.tanh(x), np.tanh(x)), backward=bwd)
    assert check(op, X, raises=False).passed is (factor == 1)


@pytest.mark.parametrize("key", ["{}", "d{}"])
def test_gradients_in_a_dictionary(key):
    def backward(dy, saved):
        x, w = saved
        return {key.format("w"): x.T @ dy, key.format("x"): dy @ w.T}

    op = SimpleNamespace(forward=lambda x, w: (x @ w, (x, w)), backward=backward)
    assert check(op, X, W).passed


def test_an_unknown_key_is_named():
    op = SimpleNamespace(forward=lambda x: (2 * x, None), backward=lambda dy, saved: {"dz": 2 * dy})
    with pytest.raises(VerificationError, match="expected gradients named dx; got 'dz'"):
        check(op, X)


def test_a_loss_that_is_a_python_number():
    op = SimpleNamespace(
        forward=lambda x: (float((x**2).mean()), x), backward=lambda dy, x: dy * 2 * x / x.size
    )
    assert check(op, X).passed


def test_none_for_a_gradient_that_is_declared_zero():
    torch = pytest.importorskip("torch")

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.sign(x)

        @staticmethod
        def backward(ctx, dy):
            return None

    assert check(Sign, torch.tensor(X), zero_gradients=["x"]).passed


def test_a_sparse_gradient():
    torch = pytest.importorskip("torch")
    tokens = torch.tensor([0, 2, 2])

    def backward(dy, saved):
        shape, at = saved
        return torch.sparse_coo_tensor(at[None], dy, shape, check_invariants=True), None

    op = SimpleNamespace(forward=lambda w, at: (w[at], (w.shape, at)), backward=backward)
    assert check(op, torch.tensor(X), tokens).passed


def test_complex_inputs_get_the_next_step():
    op = SimpleNamespace(forward=lambda z: (z * z, z), backward=lambda dy, z: 2 * dy * z)
    with pytest.raises(TypeError, match="view_as_real"):
        check(op, X + 1j)


@pytest.fixture(scope="module")
def operator():
    torch = pytest.importorskip("torch")

    @torch.library.custom_op("backpass_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * w

    return scaled


@pytest.mark.parametrize("factor", [1.0, -1.0])
def test_an_operator_with_a_registered_backward(operator, factor):
    torch = pytest.importorskip("torch")

    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy * w, factor * dy * x

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    operator.register_autograd(backward, setup_context=setup_context)
    report = check(operator, torch.tensor(X), torch.tensor(X + 1), raises=False)
    assert report.passed is (factor == 1)
    assert {row.quantity for row in report.rows if row.verdict == "FAILED"} <= {"dw"}


def test_an_operator_without_a_backward_is_explained():
    torch = pytest.importorskip("torch")

    @torch.library.custom_op("backpass_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    with pytest.raises(TypeError, match="doubled has none: call its register_autograd first"):
        check(doubled, torch.tensor(X))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_a_module_with_a_function_inside(factor):
    torch = pytest.importorskip("torch")

    class Swish(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x)
            return dy * (s + factor * x * s * (1 - s))

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (
                torch.nn.Linear(3, 5, dtype=torch.float64),
                torch.nn.Linear(5, 2, dtype=torch.float64),
            )

        def forward(self, x):
            return self.down(Swish.apply(self.up(x)))

    torch.manual_seed(1)
    report = check(Block(), torch.tensor(X), raises=False)
    assert report.passed is (factor == 1)
    failed = {row.quantity for row in report.rows if row.verdict == "FAILED"}
    assert failed == (set() if factor == 1 else {"dx", "dup_weight", "dup_bias"})
    assert torch.autograd.Function.apply.__func__.__module__ == "torch.autograd.function"


@pytest.mark.parametrize("wrong", ["", "strides", "values"])
def test_a_module_with_two_outputs_and_dropout(wrong):
    torch = pytest.importorskip("torch")

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            if wrong == "strides" and not x.is_contiguous():
                return dy * x
            return (1.9 if wrong == "values" else 2.0) * dy * x

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.4)

        def forward(self, x):
            y = Square.apply(x)
            return self.drop(y), y.sum(-1)

    report = check(Block(), torch.tensor(X), raises=False)
    assert report.passed is (not wrong)
    assert wrong != "strides" or {row.method for row in report.failed} == {"contract"}


def test_a_module_without_one_has_no_backward_to_check():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"unless its forward applies an autograd\.Function"):
        check(torch.nn.Linear(3, 2), torch.tensor(X))


@pytest.fixture(scope="module")
def leaky():
    torch = pytest.importorskip("torch")

    @torch.library.custom_op("backpass_tests::leaky", mutates_args=())
    def leaky(x: torch.Tensor, slope: float = 0.1, *, scale: float = 2.0) -> torch.Tensor:
        return scale * torch.where(x > 0, x, slope * x)

    return leaky


@pytest.mark.parametrize("wrong", ["", "slope", "scale"])
def test_options_of_an_operator_are_varied(leaky, wrong):
    torch = pytest.importorskip("torch")

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.slope = 0.1 if wrong == "slope" else inputs[1]
        ctx.scale = 2.0 if wrong == "scale" else keyword_only_inputs["scale"]

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return ctx.scale * torch.where(x > 0, dy, ctx.slope * dy), None

    leaky.register_autograd(backward, setup_context=setup_context)
    assert check(leaky, torch.tensor(X), vary=False).passed
    assert check(leaky, torch.tensor(X), raises=False).passed is not bool(wrong)
    assert check(leaky, torch.tensor(X), vary=True, raises=False).passed is not bool(wrong)
    assert check(leaky, torch.tensor(X), scale=3.0, vary=False, raises=False).passed is (wrong != "scale")
    with pytest.raises(TypeError, match="slop"):
        check(leaky, torch.tensor(X), slop=0.2)


@pytest.mark.parametrize("names", ["dy, x", "g, x", "dy, y", "dy, out"])
def test_a_function_of_one_input_that_returns_y_alone(names):
    """Its backward takes x or y again, and options too."""

    def forward(x, *, slope=2.0):
        return np.tanh(slope * x)

    of_x = names.endswith("x")
    y = "np.tanh(slope * x)" if of_x else names.split()[1]
    first = names.split(",")[0]
    right, wrong = (
        eval(f"lambda {names}, slope=2.0: {times} * {first} * (1 - {y} ** 2)") for times in ("slope", "1.0")
    )
    x = np.random.default_rng(0).normal(size=(3, 4))
    for slope in (2.0, 0.5):
        check(SimpleNamespace(forward=forward, backward=right), x, slope=slope)
        assert not check(
            SimpleNamespace(forward=forward, backward=wrong), x, slope=slope, raises=False
        ).passed


def test_a_loss_whose_backward_takes_what_it_saved_and_no_cotangent():
    def forward(z, t):
        p = np.exp(z - z.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        return -np.log(p[np.arange(len(t)), t]).mean(), (p, t)

    def backward(cache):
        p, t = cache
        return (p - np.eye(p.shape[-1])[t]) / len(t)

    def not_averaged(cache):
        return len(cache[1]) * backward(cache)

    rng = np.random.default_rng(0)
    z, t = rng.normal(size=(5, 4)), rng.integers(0, 4, 5)
    check(SimpleNamespace(forward=forward, backward=backward), z, t)
    report = check(SimpleNamespace(forward=forward, backward=not_averaged), z, t, raises=False)
    assert {row.quantity for row in report.failed} == {"dz"}


class TestPair:
    @staticmethod
    def forward(x):
        return x**3, x

    def test_two_functions_are_an_object_with_both(self):
        assert check((self.forward, lambda dy, x: dy * 3 * x**2), X).passed
        report = check((self.forward, lambda dy, x: dy * 2 * x**2), X, raises=False)
        assert {row.quantity for row in report.failed} == {"dx"}

    @pytest.mark.parametrize("given", [(forward,), (forward, None), [forward, forward]])
    def test_anything_else_is_rejected(self, given):
        with pytest.raises(TypeError, match=r"expected .* a pair \(forward, backward\)"):
            check(given, X)
