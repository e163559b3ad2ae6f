"""Small programs that go wrong in one way each; a comment marks the line at fault. Those called ok_ are right."""

import copy, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.utils.checkpoint import checkpoint

def two():
    return nn.ModuleDict({"enc": nn.Linear(4, 3), "dec": nn.Linear(3, 2)})

def item_loss():
    m = two(); x = torch.rand(2, 4)
    h = m["enc"](x)
    scale = h.mean().item()  # at fault
    return {"loss": (m["dec"](torch.ones(2, 3)) * scale).sum(), "model": m}

def item_loss_tensor():
    m = nn.Linear(4, 1); x = torch.rand(2, 4)
    value = m(x).pow(2).mean().item()  # at fault
    loss = torch.tensor(value, requires_grad=True)  # at fault
    return {"loss": loss, "model": m}

def numpy_roundtrip():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    arr = h.detach().numpy() * 2  # at fault
    y = torch.from_numpy(arr)  # at fault
    return {"loss": m["dec"](y).sum(), "model": m}

def numpy_inplace():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    h2 = torch.from_numpy(np.tanh(h.detach().cpu().numpy()))  # at fault
    return {"loss": m["dec"](h2).sum(), "model": m}

def tolist_roundtrip():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    y = torch.tensor(h.tolist())  # at fault
    return {"loss": m["dec"](y).sum(), "model": m}

def argmax_onehot():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    idx = h.argmax(1)  # at fault
    y = F.one_hot(idx, 3).float()
    return {"loss": m["dec"](y).sum(), "model": m}

def hard_threshold():
    m = two()
    h = m["enc"](torch.rand(2, 4)).sigmoid()
    mask = (h > 0.5).float()  # at fault
    return {"loss": m["dec"](mask).sum(), "model": m}

def long_cast():
    m = two()
    h = (m["enc"](torch.rand(2, 4)) * 10).long()  # at fault
    return {"loss": m["dec"](h.float()).sum(), "model": m}

def int_div():
    m = two()
    h = m["enc"](torch.rand(2, 4)).int()  # at fault
    return {"loss": (m["dec"](h / 2.0)).sum(), "model": m}

def multinomial_sample():
    m = two()
    p = m["enc"](torch.rand(2, 4)).softmax(1)
    s = torch.multinomial(p, 1)  # at fault
    y = F.one_hot(s.squeeze(1), 3).float()
    return {"loss": m["dec"](y).sum(), "model": m}

def categorical_sample():
    m = two()
    d = torch.distributions.Categorical(logits=m["enc"](torch.rand(2, 4)))
    s = d.sample()  # at fault
    return {"loss": m["dec"](F.one_hot(s, 3).float()).sum(), "model": m}

def normal_sample():
    m = two()
    d = torch.distributions.Normal(m["enc"](torch.rand(2, 4)), torch.ones(3))
    z = d.sample()  # at fault
    return {"loss": m["dec"](z).sum(), "model": m}

def bernoulli_sample():
    m = two()
    p = m["enc"](torch.rand(2, 4)).sigmoid()
    s = torch.bernoulli(p)  # at fault
    return {"loss": m["dec"](s).sum(), "model": m}

def rounded():
    m = two()
    h = m["enc"](torch.rand(2, 4)).sigmoid().round()  # at fault
    return {"loss": m["dec"](h).sum(), "model": m}

def sign_after():
    m = two()
    h = torch.sign(m["enc"](torch.rand(2, 4)))  # at fault
    return {"loss": m["dec"](h).sum(), "model": m}

def data_use():
    m = two()
    h = m["enc"](torch.rand(2, 4)).data  # at fault
    return {"loss": m["dec"](h).sum(), "model": m}

def detach_in_method():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 2)
        def features(self, x):
            return self.enc(x).detach()  # at fault
        def forward(self, x):
            return self.dec(self.features(x))
    m = Net()
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def no_grad_forward():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc, self.dec = nn.Linear(4, 3), nn.Linear(3, 2)
        @torch.no_grad()  # at fault
        def encode(self, x):
            return self.enc(x)
        def forward(self, x):
            return self.dec(self.encode(x))
    m = Net()
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def set_grad_left():
    m = two()
    def setup():
        torch.set_grad_enabled(False)  # at fault
    setup()
    try:
        return {"loss": m["dec"](m["enc"](torch.rand(2, 4))).sum(), "model": m}
    finally:
        torch.set_grad_enabled(True)

def generator_leaves():
    m = two()
    def batches():
        with torch.no_grad():  # at fault
            for _ in range(2):
                yield torch.rand(2, 4)
    gen = batches()
    x = next(gen)
    out = {"loss": m["dec"](m["enc"](x)).sum(), "model": m, "gen": gen}
    torch.set_grad_enabled(True)
    return out

def unused_layer():
    m = nn.ModuleDict({"a": nn.Linear(4, 2), "unused": nn.Linear(4, 2)})
    return {"loss": m["a"](torch.rand(2, 4)).sum(), "model": m}

def dropped_aux():
    m = nn.ModuleDict({"a": nn.Linear(4, 2), "aux": nn.Linear(4, 2)})
    x = torch.rand(2, 4)
    aux_loss = m["aux"](x).pow(2).mean()  # at fault
    loss = m["a"](x).sum()
    return {"loss": loss, "model": m}

def overwritten_result():
    m = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
    x = torch.rand(2, 4)
    h = m["a"](x)  # at fault
    h = m["b"](x)
    return {"loss": h.sum(), "model": m}

def parameter_of_tensor():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gen, self.w = nn.Linear(4, 4), None
        def forward(self, x):
            self.w = nn.Parameter(self.gen(x))  # at fault
            return (self.w * x).sum()
    m = Net()
    return {"loss": m(torch.rand(2, 4)), "model": m}

def clone_detach_copy():
    m = nn.Linear(4, 2)
    m2 = copy.deepcopy(m)  # at fault
    return {"loss": m2(torch.rand(2, 4)).sum(), "model": m}

def functional_call_params():
    m = nn.Linear(4, 2)
    params = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}  # at fault
    out = torch.func.functional_call(m, params, (torch.rand(2, 4),))  # at fault
    return {"loss": out.sum(), "model": m}

def copy_under_no_grad():
    m = nn.ModuleDict({"src": nn.Linear(4, 2), "dst": nn.Linear(4, 2)})
    with torch.no_grad():  # at fault
        m["dst"].weight.copy_(m["src"].weight * 2)
    return {"loss": m["dst"](torch.rand(2, 4)).sum(), "model": m}

def load_state_mix():
    m = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
    mixed = {k: 0.5 * m["a"].state_dict()[k] + 0.5 * v for k, v in m["b"].state_dict().items()}  # at fault
    m["b"].load_state_dict(mixed)
    return {"loss": m["b"](torch.rand(2, 4)).sum(), "model": m}

def frozen_part():
    m = two()
    m["enc"].requires_grad_(False)  # at fault
    return {"loss": m["dec"](m["enc"](torch.rand(2, 4))).sum(), "model": m}

def module_attr_requires_grad():
    m = two()
    m["enc"].requires_grad = False  # at fault
    return {"loss": m["dec"](m["enc"](torch.rand(2, 4))).sum(), "model": m}

def typo_attr():
    m = two()
    for p in m["enc"].parameters():
        p.require_grad = False  # at fault
    return {"loss": m["dec"](m["enc"](torch.rand(2, 4))).sum(), "model": m}

def custom_fn_closure():
    w = nn.Parameter(torch.rand(3))
    class Mul(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * w  # at fault
        @staticmethod
        def backward(ctx, g):
            return g
    x = torch.rand(3, requires_grad=True)
    m = nn.ParameterDict({"w": w})
    return {"loss": Mul.apply(x).sum(), "model": m, "x": x}

def custom_fn_nondiff():
    class Q(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.round()
            ctx.mark_non_differentiable(y)  # at fault
            return y
        @staticmethod
        def backward(ctx, g):
            return g
    m = two()
    h = Q.apply(m["enc"](torch.rand(2, 4)))  # at fault
    return {"loss": m["dec"](h).sum(), "model": m}

def buffer_assign():
    m = two()
    buf = torch.zeros(2, 3)
    with torch.no_grad():  # at fault
        buf[:] = m["enc"](torch.rand(2, 4))
    return {"loss": m["dec"](buf).sum(), "model": m}

def ckpt_reentrant_frozen_emb():
    m = nn.ModuleDict({"emb": nn.Embedding(5, 4), "blk": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    m["emb"].requires_grad_(False)
    h = m["emb"](torch.tensor([1, 2]))
    h = checkpoint(m["blk"], h, use_reentrant=True)  # at fault
    return {"loss": m["head"](h).sum(), "model": m}

def ok_ckpt_reentrant():
    m = nn.ModuleDict({"emb": nn.Embedding(5, 4), "blk": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    h = m["emb"](torch.tensor([1, 2]))
    h = checkpoint(m["blk"], h, use_reentrant=True)
    return {"loss": m["head"](h).sum(), "model": m}

def ok_ckpt_frozen_inside():
    m = nn.ModuleDict({"blk": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    m["blk"].requires_grad_(False)
    h = checkpoint(m["blk"], torch.rand(2, 4), use_reentrant=True)
    return {"loss": m["head"](h).sum(), "model": m}

def ok_ste():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    q = h + (h.round() - h).detach()
    return {"loss": m["dec"](q).sum(), "model": m}

def ok_mul_number():
    m = nn.Linear(4, 1)
    return {"loss": (m(torch.rand(2, 4)) * 0.5).sum() / 2, "model": m}

def ok_embedding_padding():
    m = nn.ModuleDict({"e": nn.Embedding(5, 3, padding_idx=0), "o": nn.Linear(3, 1)})
    return {"loss": m["o"](m["e"](torch.tensor([[1, 0]]))).sum(), "model": m}

def ok_teacher():
    m = nn.ModuleDict({"student": nn.Linear(4, 2), "teacher": nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1))})
    m["teacher"].requires_grad_(False)
    x = torch.rand(2, 4)
    with torch.no_grad():
        t = m["teacher"](x)
    return {"loss": F.mse_loss(m["student"](x), t), "model": m}

def ok_mask():
    m = nn.Linear(4, 2)
    x = torch.rand(3, 4)
    out = m(x)
    mask = out.detach() > 0
    return {"loss": (out * mask).sum(), "model": m}

def ok_metric_item():
    m = nn.Linear(4, 2)
    out = m(torch.rand(3, 4))
    acc = (out.argmax(1) == torch.tensor([0, 1, 0])).float().mean().item()
    loss = F.cross_entropy(out, torch.tensor([0, 1, 0]))
    log = loss.item()
    return {"loss": loss, "model": m}

def ok_sum_list():
    m = nn.Linear(4, 1)
    losses = [m(torch.rand(2, 4)).mean() for _ in range(3)]
    return {"loss": sum(losses), "losses": losses, "model": m}

def ok_truncated_bptt():
    m = nn.ModuleDict({"cell": nn.RNNCell(3, 4), "head": nn.Linear(4, 1)})
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    h = torch.zeros(1, 4)
    for _ in range(3):
        h = h.detach()
        loss = 0
        for _ in range(2):
            h = m["cell"](torch.rand(1, 3), h)
            loss = loss + m["head"](h).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"loss": loss, "model": m, "opt": opt}

def bptt_no_detach():
    m = nn.ModuleDict({"cell": nn.RNNCell(3, 4), "head": nn.Linear(4, 1)})
    h = torch.zeros(1, 4)
    for _ in range(2):
        h = m["cell"](torch.rand(1, 3), h)  # at fault
        loss = m["head"](h).pow(2).mean()
        if _ == 0:
            loss.backward()
    return {"loss": loss, "model": m}

def ok_gan_two_opts():
    g, d = nn.Linear(2, 3), nn.Linear(3, 1)
    og, od = torch.optim.SGD(g.parameters(), .1), torch.optim.SGD(d.parameters(), .1)
    fake = g(torch.rand(4, 2))
    d_loss = d(fake.detach()).mean() - d(torch.rand(4, 3)).mean()
    d_loss.backward(); od.step(); od.zero_grad()
    loss = -d(fake).mean()
    return {"loss": loss, "d_loss": d_loss, "g": g, "d": d, "og": og, "od": od}

def two_losses_retain():
    m = nn.ModuleDict({"enc": nn.Linear(4, 3), "a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})
    h = m["enc"](torch.rand(2, 4))
    la, lb = m["a"](h).mean(), m["b"](h).mean()
    la.backward(retain_graph=True)
    return {"loss": lb, "la": la, "model": m}

def ok_relu_sqrt():
    m = nn.Linear(4, 2)
    return {"loss": m(torch.rand(2, 4) - 5).relu().sqrt().sum(), "model": m}

def sqrt_zero():
    m = nn.Linear(4, 2, bias=False)
    return {"loss": m(torch.zeros(2, 4)).sqrt().sum(), "model": m}  # at fault

def where_trap():
    m = nn.Linear(4, 2, bias=False)
    x = m(torch.zeros(2, 4))
    y = torch.where(x > 0, x.sqrt(), torch.zeros_like(x))  # at fault
    return {"loss": y.sum(), "model": m}

def norm_at_zero():
    m = nn.Linear(4, 2, bias=False)
    d = m(torch.zeros(2, 4))
    return {"loss": (d ** 2).sum(1).sqrt().mean(), "model": m}  # at fault

def ok_norm_zero():
    m = nn.Linear(4, 2, bias=False)
    return {"loss": m(torch.zeros(2, 4)).norm(), "model": m}

def log_zero():
    m = nn.Linear(4, 2, bias=False)
    p = m(torch.zeros(2, 4))
    return {"loss": (p * p.log()).sum(), "model": m}  # at fault

def optimizer_before_replace():
    m = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    opt = torch.optim.SGD(m.parameters(), lr=.1)  # at fault
    m[1] = nn.Linear(3, 5)
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m, "opt": opt}

def optimizer_same_shape_replace():
    m = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    opt = torch.optim.SGD(m.parameters(), lr=.1)  # at fault
    m[1] = nn.Linear(3, 2)
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m, "opt": opt}

def inplace_relu_saved():
    m = nn.Linear(4, 3)
    h = m(torch.rand(2, 4)).sigmoid()
    F.relu_(h)  # at fault
    return {"loss": h.sum(), "model": m}

def inplace_index():
    m = nn.Linear(4, 3)
    h = m(torch.rand(2, 4)).exp()
    h[0] = 0  # at fault
    return {"loss": h.sum(), "model": m}

def silent_data():
    m = nn.Linear(4, 3)
    h = m(torch.rand(2, 4)).exp()
    h.data.mul_(2)  # at fault
    return {"loss": h.sum(), "model": m}

def ok_inplace_relu():
    m = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def ok_inplace_add():
    m = nn.Linear(4, 3)
    h = m(torch.rand(2, 4))
    h += 1
    h *= 2
    return {"loss": h.sum(), "model": m}

def mul_inplace_saved():
    w = nn.Parameter(torch.rand(3)); x = torch.rand(3)
    m = nn.ParameterDict({"w": w})
    y = w * x
    x += 1  # at fault
    return {"loss": y.sum(), "model": m}

def ok_lstm_dropout():
    m = nn.LSTM(3, 4, 2, dropout=0.1, batch_first=True)
    out, _ = m(torch.rand(2, 5, 3))
    return {"loss": out.sum(), "model": m}

def weight_norm_old():
    import warnings
    m = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    opt = torch.optim.SGD(m.parameters(), lr=.1)  # at fault
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(m[0])
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m, "opt": opt}

def ok_parametrized():
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def lone_no_grad():
    m = nn.Linear(4, 3)
    torch.no_grad()  # at fault
    out = m(torch.rand(2, 4))
    return {"loss": out.sum(), "model": m}

def eval_missing_parens():
    m = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    m.eval  # at fault
    out = m(torch.rand(2, 4))
    return {"loss": out.sum(), "model": m}

def bn_train_no_grad():
    m = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        out = m(torch.rand(5, 4))  # at fault
    return {"out": out, "model": m}

def enable_in_inference():
    m = nn.Linear(4, 3)
    with torch.inference_mode():  # at fault
        with torch.enable_grad():
            out = m(torch.rand(2, 4))
    return {"loss": out.sum(), "model": m}

def loss_made_leaf():
    m = nn.Linear(4, 3)
    with torch.no_grad():  # at fault
        loss = m(torch.rand(2, 4)).sum()
    loss.requires_grad = True
    return {"loss": loss, "model": m}

def ok_complex():
    x = torch.rand(3, dtype=torch.complex64, requires_grad=True)
    return {"loss": x.abs().sum(), "x": x}

def ok_autocast():
    m = nn.Linear(4, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = m(torch.rand(2, 4))
    return {"loss": out.float().sum(), "model": m}

def tensor_wrap():
    m = nn.Linear(4, 3)
    out = m(torch.rand(2, 4))
    import warnings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = torch.tensor(out)  # at fault
    w = nn.Parameter(torch.rand(3))
    m2 = nn.ModuleDict({"m": m}); m2.register_parameter("w", w)
    return {"loss": (y * w).sum(), "model": m2}

def sort_indices():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    _, idx = h.sort(dim=1)  # at fault
    return {"loss": m["dec"](idx.float()).sum(), "model": m}

def max_indices():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    best = h.max(dim=1)[1]  # at fault
    return {"loss": m["dec"](F.one_hot(best, 3).float()).sum(), "model": m}

def searchsorted_bins():
    m = two()
    h = m["enc"](torch.rand(2, 4))
    b = torch.bucketize(h, torch.linspace(-1, 1, 5))  # at fault
    return {"loss": m["dec"](b.float()).sum(), "model": m}

def clone_of_leaf():
    w = torch.rand(3, requires_grad=True).clone()  # at fault
    return {"loss": (w * 2).sum(), "w": w}

def scaled_init():
    w = torch.randn(3, requires_grad=True) * 0.01  # at fault
    return {"loss": (w * 2).sum(), "w": w}

def ok_cast_in_forward():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.rand(3))
        def forward(self, x):
            return (self.w.to(torch.float64) * x).sum()
    m = Net()
    return {"loss": m(torch.rand(3, dtype=torch.float64)), "model": m}

def two_cuts():
    m = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    x = torch.rand(2, 4)
    h = m["a"](x)
    p = h.detach()  # at fault
    q = (h > 0).float()  # at fault
    return {"loss": (m["b"](p) + q).sum(), "model": m}

def ok_moving_average():
    m = nn.ModuleDict({"net": nn.Linear(4, 2), "ema": nn.Linear(4, 2)})
    with torch.no_grad():
        for p, q in zip(m["ema"].parameters(), m["net"].parameters()):
            p.mul_(0.9).add_(q, alpha=0.1)
    m["ema"].requires_grad_(False)
    x = torch.rand(2, 4)
    return {"loss": F.mse_loss(m["net"](x), m["ema"](x)), "model": m}

def ok_dataparallel():
    m = nn.DataParallel(nn.Linear(4, 2))
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def ok_vmap():
    m = nn.Linear(4, 2)
    out = torch.vmap(lambda r: m(r))(torch.rand(3, 4))
    return {"loss": out.sum(), "model": m}

def ok_jacobian_beside():
    m = nn.Linear(3, 3)
    x = torch.rand(3)
    j = torch.func.jacrev(m)(x)
    return {"loss": m(x).sum(), "model": m}

def ok_unused_output_chunk():
    m = nn.Linear(4, 6)
    a, b = m(torch.rand(2, 4)).chunk(2, dim=1)
    return {"loss": a.sum(), "model": m}

def rebind_update():
    w = torch.randn(3, requires_grad=True)
    x = torch.rand(3)
    for _ in range(2):
        loss = (w * x).sum()
        loss.backward()
        if w.grad is None: break
        w = w - 0.1 * w.grad  # at fault
    return {"loss": loss, "w": w}

def variable_data_loss():
    m = nn.Linear(4, 1)
    loss = m(torch.rand(2, 4)).mean()
    loss = Variable(loss.data, requires_grad=True)  # at fault
    loss.backward()
    return {"loss": loss, "model": m}

def param_list():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.ws = [nn.Parameter(torch.rand(3)) for _ in range(2)]  # at fault
            self.fc = nn.Linear(3, 1)
        def forward(self, x):
            for w in self.ws: x = x * w
            return self.fc(x)
    m = Net()
    return {"loss": m(torch.rand(2, 3)).sum(), "model": m}

def plain_tensor_attr():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.ones(3, requires_grad=True)  # at fault
            self.fc = nn.Linear(3, 1)
        def forward(self, x):
            return self.fc(x * self.scale)
    m = Net()
    return {"loss": m(torch.rand(2, 3)).sum(), "model": m}

def param_times():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.rand(3)) * 0.1  # at fault
            self.fc = nn.Linear(3, 1)
        def forward(self, x):
            return self.fc(x * self.w)
    m = Net()
    return {"loss": m(torch.rand(2, 3)).sum(), "model": m}

def fn_returns_none():
    class Lin(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w
        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.T, None  # at fault
    m = nn.ModuleDict({"a": nn.Linear(4, 3)}); w = nn.Parameter(torch.rand(3, 2)); m.register_parameter("w", w)
    return {"loss": Lin.apply(m["a"](torch.rand(2, 4)), w).sum(), "model": m}

def ok_gumbel():
    m = two()
    h = F.gumbel_softmax(m["enc"](torch.rand(2, 4)), hard=True)
    return {"loss": m["dec"](h).sum(), "model": m}

def ok_rsample():
    m = two()
    d = torch.distributions.Normal(m["enc"](torch.rand(2, 4)), torch.ones(3))
    return {"loss": m["dec"](d.rsample()).sum(), "model": m}

def ok_reinforce():
    m = nn.Linear(4, 3)
    d = torch.distributions.Categorical(logits=m(torch.rand(2, 4)))
    a = d.sample()
    return {"loss": -(d.log_prob(a) * torch.rand(2)).mean(), "model": m}

def ok_dqn():
    q, t = nn.Linear(4, 3), nn.Linear(4, 3)
    t.load_state_dict(q.state_dict())
    s, s2 = torch.rand(5, 4), torch.rand(5, 4)
    with torch.no_grad():
        target = 0.9 * t(s2).max(1).values + 1
    loss = F.smooth_l1_loss(q(s).gather(1, torch.zeros(5, 1, dtype=torch.long)).squeeze(1), target)
    return {"loss": loss, "q": q}

def ok_vae():
    m = nn.ModuleDict({"mu": nn.Linear(4, 2), "lv": nn.Linear(4, 2), "dec": nn.Linear(2, 4)})
    x = torch.rand(3, 4)
    mu, lv = m["mu"](x), m["lv"](x)
    z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
    return {"loss": F.mse_loss(m["dec"](z), x) - 0.5 * (1 + lv - mu ** 2 - lv.exp()).mean(), "model": m}

def gradient_penalty():
    d = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.rand(4, 3, requires_grad=True)
    (g,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)  # at fault
    return {"loss": ((g.norm(dim=1) - 1) ** 2).mean(), "d": d, "x": x}

def ok_maml():
    m = nn.Linear(3, 1)
    fast = dict(m.named_parameters())
    loss = torch.func.functional_call(m, fast, (torch.rand(2, 3),)).pow(2).mean()
    grads = torch.autograd.grad(loss, fast.values(), create_graph=True)
    fast = {k: v - 0.1 * g for (k, v), g in zip(fast.items(), grads)}
    outer = torch.func.functional_call(m, fast, (torch.rand(2, 3),)).pow(2).mean()
    return {"loss": outer, "model": m}

def ok_transformer():
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    return {"loss": m(torch.rand(2, 3, 8)).sum(), "model": m}

def ok_eval_frozen_bn_train():
    m = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    m[1].eval()
    return {"loss": m(torch.rand(5, 4)).sum(), "model": m}

def ok_training_loop():
    m = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.Linear(3, 1))
    opt = torch.optim.AdamW(m.parameters())
    losses = []
    for _ in range(3):
        opt.zero_grad(set_to_none=True)
        loss = m(torch.rand(2, 4)).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    m.eval()
    with torch.no_grad():
        val = m(torch.rand(2, 4)).mean().item()
    m.train()
    return {"loss": loss, "model": m, "opt": opt, "losses": losses}

def ok_grad_accum():
    m = nn.Linear(4, 1)
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    for i in range(4):
        loss = m(torch.rand(2, 4)).pow(2).mean() / 4
        loss.backward()
    opt.step(); opt.zero_grad()
    return {"loss": loss, "model": m, "opt": opt}

def ok_contrastive_stopgrad():
    m = nn.ModuleDict({"f": nn.Linear(4, 3), "h": nn.Linear(3, 3)})
    z1, z2 = m["f"](torch.rand(5, 4)), m["f"](torch.rand(5, 4))
    p1, p2 = m["h"](z1), m["h"](z2)
    loss = -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean())
    return {"loss": loss, "model": m}

def ok_vq():
    m = nn.ModuleDict({"enc": nn.Linear(4, 3), "code": nn.Embedding(5, 3), "dec": nn.Linear(3, 4)})
    x = torch.rand(2, 4); z = m["enc"](x)
    idx = torch.cdist(z, m["code"].weight).argmin(1)
    q = m["code"](idx)
    loss = F.mse_loss(q, z.detach()) + F.mse_loss(z, q.detach())
    q = z + (q - z).detach()
    return {"loss": loss + F.mse_loss(m["dec"](q), x), "model": m}

def ok_clamp_log():
    m = nn.Linear(4, 2)
    p = m(torch.rand(2, 4)).softmax(1).clamp(min=1e-6)
    return {"loss": -(p * p.log()).sum(), "model": m}

def ok_sparse_embedding():
    m = nn.Embedding(10, 3, sparse=True)
    return {"loss": m(torch.tensor([1, 2])).sum(), "model": m}

def in_inference():
    m = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.rand(1, 3, 8)
    with torch.inference_mode():  # at fault
        y, _ = m(x, x, x)
    return {"y": y, "model": m}

def ok_copy_inside_no_grad_init():
    m = nn.Linear(4, 2)
    with torch.no_grad():
        m.weight.copy_(torch.eye(2, 4)); m.bias.zero_()
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def ok_weight_decay_manual():
    m = nn.Linear(4, 2)
    l2 = sum(p.pow(2).sum() for p in m.parameters())
    return {"loss": m(torch.rand(2, 4)).sum() + 1e-3 * l2, "model": m}

def ok_label_smoothing():
    m = nn.Linear(4, 3)
    y = torch.tensor([0, 1])
    t = F.one_hot(y, 3).float() * 0.9 + 0.1 / 3
    return {"loss": -(t * m(torch.rand(2, 4)).log_softmax(1)).sum(1).mean(), "model": m}

def ok_topk_loss():
    m = nn.Linear(4, 1)
    l = m(torch.rand(8, 4)).pow(2).squeeze(1)
    return {"loss": l.topk(3).values.mean(), "model": m}

def ok_padding_mask():
    m = nn.Linear(4, 2)
    x = torch.rand(2, 5, 4); lens = torch.tensor([3, 5])
    mask = torch.arange(5)[None] < lens[:, None]
    out = m(x).pow(2).sum(-1)
    return {"loss": (out * mask).sum() / mask.sum(), "model": m}
