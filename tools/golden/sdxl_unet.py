#!/usr/bin/env python3
"""Fixtures of tiny U-Nets of SDXL: what diffusers computes, block by block, and gradients.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/sdxl_unet.py tests/data/sdxl
"""
import sys
from pathlib import Path

import denoiser  # first: it says which instructions torch may use

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file

SMALL = dict(sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
             down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
             up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=24,
             transformer_layers_per_block=(1, 2), attention_head_dim=(2, 4), use_linear_projection=True,
             addition_embed_type="text_time", addition_time_embed_dim=8, projection_class_embeddings_input_dim=6 * 8 + 20,
             norm_num_groups=8)
SIZES = [[64, 96, 0, 0, 64, 96], [1024, 768, 16, 240, 512, 1280]]
# H != W, and sizes that differ by row; three levels with attention beside the finest one's ResNets, and blocks of
# several layers; dimensions that the low-precision kernels take.
CASES = {
    "small": dict(config=SMALL, size=(8, 12), channels=4, text=7, joint=24, pooled=20, sigmas=[0.25, 0.9], sizes=SIZES),
    "levels": dict(config=dict(SMALL, layers_per_block=2, block_out_channels=(8, 8, 16), cross_attention_dim=12,
                               down_block_types=("CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
                               up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
                               transformer_layers_per_block=1, attention_head_dim=(1, 4, 2)),
                   size=(8, 4), channels=4, text=5, joint=12, pooled=20, sigmas=[0.001, 0.999], sizes=SIZES),
    "aligned": dict(config=dict(SMALL, cross_attention_dim=32, projection_class_embeddings_input_dim=6 * 8 + 16),
                    size=(8, 12), channels=4, text=16, joint=32, pooled=16, sigmas=[0.4, 0.97], sizes=SIZES),
}


def velocity(model, case, latents, text, pooled):
    time = torch.tensor([1000 * s for s in case["sigmas"]])
    sizes = torch.tensor(case["sizes"], dtype=torch.float32)
    return model(latents, time, text, added_cond_kwargs=dict(text_embeds=pooled, time_ids=sizes), return_dict=False)[0]


def blocks_of(model):
    """Lists of ResNets and of transformer blocks, by name."""
    return [name for name, _ in model.named_modules() if name.endswith((".resnets", ".transformer_blocks"))]


if __name__ == "__main__":
    for name, case in CASES.items():
        model = UNet2DConditionModel(**case["config"])
        tensors, metadata = denoiser.run(name, case, model, velocity, blocks_of(model), "time_embedding", small=64)
        if name == "levels":
            tensors = {k: x for k, x in tensors.items() if k != "loss" and not k.startswith("grad")}
        if name == "aligned":
            tensors = {"sample": tensors["sample"]}
        save_file(tensors, Path(sys.argv[1]) / f"transformer_{name}.safetensors", metadata)
