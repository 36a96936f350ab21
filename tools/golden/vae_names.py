#!/usr/bin/env python3
"""Fixture of an autoencoder's names in whole-model files: which tensor of the original code diffusers' converter makes
each of its own of.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/vae_names.py tests/data/autoencoder_kl/original_names.json
"""
import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from diffusers.loaders import single_file_utils as converters

CONFIG = dict(block_out_channels=[32, 32, 64], layers_per_block=2, latent_channels=16, norm_num_groups=32,
              down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3)


def block(before, width, out):
    shapes = {f"{before}.norm1": (width,), f"{before}.conv1": (out, width, 3, 3), f"{before}.norm2": (out,),
              f"{before}.conv2": (out, out, 3, 3)}
    return shapes | ({f"{before}.nin_shortcut": (out, width, 1, 1)} if width != out else {})


def middle(before, width):
    shapes = block(f"{before}.mid.block_1", width, width) | block(f"{before}.mid.block_2", width, width)
    shapes[f"{before}.mid.attn_1.norm"] = (width,)
    return shapes | {f"{before}.mid.attn_1.{n}": (width, width, 1, 1) for n in ("q", "k", "v", "proj_out")}


def original(c):
    """{name: shape} as the original code's modules hold them."""
    widths, latent, layers = c["block_out_channels"], c["latent_channels"], c["layers_per_block"]
    top = len(widths) - 1
    shapes = {"encoder.conv_in": (widths[0], 3, 3, 3), "decoder.conv_in": (widths[-1], latent, 3, 3),
              "encoder.norm_out": (widths[-1],), "encoder.conv_out": (2 * latent, widths[-1], 3, 3),
              "decoder.norm_out": (widths[0],), "decoder.conv_out": (3, widths[0], 3, 3)}
    shapes |= middle("encoder", widths[-1]) | middle("decoder", widths[-1])
    now = widths[0]
    for i, width in enumerate(widths):
        for j in range(layers):
            shapes |= block(f"encoder.down.{i}.block.{j}", now, width)
            now = width
        if i < top:
            shapes[f"encoder.down.{i}.downsample.conv"] = (width, width, 3, 3)
    for i in range(top, -1, -1):
        for j in range(layers + 1):
            shapes |= block(f"decoder.up.{i}.block.{j}", now, widths[i])
            now = widths[i]
        if i > 0:
            shapes[f"decoder.up.{i}.upsample.conv"] = (now, now, 3, 3)
    if c.get("use_quant_conv", True):
        shapes |= {"quant_conv": (2 * latent, 2 * latent, 1, 1), "post_quant_conv": (latent, latent, 1, 1)}
    return {f"{n}.{p}": s if p == "weight" else s[:1] for n, s in shapes.items() for p in ("weight", "bias")}


if __name__ == "__main__":
    cases = {}
    for name, convs in (("plain", False), ("quant_conv", True)):
        config = dict(CONFIG, use_quant_conv=convs, use_post_quant_conv=convs)
        model = AutoencoderKL(**config)
        shapes = original(config)
        names = sorted(shapes)
        numbered = {f"first_stage_model.{n}": torch.full(shapes[n], float(i)) for i, n in enumerate(names)}
        converted = converters.convert_ldm_vae_checkpoint(numbered, dict(model.config))
        assert {n: v.shape for n, v in converted.items()} == {n: v.shape for n, v in model.state_dict().items()}
        cases[name] = dict(config=dict(config, _class_name="AutoencoderKL"), shapes=shapes,
                           names={n: names[int(v.flatten()[0])] for n, v in converted.items()})
        print(name, len(names), "tensors")
    Path(sys.argv[1]).write_text(json.dumps(cases, separators=(",", ":"), sort_keys=True) + "\n")
