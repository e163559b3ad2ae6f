"""Small programs that raise; a comment marks the line at fault, which often is not the one that raises."""

import copy
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

def backward_twice():
    m = nn.Linear(3, 1)
    loss = m(torch.rand(2, 3)).pow(2).mean()
    loss.backward()  # at fault
    loss.backward()

def two_losses_no_retain():
    m = nn.ModuleDict({"enc": nn.Linear(4, 3), "a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})
    h = m["enc"](torch.rand(2, 4)).tanh()
    la, lb = m["a"](h).mean(), m["b"](h).mean()
    la.backward()  # at fault
    lb.backward()

def bptt():
    cell, head = nn.RNNCell(3, 4), nn.Linear(4, 1)
    h = torch.zeros(1, 4)
    for _ in range(3):
        h = cell(torch.rand(1, 3), h)  # at fault
        loss = head(h).pow(2).mean()
        loss.backward()

def grad_twice():
    x = torch.rand(3, requires_grad=True)
    y = x.exp().sum()
    torch.autograd.grad(y, x)  # at fault
    torch.autograd.grad(y, x)

def inplace_param_between():
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    loss = m(torch.rand(2, 3)).sum()
    with torch.no_grad():
        m[1].weight.mul_(0.9)  # at fault
    loss.backward()

def inplace_relu_after_sigmoid():
    m = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.ReLU(inplace=True))
    out = m(torch.rand(2, 3))  # at fault
    out.sum().backward()

def index_assign_exp():
    x = torch.rand(4, requires_grad=True)
    y = x.exp()
    y[0] = 0.0  # at fault
    y.sum().backward()

def loss_no_history_no_grad():
    m = nn.Linear(3, 1)
    with torch.no_grad():  # at fault
        loss = m(torch.rand(2, 3)).mean()
    loss.backward()

def loss_argmax():
    m = nn.Linear(3, 4)
    pred = m(torch.rand(2, 3)).argmax(1)  # at fault
    loss = (pred == torch.tensor([1, 2])).float().mean()
    loss.backward()

def loss_item():
    m = nn.Linear(3, 1)
    total = 0.0
    total += m(torch.rand(2, 3)).mean().item()  # at fault
    loss = torch.tensor(total)
    loss.backward()

def loss_plain_input():
    x = torch.rand(3)  # at fault
    loss = (x * 2).sum()
    loss.backward()

def leaf_inplace():
    w = torch.rand(3, requires_grad=True)
    w += 1  # at fault

def leaf_view_inplace():
    w = torch.rand(3, requires_grad=True)
    w[0] = 1  # at fault

def weight_init():
    m = nn.Linear(3, 3)
    m.weight.fill_(0.1)  # at fault

def multi_view():
    x = torch.rand(4, 2, requires_grad=True)
    a, b = (x * 2).unbind(1)
    a += 1  # at fault
    a.sum().backward()

def custom_fn_view():
    class Id(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)
        @staticmethod
        def backward(ctx, g):
            return g
    x = torch.rand(3, requires_grad=True)
    y = Id.apply(x * 1)
    y += 1  # at fault

def inference_saved():
    m = nn.Linear(3, 3)
    with torch.inference_mode():  # at fault
        h = torch.rand(2, 3)
    m(h).sum().backward()

def inference_inplace():
    with torch.inference_mode():  # at fault
        h = torch.rand(2, 3)
    h += 1

def inference_requires_grad():
    with torch.inference_mode():  # at fault
        h = torch.rand(2, 3)
    h.requires_grad_()

def no_grad_view():
    x = torch.rand(4, requires_grad=True)
    y = x * 2
    with torch.no_grad():
        v = y[0]
    v += 1  # at fault

def int_grad():
    idx = torch.tensor([1, 2, 3])
    idx.requires_grad_()  # at fault

def int_factory():
    x = torch.ones(3, dtype=torch.long, requires_grad=True)  # at fault

def numpy_of_grad():
    m = nn.Linear(3, 1)
    m(torch.rand(2, 3)).numpy()  # at fault

def np_func():
    m = nn.Linear(3, 1)
    np.mean(m(torch.rand(2, 3)))  # at fault

def non_scalar():
    m = nn.Linear(3, 1)
    loss = F.mse_loss(m(torch.rand(2, 3)), torch.rand(2, 1), reduction="none")  # at fault
    loss.backward()

def non_leaf_flag():
    m = nn.Linear(3, 1)
    h = m(torch.rand(2, 3))
    h.requires_grad = False  # at fault

def deepcopy_nonleaf():
    m = nn.Linear(3, 1)
    h = m(torch.rand(2, 3))  # at fault
    copy.deepcopy(h)

def deepcopy_model_cache():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.cache = None
        def forward(self, x):
            h = self.fc(x)
            self.cache = h  # at fault
            return h.sum()
    net = Net()
    net(torch.rand(1, 3))
    copy.deepcopy(net)

def grad_unused():
    a = torch.rand(3, requires_grad=True)
    b = torch.rand(3, requires_grad=True)
    y = (a * 2).sum()
    torch.autograd.grad(y, b)  # at fault

def once_diff():
    class Sq(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x
        @staticmethod
        @torch.autograd.function.once_differentiable  # at fault
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g
    x = torch.rand(3, requires_grad=True)
    (g,) = torch.autograd.grad(Sq.apply(x).sum(), x, create_graph=True)
    g.sum().backward()

def wrong_shape_grad():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            return g[:1]
    x = torch.rand(3, 2, requires_grad=True)
    y = Bad.apply(x)  # at fault
    y.sum().backward()

def user_backward_bug():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2
        @staticmethod
        def backward(ctx, g):
            raise ValueError("oops")  # at fault
    x = torch.rand(3, 2, requires_grad=True)
    Bad.apply(x).sum().backward()

def anomaly_nan():
    with torch.autograd.detect_anomaly(check_nan=True):
        x = torch.zeros(3, requires_grad=True)
        y = (x * x).sum().sqrt()  # at fault
        y.backward()

def hook_none():
    x = torch.rand(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: g.nope)  # at fault
    y.sum().backward()

def retain_grad_constant():
    x = torch.rand(3)
    x.retain_grad()  # at fault

def shape_mismatch():
    m = nn.Linear(3, 1)
    m(torch.rand(2, 4))  # at fault

def optimizer_no_params():
    m = nn.Module()
    torch.optim.SGD(m.parameters(), lr=.1)  # at fault

def optimizer_nonleaf():
    w = torch.rand(3, requires_grad=True) * 0.1  # at fault
    torch.optim.SGD([w], lr=.1)

def gan_step_order():
    g, d = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    og, od = torch.optim.SGD(g.parameters(), .1), torch.optim.SGD(d.parameters(), .1)
    fake = g(torch.rand(4, 2))
    score = d(fake)
    d_loss, g_loss = score.mean(), -score.mean()
    od.zero_grad(); d_loss.backward(retain_graph=True); od.step()  # at fault
    g_loss.backward(); og.step()

def no_parentheses():
    m = nn.Linear(3, 1)
    with torch.no_grad:  # at fault
        m(torch.rand(2, 3))

def hook_without_gradient():
    m = nn.Linear(3, 1).requires_grad_(False)
    m(torch.rand(2, 3)).register_hook(print)  # at fault

def parameters_gone_through():
    m = nn.Linear(3, 1)
    parameters = m.parameters()
    torch.optim.SGD(parameters, lr=.1)
    torch.optim.SGD(parameters, lr=.1)  # at fault

def rebound_then_none():
    w = torch.zeros(3, requires_grad=True)
    for _ in range(2):
        ((w - 1) ** 2).sum().backward()
        w = w - 0.1 * w.grad  # at fault

def rebound_without_gradient():
    w = torch.zeros(3, requires_grad=True)
    for _ in range(2):
        ((w - 1) ** 2).sum().backward()
        with torch.no_grad():
            w = w - 0.1 * w.grad  # at fault

def gradient_read_too_early():
    w = torch.zeros(3, requires_grad=True)
    loss = (w * 2).sum()
    w.grad.zero_()  # at fault
    loss.backward()

def penalty_without_graph():
    m = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.rand(3, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(m(x).sum(), x)  # at fault
    loss = (slope.norm(dim=1) - 1).pow(2).mean()
    loss.backward()

def loop_over_gradients():
    m = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)})
    m["a"](torch.rand(2, 4)).sum().backward()
    for p in m.parameters():
        p.data -= 0.1 * p.grad.data  # at fault
