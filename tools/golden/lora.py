#!/usr/bin/env python3
"""Fixtures of low-rank adapters on tiny transformers, as diffusers and PEFT compute them. They are described with the
modules of single files, and which rows of those are for which of diffusers' modules; the C++ test writes the same
adapter in every naming.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/lora.py tests/data
"""
import json
import sys
from pathlib import Path

from single_file import FAMILIES, converter_of, rows_of, width_of  # first: it says which instructions torch may use

import denoiser
import torch
from diffusers.loaders import lora_conversion_utils as converters
from safetensors.torch import save_file

from procedural import fill, weight

RANK, ALPHA = 3, 2.0
# Of single files: in blocks, and outside of them, where namings differ by the order of halves.
MODULES = {
    "flux1": dict(
        blocks=["double_blocks.0.img_attn.qkv", "double_blocks.1.txt_attn.qkv", "double_blocks.0.img_attn.proj",
                "double_blocks.0.txt_attn.proj", "double_blocks.1.img_mlp.0", "double_blocks.0.txt_mlp.2",
                "double_blocks.0.img_mod.lin", "double_blocks.1.txt_mod.lin", "single_blocks.0.linear1",
                "single_blocks.1.linear2", "single_blocks.0.modulation.lin"],
        outside=["final_layer.adaLN_modulation.1", "final_layer.linear", "img_in", "txt_in", "time_in.in_layer",
                 "vector_in.out_layer", "guidance_in.out_layer"]),
    "flux2": dict(
        blocks=["double_blocks.0.img_attn.qkv", "double_blocks.1.txt_attn.qkv", "double_blocks.0.img_attn.proj",
                "double_blocks.0.txt_attn.proj", "double_blocks.1.img_mlp.0", "double_blocks.0.txt_mlp.2",
                "single_blocks.0.linear1", "single_blocks.1.linear2"],
        outside=["single_stream_modulation.lin", "final_layer.adaLN_modulation.1", "img_in"]),
    "sd3": dict(
        blocks=["joint_blocks.0.x_block.attn.qkv", "joint_blocks.0.context_block.attn.qkv",
                "joint_blocks.2.context_block.attn.qkv", "joint_blocks.0.x_block.attn2.qkv",
                "joint_blocks.0.x_block.attn2.proj", "joint_blocks.1.x_block.attn.proj",
                "joint_blocks.0.context_block.attn.proj", "joint_blocks.1.x_block.mlp.fc1",
                "joint_blocks.0.context_block.mlp.fc2", "joint_blocks.0.x_block.adaLN_modulation.1",
                "joint_blocks.2.context_block.adaLN_modulation.1"],
        outside=["final_layer.adaLN_modulation.1", "final_layer.linear", "context_embedder", "t_embedder.mlp.0",
                 "y_embedder.mlp.2"]),
    "sdxl": dict(
        blocks=["input_blocks.3.1.transformer_blocks.0.attn1.to_q", "input_blocks.3.1.transformer_blocks.1.attn2.to_k",
                "middle_block.1.transformer_blocks.1.ff.net.0.proj", "middle_block.1.proj_in",
                "output_blocks.0.1.transformer_blocks.0.attn1.to_out.0", "output_blocks.1.1.transformer_blocks.1.ff.net.2",
                "output_blocks.1.1.proj_out"],
        outside=["time_embed.0", "label_emb.0.2", "input_blocks.1.0.emb_layers.1", "output_blocks.3.0.emb_layers.1"]),
}


def described(modules, shapes, rows):
    """module -> [rows, columns, {diffusers' module: [[first row, end], ...]}]"""
    result = {m: [*shapes[f"{m}.weight"], {}] for m in modules}
    for name, ranges in rows.items():
        module = ranges[0][0].removesuffix(".weight")
        if name.endswith(".weight") and module in result:
            result[module][2][name.removesuffix(".weight")] = [r[1:] for r in ranges]
    return result


def flux1_parts(dim):
    """Modules that adapters alone have: XLabs' processors, and q, k and v of a single block without its MLP."""
    def thirds(names):
        return {n: [[i * dim, (i + 1) * dim]] for i, n in enumerate(names)}

    qkv = ("attn.to_q", "attn.to_k", "attn.to_v")
    text = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
    double, single = "transformer_blocks.1", "single_transformer_blocks.0"
    processors = "double_blocks.1.processor"
    return dict(
        xlabs={f"{processors}.qkv_lora1": [3 * dim, dim, thirds(f"{double}.{n}" for n in qkv)],
               f"{processors}.qkv_lora2": [3 * dim, dim, thirds(f"{double}.{n}" for n in text)],
               f"{processors}.proj_lora1": [dim, dim, {f"{double}.attn.to_out.0": [[0, dim]]}],
               f"{processors}.proj_lora2": [dim, dim, {f"{double}.attn.to_add_out": [[0, dim]]}],
               "single_blocks.0.processor.qkv_lora": [3 * dim, dim, thirds(f"{single}.{n}" for n in qkv)],
               "single_blocks.0.processor.proj_lora": [dim, 5 * dim, {f"{single}.proj_out": [[0, dim]]}]},
        parts={"single_blocks.0.linear1_qkv": [3 * dim, dim, thirds(f"{single}.{n}" for n in qkv)]})


def check_flux1_converters(groups, scale):
    """That diffusers' own converters of adapters see the same rows for the same modules, as far as they know them: of
    B's numbered rows, at the width of the published model."""
    def told(convert, modules, name_of, down, up):
        state = {}
        for i, (module, (rows, columns, _)) in enumerate(modules.items()):
            state[name_of(module) + down] = torch.ones(1, columns, dtype=torch.float64)
            numbers = torch.arange(rows * scale, dtype=torch.float64).reshape(-1, 1)
            state[name_of(module) + up] = numbers + 10**7 * (i + 1)
        return {k.removeprefix("transformer.").removesuffix(".lora_B.weight"): v.flatten().tolist()
                for k, v in convert(state).items() if k.endswith(".lora_B.weight")}

    def wanted(modules):
        return {target: [float(10**7 * (i + 1) + row) for a, b in ranges for row in range(a * scale, b * scale)]
                for i, (_, _, targets) in enumerate(modules.values()) for target, ranges in targets.items()}

    kohya = groups["blocks"] | groups["outside"]
    assert wanted(kohya) == told(converters._convert_kohya_flux_lora_to_diffusers, kohya,
                                 lambda m: "lora_unet_" + m.replace(".", "_"), ".lora_down.weight", ".lora_up.weight")
    assert wanted(groups["xlabs"]) == told(converters._convert_xlabs_flux_lora_to_diffusers, groups["xlabs"],
                                           lambda m: m, ".down.weight", ".up.weight")


def diffusers_state(modules):
    """B is multiplied by alpha / rank: without an alpha diffusers takes the rank for it."""
    state = {}
    for module, (rows, columns, targets) in modules.items():
        down = torch.from_numpy(weight(f"{module}.lora_A.weight", (RANK, columns)))
        up = torch.from_numpy(weight(f"{module}.lora_B.weight", (rows, RANK))) * (ALPHA / RANK)
        for target, ranges in targets.items():
            state[f"transformer.{target}.lora_A.weight"] = down
            state[f"transformer.{target}.lora_B.weight"] = torch.cat([up[a:b] for a, b in ranges])
    return state


if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        row = FAMILIES[family]
        case = row["module"].CASES["small"]
        config = case["config"]
        width = width_of(config, row)
        scale = row.get("width", width) // width
        shapes = row["tensors"](config)
        rows = rows_of(shapes, converter_of(config, row), scale)
        groups = {name: described(modules, shapes, rows) for name, modules in MODULES[family].items()}
        if family == "flux1":
            groups |= flux1_parts(width)
            check_flux1_converters(groups, scale)
        model = fill(row["make"](**config))
        inputs = (row["module"] if family == "flux2" else denoiser).inputs_of("small", case)

        def sample():
            with torch.no_grad():
                return row["module"].velocity(model, case, *inputs).contiguous()

        results = {"none": sample()}
        adapters = dict(groups)
        adapters["all"] = groups["blocks"] | adapters.pop("outside")
        for name, modules in adapters.items():
            model.load_lora_adapter(diffusers_state(modules), adapter_name=name, prefix="transformer")
            results[name] = sample()
            model.unload_lora()
            print(family, name, ((results[name] - results["none"]).norm() / results["none"].norm()).item())
        save_file(results, Path(sys.argv[1]) / family / "lora.safetensors",
                  {"case": json.dumps(dict(rank=RANK, alpha=ALPHA, groups=groups))})
