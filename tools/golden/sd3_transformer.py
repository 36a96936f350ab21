#!/usr/bin/env python3
"""Fixtures of tiny Stable Diffusion 3 transformers: what diffusers computes, block by block, and gradients.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/sd3_transformer.py tests/data/sd3
"""
import sys
from pathlib import Path

import denoiser  # first: it says which instructions torch may use

import torch
from diffusers import SD3Transformer2DModel
from safetensors.torch import save_file

SMALL = dict(sample_size=8, patch_size=2, in_channels=4, num_layers=3, num_attention_heads=2, attention_head_dim=16,
             joint_attention_dim=24, caption_projection_dim=32, pooled_projection_dim=20, out_channels=4,
             pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm")
# H != W, the table of positions cut at an odd place; one without what 3.5 added; dimensions that the low-precision
# kernels take.
CASES = {
    "small": dict(config=SMALL, size=(6, 10), channels=4, text=7, joint=24, pooled=20, sigmas=[0.25, 0.9]),
    "first": dict(config=dict(SMALL, num_layers=2, dual_attention_layers=(), qk_norm=None), size=(12, 4), channels=4,
                  text=5, joint=24, pooled=20, sigmas=[1.0, 0.5]),
    "aligned": dict(config=dict(SMALL, num_layers=2, attention_head_dim=64, caption_projection_dim=128,
                                in_channels=16, out_channels=16, joint_attention_dim=128, pooled_projection_dim=64),
                    size=(8, 12), channels=16, text=16, joint=128, pooled=64, sigmas=[0.4, 0.97]),
}


def velocity(model, case, latents, text, pooled):
    time = torch.tensor([1000 * s for s in case["sigmas"]])
    return model(hidden_states=latents, encoder_hidden_states=text, pooled_projections=pooled, timestep=time,
                 return_dict=False)[0]


def make(config):
    """With the table of positions as a parameter, so that it is filled and has a gradient."""
    model = SD3Transformer2DModel(**config)
    table = model.pos_embed.pos_embed
    del model.pos_embed.pos_embed
    model.pos_embed.pos_embed = torch.nn.Parameter(table)
    return model


if __name__ == "__main__":
    for name, case in CASES.items():
        tensors, metadata = denoiser.run(name, case, make(case["config"]), velocity, ("transformer_blocks",),
                                         "time_text_embed")
        save_file(tensors, Path(sys.argv[1]) / f"transformer_{name}.safetensors", metadata)
