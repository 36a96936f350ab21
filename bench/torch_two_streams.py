"""FLUX.1 and Stable Diffusion 3.5 Large as PyTorch users have them, with random weights: joint blocks of a
picture's and a text's stream, then, in FLUX.1, blocks of one. Modulation belongs to each block and stays in
high precision, as everyone keeps it. For torch_anchor.py, which measures them; `Lin`, `rope` and dtype come
from there."""
import torch
import torch.nn as nn
import torch.nn.functional as F

# Blocks of two streams and of one, width, heads, tokens of text, a rotation of positions.
SHAPES = {
    "flux.1": dict(joint=19, single=38, width=3072, heads=24, text=512, rotates=True),
    "sd3": dict(joint=38, single=0, width=2432, heads=38, text=333, rotates=False),
}


def layer_norm(x):
    return F.layer_norm(x, (x.shape[-1],), eps=1e-6)


def scaled(x, shift, scale):
    return layer_norm(x) * (1 + scale) + shift


def attend(q, k, v):
    y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    return y.transpose(1, 2).flatten(2)


class Maker:
    """What parts are made of: linears with biases in a mode, on a device."""

    def __init__(self, linear, rotate, mode, device, dtype):
        self.linear, self.rotate = linear, rotate
        self.mode, self.device, self.dtype = mode, device, dtype

    def biased(self, inputs, outputs, mode=None):
        return Biased(self.linear(inputs, outputs, mode or self.mode), self.vector(outputs))

    def vector(self, size):
        values = torch.randn(size, device=self.device, dtype=self.dtype) * 0.1
        return nn.Parameter(1 + values, requires_grad=False)


class Biased(nn.Module):
    def __init__(self, linear, bias):
        super().__init__()
        self.linear, self.bias = linear, bias

    def forward(self, x):
        return self.linear(x) + self.bias


class Heads(nn.Module):
    """q, k and v of a stream, q and k normed by head."""

    def __init__(self, make, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (make.biased(width, width) for _ in range(3))
        self.norm_q, self.norm_k = (make.vector(width // heads) for _ in range(2))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q, self.k, self.v))
        size = (q.shape[-1],)
        return F.rms_norm(q, size, self.norm_q, 1e-6), F.rms_norm(k, size, self.norm_k, 1e-6), v


class Stream(nn.Module):
    def __init__(self, make, width, heads):
        super().__init__()
        self.modulation = make.biased(width, 6 * width, "bf16")
        self.heads = Heads(make, width, heads)
        self.out = make.biased(width, width)
        self.up, self.down = make.biased(width, 4 * width), make.biased(4 * width, width)

    def begin(self, x, condition):
        parts = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        return self.heads(scaled(x, parts[0], parts[1])), parts

    def finish(self, x, attended, parts):
        x = x + parts[2] * self.out(attended)
        hidden = F.gelu(self.up(scaled(x, parts[3], parts[4])), approximate="tanh")
        return x + parts[5] * self.down(hidden)


class Joint(nn.Module):
    """`last`: nothing reads the text after it."""

    def __init__(self, make, width, heads, last=False):
        super().__init__()
        self.rotate, self.last = make.rotate, last
        self.picture, self.text = Stream(make, width, heads), Stream(make, width, heads)

    def forward(self, x, text, condition, cos, sin):
        of_text, text_parts = self.text.begin(text, condition)
        of_picture, parts = self.picture.begin(x, condition)
        q, k, v = (torch.cat(pair, 1) for pair in zip(of_text, of_picture))
        if cos is not None:
            q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        y, n = attend(q, k, v), text.shape[1]
        x = self.picture.finish(x, y[:, n:], parts)
        return x, None if self.last else self.text.finish(text, y[:, :n], text_parts)


class Single(nn.Module):
    def __init__(self, make, width, heads):
        super().__init__()
        self.rotate = make.rotate
        self.modulation = make.biased(width, 3 * width, "bf16")
        self.heads = Heads(make, width, heads)
        self.up, self.out = make.biased(width, 4 * width), make.biased(5 * width, width)

    def forward(self, x, condition, cos, sin):
        shift, scale, gate = self.modulation(condition).unsqueeze(1).chunk(3, -1)
        y = scaled(x, shift, scale)
        q, k, v = self.heads(y)
        attended = attend(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v)
        hidden = F.gelu(self.up(y), approximate="tanh")
        return x + gate * self.out(torch.cat((attended, hidden), -1))


def two_streams(name, batch, tokens, make, shape=None):
    """The blocks, and a function that runs all of them."""
    s = dict(SHAPES[name], **(shape or {}))
    width, heads = s["width"], s["heads"]
    on = dict(device=make.device, dtype=make.dtype)
    x, text = (torch.randn(batch, n, width, **on) for n in (tokens, s["text"]))
    condition = F.silu(torch.randn(batch, width, **on))
    cos = sin = None
    if s["rotates"]:
        angle = torch.rand(1, tokens + s["text"], 1, width // heads // 2, device=make.device) * 6.28
        cos, sin = angle.cos(), angle.sin()
    ends = s["joint"] if s["single"] == 0 else 0
    joint = [Joint(make, width, heads, i + 1 == ends) for i in range(s["joint"])]
    single = [Single(make, width, heads) for _ in range(s["single"])]

    def run():
        a, b = x, text
        for block in joint:
            a, b = block(a, b, condition, cos, sin)
        if not single:
            return a
        y = torch.cat((b, a), 1)
        for block in single:
            y = block(y, condition, cos, sin)
        return y

    return joint + single, run
