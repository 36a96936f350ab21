#!/usr/bin/env python3
"""Fixtures of tiny FLUX.1 transformers: what diffusers computes, block by block, and gradients.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/flux1_transformer.py tests/data/flux1
"""
import sys
from pathlib import Path

import denoiser  # first: it says which instructions torch may use

import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from safetensors.torch import save_file

SMALL = dict(in_channels=16, num_layers=2, num_single_layers=2, num_attention_heads=2, attention_head_dim=16,
             joint_attention_dim=24, pooled_projection_dim=20, axes_dims_rope=[4, 4, 8], guidance_embeds=True)
# H != W, prompts, sigmas and guidances of their own in a batch; a model without guidance; dimensions that the
# low-precision kernels take, with heads as large as the real ones.
CASES = {
    "small": dict(config=SMALL, size=(6, 10), channels=4, text=7, joint=24, pooled=20, sigmas=[0.25, 0.9],
                  guidance=[3.5, 1.0]),
    "schnell": dict(config=dict(SMALL, guidance_embeds=False), size=(8, 4), channels=4, text=5, joint=24, pooled=20,
                    sigmas=[1.0, 0.5], guidance=[]),
    "aligned": dict(config=dict(SMALL, in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=128,
                                joint_attention_dim=128, pooled_projection_dim=64, axes_dims_rope=[16, 56, 56]),
                    size=(8, 12), channels=16, text=16, joint=128, pooled=64, sigmas=[0.4, 0.97], guidance=[3.5, 2.0]),
}


def velocity(model, case, latents, text, pooled):
    batch, channels, height, width = latents.shape
    ids = FluxPipeline._prepare_latent_image_ids(batch, height // 2, width // 2, latents.device, latents.dtype)
    guidance = torch.tensor(case["guidance"], dtype=latents.dtype) if case["guidance"] else None
    out = model(hidden_states=FluxPipeline._pack_latents(latents, batch, channels, height, width),
                encoder_hidden_states=text, pooled_projections=pooled,
                timestep=torch.tensor(case["sigmas"], dtype=latents.dtype), guidance=guidance, img_ids=ids,
                txt_ids=torch.zeros(text.shape[1], 3, dtype=latents.dtype), return_dict=False)[0]
    return FluxPipeline._unpack_latents(out, height * 8, width * 8, 8)


if __name__ == "__main__":
    for name, case in CASES.items():
        tensors, metadata = denoiser.run(name, case, FluxTransformer2DModel(**case["config"]), velocity,
                                         ("transformer_blocks", "single_transformer_blocks"), "time_text_embed",
                                         joined=("single_transformer_blocks",))
        save_file(tensors, Path(sys.argv[1]) / f"transformer_{name}.safetensors", metadata)
