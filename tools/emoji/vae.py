"""AutoencoderKL with the parameter names of diffusers: 8 x smaller, 16 channels, no quantisation convolutions."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VAE = dict(channels=[48, 64, 96, 96], latent=16, groups=8, layers=1)
TINY_VAE = dict(channels=[8, 8, 16, 16], latent=16, groups=4, layers=1)


def conv(inputs, outputs, size=3):
    return nn.Conv2d(inputs, outputs, size, padding=size // 2)


class Resnet(nn.Module):
    def __init__(self, inputs, outputs, groups):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs, 1e-6), conv(inputs, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs, 1e-6), conv(outputs, outputs)
        if inputs != outputs:
            self.conv_shortcut = conv(inputs, outputs, 1)

    def forward(self, x):
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.conv2(F.silu(self.norm2(y)))
        return (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x) + y


class SelfAttention(nn.Module):
    def __init__(self, c, groups):
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, c, 1e-6)
        self.to_q, self.to_k, self.to_v = nn.Linear(c, c), nn.Linear(c, c), nn.Linear(c, c)
        self.to_out = nn.ModuleList([nn.Linear(c, c)])

    def forward(self, x):
        y = self.group_norm(x).flatten(2).transpose(1, 2)
        y = F.scaled_dot_product_attention(*(f(y)[:, None] for f in (self.to_q, self.to_k, self.to_v)))[:, 0]
        return x + self.to_out[0](y).transpose(1, 2).unflatten(2, x.shape[2:])


class Middle(nn.Module):
    def __init__(self, c, groups):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(c, c, groups), Resnet(c, c, groups)])
        self.attentions = nn.ModuleList([SelfAttention(c, groups)])

    def forward(self, x):
        return self.resnets[1](self.attentions[0](self.resnets[0](x)))


class Sampler(nn.Module):
    """The convolution of a level's resampling: stride 2 with padding right and below, or after doubling."""

    def __init__(self, c, up):
        super().__init__()
        self.conv, self.up = nn.Conv2d(c, c, 3, stride=1 if up else 2, padding=1 if up else 0), up

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest") if self.up else F.pad(x, (0, 1, 0, 1)))


class Level(nn.Module):
    def __init__(self, inputs, outputs, layers, groups, last, up):
        super().__init__()
        self.resnets = nn.ModuleList([Resnet(inputs if i == 0 else outputs, outputs, groups) for i in range(layers)])
        self.samplers = "upsamplers" if up else "downsamplers"
        if not last:
            setattr(self, self.samplers, nn.ModuleList([Sampler(outputs, up)]))

    def forward(self, x):
        for resnet in self.resnets:
            x = resnet(x)
        for sampler in getattr(self, self.samplers, []):
            x = sampler(x)
        return x


class Encoder(nn.Module):
    def __init__(self, channels, latent, groups, layers):
        super().__init__()
        self.conv_in = conv(3, channels[0])
        pairs = list(zip([channels[0]] + channels[:-1], channels))
        self.down_blocks = nn.ModuleList(
            [Level(a, b, layers, groups, i + 1 == len(pairs), False) for i, (a, b) in enumerate(pairs)])
        self.mid_block = Middle(channels[-1], groups)
        self.conv_norm_out, self.conv_out = nn.GroupNorm(groups, channels[-1], 1e-6), conv(channels[-1], 2 * latent)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(self.mid_block(x))))


class Decoder(nn.Module):
    def __init__(self, channels, latent, groups, layers):
        super().__init__()
        down = channels[::-1]
        self.conv_in, self.mid_block = conv(latent, down[0]), Middle(down[0], groups)
        pairs = list(zip([down[0]] + down[:-1], down))
        self.up_blocks = nn.ModuleList(
            [Level(a, b, layers + 1, groups, i + 1 == len(pairs), True) for i, (a, b) in enumerate(pairs)])
        self.conv_norm_out, self.conv_out = nn.GroupNorm(groups, down[-1], 1e-6), conv(down[-1], 3)

    def forward(self, z):
        x = self.mid_block(self.conv_in(z))
        for level in self.up_blocks:
            x = level(x)
        return self.conv_out(F.silu(self.conv_norm_out(x)))


class Autoencoder(nn.Module):
    def __init__(self, tiny=False):
        super().__init__()
        self.config = TINY_VAE if tiny else VAE
        self.encoder, self.decoder = Encoder(**self.config), Decoder(**self.config)

    def encode(self, x):
        """The mean; the variance is not learned (see train_vae.py)."""
        return self.encoder(x)[:, :self.config["latent"]]

    def decode(self, z):
        return self.decoder(z)
