#!/usr/bin/env python3
"""Fixtures of tiny text encoders that families share, CLIP's and T5's, as transformers computes them: states of
every layer, pooled vectors, and gradients of all of CLIP's weights.

    VENV/bin/python tools/golden/text_encoders.py tests/data/text_encoders
"""
import copy
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel
from transformers.models.t5.modeling_t5 import T5Attention

from procedural import fill, uniform


def save(folder, name, tensors, case):
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, folder / f"{name}.safetensors",
              {"case": json.dumps(case)})


# Prompts end in the middle of what is read; the rest is filled with `pad`. Id 2 is among them.
def clip_prompts(config, tokens, pad):
    bos, eos = config["vocab_size"] - 2, config["vocab_size"] - 1
    texts = [[5, 17, 2, 100, 3, 3, 99, 1, 12], [(i * 37 + 11) % 110 for i in range(40)]]
    return [([bos] + t + [eos] + [pad] * tokens)[:tokens] for t in texts]


def clip(folder, name, activation, projected, eos, pad, tokens=77):
    config = dict(vocab_size=120, hidden_size=16, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2,
                  max_position_embeddings=80, hidden_act=activation, projection_dim=24, eos_token_id=eos,
                  bos_token_id=118, pad_token_id=1, layer_norm_eps=1e-5)
    made = CLIPTextConfig(**config)
    if projected:
        model = fill(CLIPTextModelWithProjection(made))
    else:
        model = fill(CLIPTextModel(made), "text_model.")
    model.config._attn_implementation = "eager"
    prompts = clip_prompts(config, tokens, pad)
    result = model(input_ids=torch.tensor(prompts), output_hidden_states=True)
    pooled = result.text_embeds if projected else result.pooler_output
    out = {f"layer.{i}": s for i, s in enumerate(result.hidden_states[1:])}
    out |= {"embedded": result.hidden_states[0], "pooled": pooled}
    states = result.hidden_states[-2]
    target = torch.from_numpy(uniform("clip.states", tuple(states.shape))) * 3**0.5
    goal = torch.from_numpy(uniform("clip.pooled", tuple(pooled.shape))) * 3**0.5
    loss = ((states - target) ** 2).mean() + ((pooled - goal) ** 2).mean()
    loss.backward()
    out["loss"] = loss.reshape(1)
    prefix = "" if projected else "text_model."
    for n, p in model.named_parameters():
        out[f"grad.{prefix}{n}"] = p.grad if p.grad is not None else torch.zeros_like(p)
    save(folder, name, out, dict(config=dict(model_type="clip_text_model", **config), prompts=prompts,
                                 tokens=tokens, projected=projected))


# Rows to what a format stands for.
def fp8(x):
    scale = x.abs().amax(-1, keepdim=True) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def mxfp8(x):
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True) / 448)))
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).reshape(x.shape)


def nvfp4(x):
    items = x if x.dim() == 3 else x[None]
    whole = items.abs().amax((1, 2))[:, None, None, None] / (448 * 6)
    blocks = items.reshape(*items.shape[:-1], -1, 16)
    scale = (blocks.abs().amax(-1, keepdim=True) / 6 / whole).to(torch.float8_e4m3fn).float() * whole
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = ((blocks / scale).abs().unsqueeze(-1) - grid).abs().argmin(-1)
    return (grid[codes] * blocks.sign() * scale).reshape(x.shape)


# What the states' relative error is where all linears of layers multiply rounded rows.
def errors_of(model, ids, states):
    errors = {}
    for rounded in (fp8, mxfp8, nvfp4):
        other = copy.deepcopy(model)
        for module in other.encoder.block.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.copy_(rounded(module.weight))
                module.register_forward_pre_hook(lambda _, given: (rounded(given[0]),))
        away = other(input_ids=ids).last_hidden_state - states
        errors[rounded.__name__] = (away.norm() / states.norm()).item()
    return errors


# Scores are not divided by the root of a head's size: trained queries are so much smaller. `shrink` is a power of
# two, which bf16 keeps.
def t5(folder, name, config, tokens, lengths, layers, shrink=1.0):
    config = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **config)
    model = fill(T5EncoderModel(T5Config(**config)))
    with torch.no_grad():
        for block in model.encoder.block:
            block.layer[0].SelfAttention.q.weight *= shrink
    model.config._attn_implementation = "eager"
    prompts = [[(i * i * 31 + i * 7 + 5 + 13 * b) % (config["vocab_size"] - 2) + 2 for i in range(n - 1)] + [1]
               for b, n in enumerate(lengths)]
    ids = torch.tensor([p + [0] * (tokens - len(p)) for p in prompts])
    mask = torch.tensor([[1] * len(p) + [0] * (tokens - len(p)) for p in prompts])
    with torch.no_grad():
        plain = model(input_ids=ids, output_hidden_states=True)
        masked = model(input_ids=ids, attention_mask=mask)
        errors = errors_of(model, ids, plain.last_hidden_state) if config["d_model"] % 32 == 0 else {}
    out = {"states": plain.last_hidden_state, "masked": masked.last_hidden_state}
    if layers:  # the last one's states are kept behind the norm alone
        out |= {f"layer.{i}": s for i, s in enumerate(plain.hidden_states[1:-1])}
    buckets = []
    for count, most in [(32, 128), (32, 64), (16, 128), (64, 200)]:
        away = torch.arange(-2 * most, 2 * most + 1)
        ids = T5Attention._relative_position_bucket(away, bidirectional=True, num_buckets=count, max_distance=most)
        buckets.append(dict(count=count, most=most, ids=ids.tolist()))
    save(folder, name, out, dict(config=dict(model_type="t5", **config), prompts=prompts, tokens=tokens,
                                 shrink=shrink, errors=errors, buckets=buckets))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    clip(folder, "clip", "quick_gelu", False, 119, 119)
    clip(folder, "clip_old", "quick_gelu", False, 2, 119)
    clip(folder, "clip_projected", "gelu", True, 119, 0)
    t5(folder, "t5", dict(vocab_size=200, d_model=16, d_kv=8, d_ff=24, num_layers=3, num_heads=2), 200, [200, 61], True)
    t5(folder, "t5_aligned", dict(vocab_size=100, d_model=128, d_kv=64, d_ff=256, num_layers=2, num_heads=2), 48,
       [48, 20], False, 0.125)
