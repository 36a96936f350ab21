"""SDXL's U-Net as PyTorch users have it, with random weights: pictures lie channels-last, and every ResNet,
transformer block and convolution between them is compiled by itself. Products of transformer blocks run in a
mode; convolutions and what stands around the blocks stay in high precision. For torch_anchor.py, which
measures it; `Lin` and dtype come from there. Parts are named as in checkpoints."""
import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_two_streams import Biased, attend

BASE = dict(latents=4, channels=(320, 640, 1280), heads=(5, 10, 20), depths=(1, 2, 10),
            down_attends=(False, True, True), up_attends=(True, True, False), layers=2, groups=32,
            text=77, text_width=2048, pooled=1280, size_features=256)
SIZES = 6  # numbers that a picture's sizes are told as
TOKEN = 4  # latents that a position of the lowest level stands for, each way


def sinusoids(x, width):
    steps = torch.arange(width // 2, device=x.device, dtype=torch.float32) / (width // 2)
    angles = x[:, None].float() * torch.exp(-steps * 9.210340371976184)
    return torch.cat((angles.cos(), angles.sin()), -1)


class Maker:
    """What parts are made of: linears in a mode and convolutions, on a device."""

    def __init__(self, linear, mode, device, dtype):
        self.linear, self.mode, self.device, self.dtype = linear, mode, device, dtype

    def on(self, module):
        return module.to(self.device, self.dtype, memory_format=torch.channels_last).requires_grad_(False)

    def biased(self, inputs, outputs, mode=None):
        bias = nn.Parameter(torch.zeros(outputs, device=self.device, dtype=self.dtype), requires_grad=False)
        return Biased(self.linear(inputs, outputs, mode or self.mode), bias)

    def conv(self, inputs, outputs, side=3, stride=1):
        return self.on(nn.Conv2d(inputs, outputs, side, stride, side // 2))


class Resnet(nn.Module):
    def __init__(self, make, inputs, outputs, time, groups):
        super().__init__()
        self.norm1 = make.on(nn.GroupNorm(groups, inputs, 1e-5))
        self.conv1 = make.conv(inputs, outputs)
        self.time_emb_proj = make.biased(time, outputs, "bf16")
        self.norm2 = make.on(nn.GroupNorm(groups, outputs, 1e-5))
        self.conv2 = make.conv(outputs, outputs)
        self.conv_shortcut = make.conv(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x, skip, time):
        if skip is not None:
            x = torch.cat((x, skip), 1)
        y = self.conv1(F.silu(self.norm1(x))) + self.time_emb_proj(time)[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class Attention(nn.Module):
    def __init__(self, make, width, seen, heads):
        super().__init__()
        self.heads = heads
        self.to_q = make.linear(width, width, make.mode)
        self.to_k, self.to_v = (make.linear(seen, width, make.mode) for _ in range(2))
        self.to_out = nn.ModuleList([make.biased(width, width)])

    def forward(self, x, seen):
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in (self.to_q(x), self.to_k(seen), self.to_v(seen)))
        return self.to_out[0](attend(q, k, v))


class TransformerBlock(nn.Module):
    def __init__(self, make, width, text, heads):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (make.on(nn.LayerNorm(width, 1e-5)) for _ in range(3))
        self.attn1 = Attention(make, width, width, heads)
        self.attn2 = Attention(make, width, text, heads)
        self.up, self.down = make.biased(width, 8 * width), make.biased(4 * width, width)

    def forward(self, x, text):
        y = self.norm1(x)
        x = x + self.attn1(y, y)
        x = x + self.attn2(self.norm2(x), text)
        hidden, gate = self.up(self.norm3(x)).chunk(2, -1)
        return x + self.down(hidden * F.gelu(gate))


class Enter(nn.Module):
    def __init__(self, make, width, groups):
        super().__init__()
        self.norm = make.on(nn.GroupNorm(groups, width, 1e-6))
        self.proj_in = make.biased(width, width, "bf16")

    def forward(self, x):
        return self.proj_in(self.norm(x).permute(0, 2, 3, 1).flatten(1, 2))


class Leave(nn.Module):
    def __init__(self, make, width):
        super().__init__()
        self.proj_out = make.biased(width, width, "bf16")

    def forward(self, tokens, x):
        return x + self.proj_out(tokens).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2)


class Upsampler(nn.Module):
    def __init__(self, make, width):
        super().__init__()
        self.conv = make.conv(width, width)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Embedding(nn.Module):
    def __init__(self, make, inputs, width):
        super().__init__()
        self.linear_1, self.linear_2 = make.biased(inputs, width, "bf16"), make.biased(width, width, "bf16")

    def forward(self, x):
        return self.linear_2(F.silu(self.linear_1(x)))


class Ending(nn.Module):
    def __init__(self, make, width, latents, groups):
        super().__init__()
        self.norm, self.conv = make.on(nn.GroupNorm(groups, width, 1e-5)), make.conv(width, latents)

    def forward(self, x):
        return self.conv(F.silu(self.norm(x)))


class Unet:
    """Its parts, in the order in which they run; `blocks` are what is compiled."""

    def __init__(self, make, shape=None):
        self.shape = s = dict(BASE, **(shape or {}))
        self.make, self.blocks, self.plan = make, [], []
        self.dtype = make.dtype
        channels, levels, time = s["channels"], len(s["channels"]), 4 * s["channels"][0]
        numbers = s["pooled"] + SIZES * s["size_features"]
        self.time_embedding = self.added(Embedding(make, channels[0], time))
        self.add_embedding = self.added(Embedding(make, numbers, time))
        self.conv_in = self.added(make.conv(s["latents"], channels[0]))
        kept = [channels[0]]
        width = channels[0]
        for level in range(levels):
            for _ in range(s["layers"]):
                self.resnet(width, channels[level], keeps=not s["down_attends"][level])
                width = channels[level]
                if s["down_attends"][level]:
                    self.transformer(level, keeps=True)
                kept.append(width)
            if level + 1 < levels:
                self.plan.append(("conv", self.added(make.conv(width, width, 3, 2)), True))
                kept.append(width)
        self.resnet(width, width)
        self.transformer(levels - 1)
        self.resnet(width, width)
        for i in range(levels):
            level = levels - 1 - i
            for _ in range(s["layers"] + 1):
                self.resnet(width + kept.pop(), channels[level], reads=True)
                width = channels[level]
                if s["up_attends"][i]:
                    self.transformer(level)
            if level > 0:
                self.plan.append(("conv", self.added(Upsampler(make, width)), False))
        self.ending = self.added(Ending(make, width, s["latents"], s["groups"]))

    def added(self, module):
        self.blocks.append(module)
        return module

    def resnet(self, inputs, outputs, keeps=False, reads=False):
        s = self.shape
        module = Resnet(self.make, inputs, outputs, 4 * s["channels"][0], s["groups"])
        self.plan.append(("reading resnet" if reads else "resnet", self.added(module), keeps))

    def transformer(self, level, keeps=False):
        s = self.shape
        width, heads = s["channels"][level], s["heads"][level]
        enter = self.added(Enter(self.make, width, s["groups"]))
        inner = [self.added(TransformerBlock(self.make, width, s["text_width"], heads))
                 for _ in range(s["depths"][level])]
        self.plan.append(("transformer", (enter, inner, self.added(Leave(self.make, width))), keeps))

    def __call__(self, latents, time, text, pooled, sizes):
        s = self.shape
        features = sinusoids(sizes.flatten(), s["size_features"]).reshape(len(sizes), -1)
        condition = F.silu(self.time_embedding(sinusoids(time, s["channels"][0]).to(self.dtype)) +
                           self.add_embedding(torch.cat((pooled, features.to(self.dtype)), -1)))
        x = self.conv_in(latents)
        kept = [x]
        for kind, part, keeps in self.plan:
            if kind == "transformer":
                enter, inner, leave = part
                tokens = enter(x)
                for block in inner:
                    tokens = block(tokens, text)
                x = leave(tokens, x)
            elif kind == "conv":
                x = part(x)
            else:
                x = part(x, kept.pop() if kind == "reading resnet" else None, condition)
            if keeps:
                kept.append(x)
        return self.ending(x)


def unet(batch, tokens, make, shape=None):
    """The blocks, and a function that runs all of them. `tokens` are positions of the lowest level:
    1024 of a picture of 1024 x 1024."""
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.cache_size_limit = 64  # a ResNet's shape differs from level to level
    net = Unet(make, shape)
    s, side = net.shape, TOKEN * round(tokens**0.5)
    on = dict(device=make.device, dtype=make.dtype)
    latents = torch.randn(batch, s["latents"], side, side, **on).to(memory_format=torch.channels_last)
    text, pooled = torch.randn(batch, s["text"], s["text_width"], **on), torch.randn(batch, s["pooled"], **on)
    time = torch.full((batch,), 500.0, device=make.device)
    sizes = torch.tensor([[1024.0, 1024, 0, 0, 1024, 1024]] * batch, device=make.device)
    return net.blocks, lambda: net(latents, time, text, pooled, sizes)
