"""Small programs of the kinds that forums are full of; a comment marks the line at fault. Those called ok_ are right."""

import torch
import torch.nn.functional as F
from torch import nn

def parameter_of_result():
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.gen, self.target = nn.Linear(2, 12), nn.Linear(4, 3)
        def forward(self, z, x):
            w = self.gen(z).view(3, 4)
            self.target.weight = nn.Parameter(w)  # at fault
            return self.target(x)
    m = Hyper()
    return {"loss": m(torch.rand(2), torch.rand(5, 4)).sum(), "model": m}

def parameter_of_parameter():
    base = nn.Linear(4, 3)
    base.bias.requires_grad_(False)
    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = base
            self.w = nn.Parameter(base.weight)  # at fault
        def forward(self, x):
            return x @ self.w.T
    m = Wrap()
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m}

def view_under_no_grad():
    m = nn.Linear(4, 3)
    with torch.no_grad():  # at fault
        w = m.weight.view(12)
    return {"loss": (torch.rand(2, 4) @ w.view(3, 4).T + m.bias).sum(), "model": m}

def function_answers_none():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(s)
            return x * s
        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None  # at fault
    m = nn.ModuleDict({"layer": nn.Linear(4, 1), "scale": nn.Linear(3, 1)})
    scale = m["scale"](torch.rand(3))
    return {"loss": Scale.apply(m["layer"](torch.rand(2, 4)), scale).sum(), "model": m}

def ok_function_gets_zeros():
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x / 2
        @staticmethod
        def backward(ctx, g):
            return g / 2
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            ctx.save_for_backward(s)
            return x * s
        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], torch.zeros_like(ctx.saved_tensors[0])
    m = nn.ModuleDict({"layer": nn.Linear(4, 1), "scale": nn.Linear(3, 1)})
    return {"loss": Scale.apply(m["layer"](torch.rand(2, 4)), Half.apply(m["scale"](torch.rand(3)))).sum(), "model": m}

def item_of_log_probs():
    m = nn.Linear(4, 2)
    logps = []
    for _ in range(3):
        d = torch.distributions.Categorical(logits=m(torch.rand(4)))
        logps.append(d.log_prob(d.sample()).item())  # at fault
    return {"loss": -torch.tensor(logps, requires_grad=True).sum(), "model": m}  # at fault

def optimizer_of_the_old_model():
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)  # at fault
    model = nn.Linear(4, 1)
    return {"loss": model(torch.rand(2, 4)).sum(), "model": model, "opt": opt}

def name_given_away():
    w = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        w = w - 0.1  # at fault
    return {"loss": (w * torch.ones(4, requires_grad=True)).sum(), "w": w}

def ok_changed_in_place():
    w = torch.zeros(4, requires_grad=True)
    with torch.no_grad():
        w -= 0.1
    return {"loss": (w * 2).sum(), "w": w}

def ok_function_of_func():
    m = nn.Linear(4, 1)
    params = {name: one.detach() for name, one in m.named_parameters()}
    g = torch.func.grad(lambda p: torch.func.functional_call(m, p, (torch.rand(2, 4),)).sum())(params)
    return {"loss": m(torch.rand(2, 4)).sum(), "model": m, "g": g["bias"]}

def ok_two_models_two_optimizers():
    a, b = nn.Linear(4, 2), nn.Linear(2, 1)
    first, second = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.1)
    return {"loss": b(a(torch.rand(3, 4))).sum(), "model": nn.Sequential(a, b), "first": first, "second": second}

def ok_teacher_beside():
    teacher, student = nn.Linear(4, 2).requires_grad_(False), nn.Linear(4, 2)
    x = torch.rand(3, 4)
    with torch.no_grad():
        target = teacher(x)
    return {"loss": F.mse_loss(student(x), target), "model": student, "teacher": teacher}

def threshold_that_learns():
    m = nn.ParameterDict({"t": nn.Parameter(torch.tensor(0.5)), "w": nn.Parameter(torch.rand(4))})
    x = torch.rand(2, 4)
    return {"loss": (x * m["w"] * (x > m["t"])).sum(), "model": m}  # at fault

def constants_of_the_shape():
    m = nn.Linear(4, 1)
    h = m(torch.rand(2, 4))
    return {"loss": torch.where(h > 0, torch.ones_like(h), torch.zeros_like(h)).sum(), "model": m}  # at fault

def rolled_by_a_parameter():
    m = nn.ParameterDict({"by": nn.Parameter(torch.tensor(2.0)), "w": nn.Parameter(torch.rand(4))})
    return {"loss": torch.roll(m["w"], int(m["by"])).pow(2).sum(), "model": m}  # at fault

def new_tensor_of_result():
    m = nn.Linear(4, 2)
    h = m(torch.rand(3, 4))
    z = h.new_tensor(h)  # at fault
    return {"loss": z.sum(), "model": m}

def loaded_in_forward():
    fast, slow = nn.Linear(4, 1), nn.Linear(4, 1)
    fast.load_state_dict(slow.state_dict())  # at fault
    return {"loss": fast(torch.rand(2, 4)).sum(), "model": slow, "fast": fast}

def states_kept_detached():
    m, outs = nn.GRUCell(3, 4), []
    h = torch.zeros(1, 4)
    for _ in range(3):
        h = m(torch.rand(1, 3), h)
        outs.append(h.detach())  # at fault
    return {"loss": torch.stack(outs).sum() * torch.ones(1, requires_grad=True), "model": m}
