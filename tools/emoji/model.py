"""The text encoder (Qwen3) and the transformer (Z-Image) for prompts of at most 32 tokens and one picture size.

Batches of fixed shape compile to fast code. Parameters have the names that transformers and diffusers
give them, so that a state dict is the checkpoint.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = dict(vocab_size=2048, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-6, rope_theta=1e6)
TRANSFORMER = dict(in_channels=16, dim=384, n_layers=5, n_refiner_layers=1, n_heads=3, n_kv_heads=3, norm_eps=1e-5,
                   qk_norm=True, cap_feat_dim=256, rope_theta=256.0, t_scale=1000.0, axes_dims=[32, 48, 48],
                   axes_lens=[1024, 512, 512])
TINY_TEXT = {**TEXT, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
TINY_TRANSFORMER = {**TRANSFORMER, "dim": 96, "n_layers": 1, "cap_feat_dim": 64, "axes_dims": [8, 12, 12]}
PATCH, CAPTION = 2, 32
EMBED = 256  # width of the modulation's input


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def linear(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


# ---- text -------------------------------------------------------------------------------------------

class QwenAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, head = c["hidden_size"], c["head_dim"]
        self.heads, self.kv_heads, self.head = c["num_attention_heads"], c["num_key_value_heads"], head
        self.q_proj, self.o_proj = linear(d, self.heads * head), linear(self.heads * head, d)
        self.k_proj, self.v_proj = linear(d, self.kv_heads * head), linear(d, self.kv_heads * head)
        self.q_norm, self.k_norm = RMSNorm(head, c["rms_norm_eps"]), RMSNorm(head, c["rms_norm_eps"])

    def forward(self, x, cosine, sine):
        def rotate(v):  # halves
            a, b = v.float().chunk(2, -1)
            return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(v.dtype)

        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head)))).transpose(1, 2)
        k = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head)))).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head)).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v.to(q.dtype)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class QwenMlp(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = linear(d, hidden), linear(d, hidden), linear(hidden, d)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class QwenLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = QwenAttention(c), QwenMlp(c["hidden_size"], c["intermediate_size"])
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cosine, sine):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextEncoder(nn.Module):
    """States before the last layer. It is causal, so the padding behind a prompt changes nothing in it."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList([QwenLayer(c) for _ in range(c["num_hidden_layers"])])
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        half = c["head_dim"] // 2
        angle = torch.arange(CAPTION).double()[:, None] * c["rope_theta"] ** (-torch.arange(half).double() / half)
        self.register_buffer("cosine", angle.cos().float()[:, None], persistent=False)
        self.register_buffer("sine", angle.sin().float()[:, None], persistent=False)
        self.apply(init)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers[:-1]:
            x = layer(x, self.cosine, self.sine)
        return x


# ---- transformer ------------------------------------------------------------------------------------

class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = linear(d, d), linear(d, d), linear(d, d)
        self.to_out = nn.ModuleList([linear(d, d)])
        self.norm_q, self.norm_k = RMSNorm(d // heads, 1e-5), RMSNorm(d // heads, 1e-5)

    def forward(self, x, rope):
        def rotate(v):  # neighbours
            a, b = v.float().unflatten(-1, (-1, 2)).unbind(-1)
            cosine, sine = rope.unbind(-1)
            return torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2).to(v.dtype)

        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        q, k = rotate(self.norm_q(q)), rotate(self.norm_k(k))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2).to(q.dtype))
        return self.to_out[0](y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = linear(d, hidden), linear(hidden, d), linear(d, hidden)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c, modulated):
        super().__init__()
        d, eps = c["dim"], c["norm_eps"]
        self.attention, self.feed_forward = Attention(d, c["n_heads"]), FeedForward(d, int(d / 3 * 8))
        self.attention_norm1, self.attention_norm2 = RMSNorm(d, eps), RMSNorm(d, eps)
        self.ffn_norm1, self.ffn_norm2 = RMSNorm(d, eps), RMSNorm(d, eps)
        if modulated:
            self.adaLN_modulation = nn.Sequential(linear(min(d, EMBED), 4 * d, True))
        self.modulated = modulated

    def forward(self, x, rope, time=None):
        if not self.modulated:
            x = x + self.attention_norm2(self.attention(self.attention_norm1(x), rope))
            return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))
        scale1, gate1, scale2, gate2 = self.adaLN_modulation(time)[:, None].chunk(4, -1)
        y = self.attention(self.attention_norm1(x) * (1 + scale1), rope)
        x = x + gate1.tanh() * self.attention_norm2(y)
        y = self.feed_forward(self.ffn_norm1(x) * (1 + scale2))
        return x + gate2.tanh() * self.ffn_norm2(y)


class TimeEmbedder(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.mlp = nn.Sequential(linear(EMBED, 1024, True), nn.SiLU(), linear(1024, out, True))

    def forward(self, t):
        angle = t[:, None] * torch.exp(-9.210340371976184 * torch.arange(EMBED // 2, device=t.device) / (EMBED // 2))
        return self.mlp(torch.cat([angle.cos(), angle.sin()], -1))


class FinalLayer(nn.Module):
    def __init__(self, d, out):
        super().__init__()
        self.linear = linear(d, out, True)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), linear(min(d, EMBED), d, True))

    def forward(self, x, time):
        x = F.layer_norm(x.float(), x.shape[-1:], eps=1e-6)
        return self.linear(x * (1 + self.adaLN_modulation(time)[:, None]))


class Transformer(nn.Module):
    def __init__(self, c, side=16):
        super().__init__()
        d, patch = c["dim"], PATCH * PATCH * c["in_channels"]
        self.scale, self.grid = c["t_scale"], side // PATCH
        self.all_x_embedder = nn.ModuleDict({"2-1": linear(patch, d, True)})
        self.all_final_layer = nn.ModuleDict({"2-1": FinalLayer(d, patch)})
        self.noise_refiner = nn.ModuleList([Block(c, True) for _ in range(c["n_refiner_layers"])])
        self.context_refiner = nn.ModuleList([Block(c, False) for _ in range(c["n_refiner_layers"])])
        self.t_embedder = TimeEmbedder(min(d, EMBED))
        self.cap_embedder = nn.Sequential(RMSNorm(c["cap_feat_dim"], c["norm_eps"]), linear(c["cap_feat_dim"], d, True))
        self.x_pad_token, self.cap_pad_token = nn.Parameter(torch.zeros(1, d)), nn.Parameter(torch.zeros(1, d))
        self.layers = nn.ModuleList([Block(c, True) for _ in range(c["n_layers"])])
        # Positions: captions (1 + i, 0, 0), then the picture's (CAPTION + 1, row, column). Picture first in the sequence.
        at = [(CAPTION + 1, h, w) for h in range(self.grid) for w in range(self.grid)] + [(1 + i, 0, 0) for i in range(CAPTION)]
        at = torch.tensor(at).double()
        angle = torch.cat([at[:, i:i + 1] * c["rope_theta"] ** (-torch.arange(0, n, 2).double() / n)
                           for i, n in enumerate(c["axes_dims"])], -1)
        rope = torch.stack([angle.cos(), angle.sin()], -1).float()[:, None]
        self.register_buffer("rope", rope, persistent=False)  # [tokens, 1, head / 2, 2]
        self.apply(init)
        for block in [*self.noise_refiner, *self.layers]:  # blocks start as the identity
            nn.init.zeros_(block.adaLN_modulation[0].weight)
            nn.init.constant_(block.adaLN_modulation[0].bias, 0)
        nn.init.zeros_(self.all_final_layer["2-1"].linear.weight)
        nn.init.zeros_(self.all_final_layer["2-1"].adaLN_modulation[1].weight)

    def forward(self, x, t, states, counts):
        """x [B, C, side, side], t = 1 - sigma [B], text states [B, CAPTION, D] of which counts [B] are real."""
        b, channels, g, pixels = x.shape[0], x.shape[1], self.grid, self.grid * self.grid
        time = self.t_embedder(t.float() * self.scale)
        x = x.view(b, channels, g, PATCH, g, PATCH).permute(0, 2, 4, 3, 5, 1).reshape(b, pixels, -1)
        x = self.all_x_embedder["2-1"](x)
        for block in self.noise_refiner:
            x = block(x, self.rope[:pixels], time)
        text = self.cap_embedder(states)
        real = torch.arange(CAPTION, device=x.device)[None] < counts[:, None]
        text = torch.where(real[..., None], text, self.cap_pad_token.to(text.dtype))
        for block in self.context_refiner:
            text = block(text, self.rope[pixels:])
        x = torch.cat([x, text.to(x.dtype)], 1)
        for block in self.layers:
            x = block(x, self.rope, time)
        x = self.all_final_layer["2-1"](x[:, :pixels], time)
        return x.view(b, g, g, PATCH, PATCH, channels).permute(0, 5, 1, 3, 2, 4).reshape(b, channels, 2 * g, 2 * g)


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.1)


class Model(nn.Module):
    """Both, as they are trained: from token ids to the velocity x - noise."""

    def __init__(self, tiny=False):
        super().__init__()
        self.text_encoder = TextEncoder(TINY_TEXT if tiny else TEXT)
        self.transformer = Transformer(TINY_TRANSFORMER if tiny else TRANSFORMER)

    def forward(self, x, t, ids, counts):
        return self.transformer(x, t, self.text_encoder(ids), counts)
