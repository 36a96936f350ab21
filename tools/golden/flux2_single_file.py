#!/usr/bin/env python3
"""A fixture of a tiny FLUX.2 transformer in one file with the names of the original code: which tensors it
has, which of their rows diffusers' converter makes each of its own weights of, and what the model computes.

    VENV/bin/python tools/golden/flux2_single_file.py tests/data/flux2
"""
import json
import sys
from pathlib import Path

from flux2_transformer import CASES, inputs_of, velocity  # first: it says which instructions torch may use

import torch
from diffusers import Flux2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_flux2_transformer_checkpoint_to_diffusers as convert
from safetensors.torch import save_file

from procedural import weight

DIM, HIDDEN, HEAD, CHANNELS, JOINT, TIME = 32, 96, 16, 16, 24, 16


def tensors():
    """name -> shape"""
    shapes = {"img_in.weight": (DIM, CHANNELS), "txt_in.weight": (DIM, JOINT), "time_in.in_layer.weight": (DIM, TIME),
              "time_in.out_layer.weight": (DIM, DIM), "double_stream_modulation_img.lin.weight": (6 * DIM, DIM),
              "double_stream_modulation_txt.lin.weight": (6 * DIM, DIM),
              "single_stream_modulation.lin.weight": (3 * DIM, DIM), "final_layer.linear.weight": (CHANNELS, DIM),
              "final_layer.adaLN_modulation.1.weight": (2 * DIM, DIM)}
    for i in range(2):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}"
            shapes[f"{block}_attn.qkv.weight"] = (3 * DIM, DIM)
            shapes[f"{block}_attn.proj.weight"] = (DIM, DIM)
            shapes[f"{block}_attn.norm.query_norm.scale"] = (HEAD,)
            shapes[f"{block}_attn.norm.key_norm.scale"] = (HEAD,)
            shapes[f"{block}_mlp.0.weight"] = (2 * HIDDEN, DIM)
            shapes[f"{block}_mlp.2.weight"] = (DIM, HIDDEN)
        block = f"single_blocks.{i}"
        shapes[f"{block}.linear1.weight"] = (3 * DIM + 2 * HIDDEN, DIM)
        shapes[f"{block}.linear2.weight"] = (DIM, DIM + HIDDEN)
        shapes[f"{block}.norm.query_norm.scale"] = (HEAD,)
        shapes[f"{block}.norm.key_norm.scale"] = (HEAD,)
    return shapes


def rows_of(shapes):
    """diffusers' name -> [[tensor, first row, end], ...], found by converting numbers of rows."""
    names = sorted(shapes)
    numbered = {n: torch.arange(shapes[n][0]) + 10000 * i for i, n in enumerate(names)}
    result = {}
    for name, numbers in convert(numbered).items():
        ranges = []
        for number in numbers.tolist():
            tensor, row = names[number // 10000], number % 10000
            if ranges and ranges[-1][0] == tensor and ranges[-1][2] == row:
                ranges[-1][2] += 1
            else:
                ranges.append([tensor, row, row + 1])
        result[name] = ranges
    return result


if __name__ == "__main__":
    shapes, case = tensors(), CASES["small"]
    model = Flux2Transformer2DModel(**case["config"])
    model.load_state_dict(convert({n: torch.from_numpy(weight(n, s)) for n, s in shapes.items()}))
    with torch.no_grad():
        sample = velocity(model.eval(), case, *inputs_of("small", case)).contiguous()
    save_file({"sample": sample}, Path(sys.argv[1]) / "single_file.safetensors",
              {"case": json.dumps(dict(tensors=shapes, rows=rows_of(shapes)))})
