"""Small programs, one for each kind of graph that autograd makes. Each returns its variables; ``loss`` is the root."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

Variables = dict[str, Any]


class Touched(BaseException):
    """User code ran that must not run. Not an ``Exception``, so that nothing swallows it."""


def must_not_run(*_: object, **__: object) -> Any:
    raise Touched


class Net(nn.Module):
    """Tied weights, a frozen layer, statistics, dropout, a plain attribute that is a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(6, 4)
        self.tied = nn.Linear(6, 4, bias=False)
        self.tied.weight = self.last.weight
        self.unused = nn.Linear(2, 2)
        self.scale = torch.ones(1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.drop(self.norm(self.first(x)).relu())
        result: torch.Tensor = self.last(h) + self.tied(self.frozen(h)) * self.scale
        return result


class Doubled(torch.autograd.Function):
    """Saves an input, None and its output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        ctx.save_for_backward(x, None, y)
        return y

    @staticmethod
    def backward(_: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * x.exp()


doubled: Any = Doubled.apply
once: Any = Once.apply


def training_step() -> Variables:
    model = Net()
    x, target = torch.randn(5, 4), torch.randn(5, 4)
    nn.functional.mse_loss(model(x), target).backward()  # .grad is there
    return {"model": model, "x": x, "loss": nn.functional.mse_loss(model(x), target)}


def hooks_everywhere() -> Variables:
    model = Net()
    for module in (model.first, model.last):
        module.register_forward_hook(lambda *_: None)
    model.first.register_full_backward_hook(must_not_run)
    weight = model.first.weight
    weight.register_hook(must_not_run)
    weight.register_post_accumulate_grad_hook(must_not_run)
    h = model(torch.randn(5, 4))
    h.register_hook(must_not_run)
    h.retain_grad()
    assert h.grad_fn is not None
    h.grad_fn.register_hook(must_not_run)
    h.grad_fn.register_prehook(must_not_run)
    return {"model": model, "h": h, "loss": h.sum()}


def checkpointed(*, reentrant: bool) -> Variables:
    model = Net()
    x = torch.randn(5, 4, requires_grad=True)
    return {"model": model, "x": x, "loss": checkpoint(model, x, use_reentrant=reentrant).sum()}


def packed(pack: Callable[[torch.Tensor], Any]) -> Variables:
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, must_not_run):
        y = x.exp()
        z = doubled(y)
    return {"x": x, "y": y, "loss": z.sum()}


def offloaded() -> Variables:
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.save_on_cpu():
        y = x.exp()
    return {"x": x, "loss": y.sum()}


def custom_functions() -> Variables:
    x = torch.randn(3, requires_grad=True)
    y = doubled(x)
    return {"x": x, "y": y, "loss": once(y).sum()}


def freed() -> Variables:
    x = torch.randn(3, requires_grad=True)
    y = doubled(x.exp())
    loss = (y * torch.stack([y, y])).sum()
    loss.backward()
    return {"x": x, "y": y, "loss": loss}


def written_in_place() -> Variables:
    x = torch.randn(4, requires_grad=True)
    y = x.exp()
    z = y * y
    y[:2].mul_(2)
    with torch.no_grad():
        x.add_(1)
    return {"x": x, "y": y, "loss": z.sum() + y.sum()}


def views() -> Variables:
    base = torch.randn(4, 3, requires_grad=True) * 1
    part = base[1:]
    part.mul_(2)
    return {"base": base, "part": part, "loss": part.t().sum() + base.view(-1)[0]}


def double_backward() -> Variables:
    x = torch.randn(3, requires_grad=True)
    y = (x**3).sum()
    (grad,) = torch.autograd.grad(y, x, create_graph=True)
    return {"x": x, "y": y, "grad": grad, "loss": grad.pow(2).sum()}


def complex_numbers() -> Variables:
    x = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    return {"x": x, "loss": torch.view_as_real(x * 2j).pow(2).sum()}


def sparse() -> Variables:
    x = torch.eye(3).to_sparse().requires_grad_()
    w = torch.randn(3, 2, requires_grad=True)
    return {"x": x, "w": w, "loss": torch.sparse.mm(x, w).sum()}


def nested(layout: torch.layout) -> Variables:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        n = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=layout, requires_grad=True)
        more = n * 2 * n
        loss = more.unbind()[1].sum() if layout is torch.strided else more.values().sum()
    return {"n": n, "loss": loss}


def several_outputs() -> Variables:
    x = torch.randn(5, requires_grad=True)
    values, indices = x.topk(2)
    left, right = x.chunk(2)
    return {"x": x, "values": values, "indices": indices, "loss": values.sum() + left.sum() + right[0]}


def foreach() -> Variables:
    xs = [torch.randn(2, requires_grad=True) for _ in range(3)]
    return {"xs": xs, "loss": torch.stack(torch._foreach_mul(xs, 2.0)).sum()}


def meta() -> Variables:
    model = nn.Linear(3, 2, device="meta")
    return {"model": model, "loss": model(torch.rand(4, 3, device="meta")).relu().sum()}


def mapped() -> Variables:
    x = torch.randn(4, 3, requires_grad=True)
    per_row = torch.func.vmap(lambda row: (row.exp() * row).sum())
    return {"x": x, "loss": per_row(x).sum()}


def function_gradient() -> Variables:
    x = torch.randn(3, requires_grad=True)
    inner = torch.func.grad(lambda y: (y**3).sum())
    return {"x": x, "loss": inner(x).sum()}


def dual_numbers() -> Variables:
    x = torch.randn(3, requires_grad=True)
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit's own
        loss = (forward_ad.make_dual(x, torch.ones(3)) * 2).sum()
        return {"x": x, "loss": forward_ad.unpack_dual(loss).primal}


def inference() -> Variables:
    with torch.inference_mode():
        made = torch.ones(3)
    x = torch.randn(3, requires_grad=True)
    return {"made": made, "x": x, "loss": (x + made).sum()}


class Marked(torch.Tensor):
    """Counts nothing, forbids everything: looking at it must run none of its code."""

    switched_on = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if cls.switched_on:
            raise Touched
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        if type(self).switched_on:
            raise Touched
        raise AttributeError(name)

    @property
    def shape(self) -> Any:  # type: ignore[override]
        if type(self).switched_on:
            raise Touched
        return super().shape


def hostile_subclass() -> Variables:
    Marked.switched_on = False
    x = torch.randn(3).as_subclass(Marked).requires_grad_()
    variables = {"x": x, "y": x * 2, "loss": (x * x.exp()).sum()}
    Marked.switched_on = True
    return variables


class Odd:
    """An object in a user's namespace that answers nothing."""

    def __init__(self) -> None:
        self.kept = torch.randn(2, requires_grad=True)

    @property
    def lazy(self) -> Any:
        raise Touched

    def __getattr__(self, name: str) -> Any:
        raise Touched

    def __iter__(self) -> Any:
        raise Touched

    def __len__(self) -> int:
        raise Touched

    def __bool__(self) -> bool:
        raise Touched

    def __eq__(self, other: object) -> bool:
        raise Touched

    __hash__ = None  # type: ignore[assignment]


class Lazy(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise Touched

    def __iter__(self) -> Any:
        raise Touched

    def items(self) -> Any:
        raise Touched


class Stranger(Odd):
    """Says that it is of another class, as proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise Touched

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise Touched


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    label: str = "a"


def hostile_variables() -> Variables:
    odd = Odd()
    batch = Batch(torch.randn(2, requires_grad=True))
    lazy = Lazy(held=torch.randn(2, requires_grad=True))
    held = dict.__getitem__(lazy, "held")
    loss = (odd.kept * batch.x * held).sum()
    return {"odd": odd, "strangers": [Stranger.__new__(Stranger)], "batch": batch, "lazy": lazy, "loss": loss}


SUBJECTS: dict[str, Callable[[], Variables]] = {
    "training step": training_step,
    "hooks": hooks_everywhere,
    "checkpoint": lambda: checkpointed(reentrant=False),
    "reentrant checkpoint": lambda: checkpointed(reentrant=True),
    "packed as text": lambda: packed(str),
    "packed as nothing": lambda: packed(lambda _: None),
    "packed as array": lambda: packed(lambda tensor: tensor.detach().numpy()),
    "packed as tensor": lambda: packed(lambda tensor: tensor.detach().clone()),
    "offloaded": offloaded,
    "custom functions": custom_functions,
    "freed": freed,
    "written in place": written_in_place,
    "views": views,
    "double backward": double_backward,
    "complex": complex_numbers,
    "sparse": sparse,
    "nested strided": lambda: nested(torch.strided),
    "nested jagged": lambda: nested(torch.jagged),
    "several outputs": several_outputs,
    "foreach": foreach,
    "meta": meta,
    "vmap": mapped,
    "torch.func.grad": function_gradient,
    "dual numbers": dual_numbers,
    "inference": inference,
    "hostile subclass": hostile_subclass,
    "hostile variables": hostile_variables,
}
