#!/usr/bin/env python3
"""A fixture of low-rank adapters on a tiny FLUX.2 transformer, as diffusers and PEFT compute them. They are
described with the modules of single files; the C++ test writes the same adapter in every naming.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/flux2_lora.py tests/data/flux2
"""
import json
import sys
from pathlib import Path

from flux2_transformer import CASES, inputs_of, velocity  # first: it says which instructions torch may use

import torch
from diffusers import Flux2Transformer2DModel
from safetensors.torch import save_file

from procedural import fill, weight

DIM, HIDDEN, RANK, ALPHA = 32, 96, 3, 2.0
QKV = {"img": ("attn.to_q", "attn.to_k", "attn.to_v"), "txt": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")}
# module of a single file: (out, in, modules in diffusers that its rows are for)
MODULES = {
    "double_blocks.0.img_attn.qkv": (3 * DIM, DIM, [f"transformer_blocks.0.{m}" for m in QKV["img"]]),
    "double_blocks.1.txt_attn.qkv": (3 * DIM, DIM, [f"transformer_blocks.1.{m}" for m in QKV["txt"]]),
    "double_blocks.0.img_attn.proj": (DIM, DIM, ["transformer_blocks.0.attn.to_out.0"]),
    "double_blocks.0.txt_attn.proj": (DIM, DIM, ["transformer_blocks.0.attn.to_add_out"]),
    "double_blocks.1.img_mlp.0": (2 * HIDDEN, DIM, ["transformer_blocks.1.ff.linear_in"]),
    "double_blocks.0.txt_mlp.2": (DIM, HIDDEN, ["transformer_blocks.0.ff_context.linear_out"]),
    "single_blocks.0.linear1": (3 * DIM + 2 * HIDDEN, DIM, ["single_transformer_blocks.0.attn.to_qkv_mlp_proj"]),
    "single_blocks.1.linear2": (DIM, DIM + HIDDEN, ["single_transformer_blocks.1.attn.to_out"]),
}
# Outside of blocks, where files in diffusers' naming and others differ by the order of halves.
OUTSIDE = {
    "single_stream_modulation.lin": (3 * DIM, DIM, ["single_stream_modulation.linear"]),
    "final_layer.adaLN_modulation.1": (2 * DIM, DIM, ["norm_out.linear"]),
    "img_in": (DIM, 16, ["x_embedder"]),
}
SWAPPED = ["final_layer.adaLN_modulation.1"]


def diffusers_state(modules):
    """B is multiplied by alpha / rank: without an alpha diffusers takes the rank for it."""
    state = {}
    for module, (rows, columns, targets) in modules.items():
        down = torch.from_numpy(weight(f"{module}.lora_A.weight", (RANK, columns)))
        up = torch.from_numpy(weight(f"{module}.lora_B.weight", (rows, RANK))) * (ALPHA / RANK)
        if module in SWAPPED:
            up = torch.cat(up.chunk(2)[::-1])
        for target, part in zip(targets, up.chunk(len(targets))):
            state[f"transformer.{target}.lora_A.weight"] = down
            state[f"transformer.{target}.lora_B.weight"] = part.contiguous()
    return state


if __name__ == "__main__":
    case = CASES["small"]
    model = fill(Flux2Transformer2DModel(**case["config"]))

    def sample():
        with torch.no_grad():
            return velocity(model, case, *inputs_of("small", case)).contiguous()

    results = {"none": sample()}
    for name, modules in dict(blocks=MODULES, all={**MODULES, **OUTSIDE}).items():
        state = diffusers_state(modules)
        model.load_lora_adapter(state, adapter_name=name, prefix="transformer")
        results[name] = sample()
        model.unload_lora()
        print(name, ((results[name] - results["none"]).norm() / results["none"].norm()).item())
    description = dict(rank=RANK, alpha=ALPHA, blocks=MODULES, outside=OUTSIDE, swapped=SWAPPED)
    save_file(results, Path(sys.argv[1]) / "lora.safetensors", {"case": json.dumps(description)})
