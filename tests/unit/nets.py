"""Small networks of the kinds that people draw, each as a function without arguments that gives a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

Loss = Callable[[], torch.Tensor]


class DoubleConv(nn.Module):
    """Two convolutions, each with a norm and a ReLU."""

    def __init__(self, width: int, outer: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.net(x)
        return result


class Down(nn.Module):
    """Half the size, twice the width."""

    def __init__(self, width: int, outer: int) -> None:
        super().__init__()
        self.pool, self.conv = nn.MaxPool2d(2), DoubleConv(width, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(self.pool(x))
        return result


class Up(nn.Module):
    """Twice the size, half the width, beside what was there on the way down."""

    def __init__(self, width: int, outer: int) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(width, outer, 2, 2), DoubleConv(2 * outer, outer)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.conv(torch.cat([skip, self.up(x)], 1))
        return result


class UNet(nn.Module):
    """Four times down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.inc = DoubleConv(3, 4)
        self.downs = nn.ModuleList(Down(4 * 2**level, 8 * 2**level) for level in range(4))
        self.ups = nn.ModuleList(Up(8 * 2**level, 4 * 2**level) for level in (3, 2, 1, 0))
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = [self.inc(x)]
        for down in self.downs:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.ups:
            x = up(x, skips.pop())
        result: torch.Tensor = self.out(x)
        return result


class LSTMLoop(nn.Module):
    """A cell that is called once for each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(2, 8), torch.zeros(2, 8)
        for step in x.unbind():
            state = self.cell(step, state)
        result: torch.Tensor = self.head(state[0])
        return result


class ConvLSTMCell(nn.Module):
    """The gates of an LSTM, made by one convolution."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width + hidden, 4 * hidden, 3, padding=1)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        h, c = state
        i, f, o, g = self.conv(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class ConvLSTM(nn.Module):
    """Two cells above one another, unrolled in time."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([ConvLSTMCell(1, 4), ConvLSTMCell(4, 4)])
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [(torch.zeros(1, 4, 8, 8), torch.zeros(1, 4, 8, 8)) for _ in self.cells]
        frames = []
        for frame in x.unbind(1):
            y = frame
            for number, cell in enumerate(self.cells):
                states[number] = cell(y, states[number])
                y = states[number][0]
            frames.append(self.out(y))
        return torch.stack(frames, 1)


def unet() -> tuple[nn.Module, Loss]:
    net, x, y = UNet(), torch.rand(1, 3, 32, 32), torch.randint(0, 2, (1, 32, 32))
    return net, lambda: nn.functional.cross_entropy(net(x), y)


def lstm(steps: int = 1000) -> tuple[nn.Module, Loss]:
    net, x = LSTMLoop(), torch.rand(steps, 2, 4)
    return net, lambda: net(x).pow(2).mean()


def conv_lstm() -> tuple[nn.Module, Loss]:
    net, x = ConvLSTM(), torch.rand(1, 12, 1, 8, 8)
    return net, lambda: nn.functional.mse_loss(net(x), x)


def plain_rnn(steps: int = 1000) -> tuple[None, Loss]:
    """No module at all."""
    u, w = torch.rand(4, 8, requires_grad=True), torch.rand(8, 8, requires_grad=True)
    x = torch.rand(steps, 2, 4)

    def run() -> torch.Tensor:
        h = torch.zeros(2, 8)
        for step in range(steps):
            a = x[step] @ u
            h = torch.tanh(a + h @ w)
        return h.sum()

    return None, run


def gpt2(layers: int = 12) -> tuple[nn.Module, Loss]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=24, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
    net, tokens = GPT2LMHeadModel(config), torch.randint(0, 50, (2, 8))
    return net, lambda: net(tokens, labels=tokens).loss


def t5() -> tuple[nn.Module, Loss]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(num_layers=6, d_model=32, d_kv=8, d_ff=64, num_heads=4, vocab_size=50, pad_token_id=0)
    config.decoder_start_token_id = 0
    net = T5ForConditionalGeneration(config)
    tokens = torch.randint(0, 50, (2, 8))
    return net, lambda: net(input_ids=tokens, labels=tokens).loss
