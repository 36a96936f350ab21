#!/usr/bin/env python3
"""Fixtures of tiny transformers in one file with the names of the original code: which tensors it has, which of their
rows diffusers' converters make each of their own weights of, and what the model computes.

    VENV/bin/pip install torch diffusers transformers safetensors
    VENV/bin/python tools/golden/single_file.py tests/data
"""
import json
import sys
from pathlib import Path

import denoiser  # first: it says which instructions torch may use

import flux1_transformer
import flux2_transformer
import sd3_transformer
import sdxl_unet
import torch
from diffusers import Flux2Transformer2DModel, FluxTransformer2DModel, UNet2DConditionModel
from diffusers.loaders import single_file_utils as converters
from safetensors.torch import save_file

from procedural import weight


def linears(shapes):
    """{name: (out, in)} as tensors with biases."""
    return {f"{name}.{part}": shape if part == "weight" else shape[:1]
            for name, shape in shapes.items() for part in ("weight", "bias")}


def flux1_tensors(c):
    head, dim = c["attention_head_dim"], c["num_attention_heads"] * c["attention_head_dim"]
    shapes = {"img_in": (dim, c["in_channels"]), "txt_in": (dim, c["joint_attention_dim"]),
              "final_layer.linear": (c["in_channels"], dim), "final_layer.adaLN_modulation.1": (2 * dim, dim)}
    embedders = {"time_in": 256, "vector_in": c["pooled_projection_dim"]}
    if c["guidance_embeds"]:
        embedders["guidance_in"] = 256
    for name, width in embedders.items():
        shapes |= {f"{name}.in_layer": (dim, width), f"{name}.out_layer": (dim, dim)}
    norms = {}
    for i in range(c["num_layers"]):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}"
            shapes |= {f"{block}_mod.lin": (6 * dim, dim), f"{block}_attn.qkv": (3 * dim, dim),
                       f"{block}_attn.proj": (dim, dim), f"{block}_mlp.0": (4 * dim, dim),
                       f"{block}_mlp.2": (dim, 4 * dim)}
            norms |= {f"{block}_attn.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
    for i in range(c["num_single_layers"]):
        block = f"single_blocks.{i}"
        shapes |= {f"{block}.modulation.lin": (3 * dim, dim), f"{block}.linear1": (7 * dim, dim),
                   f"{block}.linear2": (dim, 5 * dim)}
        norms |= {f"{block}.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
    return linears(shapes) | norms


def flux2_tensors(c):
    head, dim = c["attention_head_dim"], c["num_attention_heads"] * c["attention_head_dim"]
    hidden = 3 * dim
    shapes = {"img_in": (dim, c["in_channels"]), "txt_in": (dim, c["joint_attention_dim"]),
              "time_in.in_layer": (dim, c["timestep_guidance_channels"]), "time_in.out_layer": (dim, dim),
              "double_stream_modulation_img.lin": (6 * dim, dim), "double_stream_modulation_txt.lin": (6 * dim, dim),
              "single_stream_modulation.lin": (3 * dim, dim), "final_layer.linear": (c["in_channels"], dim),
              "final_layer.adaLN_modulation.1": (2 * dim, dim)}
    norms = {}
    for i in range(c["num_layers"]):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}"
            shapes |= {f"{block}_attn.qkv": (3 * dim, dim), f"{block}_attn.proj": (dim, dim),
                       f"{block}_mlp.0": (2 * hidden, dim), f"{block}_mlp.2": (dim, hidden)}
            norms |= {f"{block}_attn.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
    for i in range(c["num_single_layers"]):
        block = f"single_blocks.{i}"
        shapes |= {f"{block}.linear1": (3 * dim + 2 * hidden, dim), f"{block}.linear2": (dim, dim + hidden)}
        norms |= {f"{block}.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
    return {f"{name}.weight": shape for name, shape in shapes.items()} | norms


def sd3_tensors(c):
    head, dim = c["attention_head_dim"], c["num_attention_heads"] * c["attention_head_dim"]
    table = {"pos_embed": (1, c["pos_embed_max_size"]**2, dim)}
    shapes = {"x_embedder.proj": (dim, c["in_channels"], 2, 2), "context_embedder": (dim, c["joint_attention_dim"]),
              "t_embedder.mlp.0": (dim, 256), "t_embedder.mlp.2": (dim, dim),
              "y_embedder.mlp.0": (dim, c["pooled_projection_dim"]), "y_embedder.mlp.2": (dim, dim),
              "final_layer.linear": (4 * c["out_channels"], dim), "final_layer.adaLN_modulation.1": (2 * dim, dim)}
    norms = {}
    for i in range(c["num_layers"]):
        last = i == c["num_layers"] - 1
        for stream in ("x_block", "context_block"):
            block = f"joint_blocks.{i}.{stream}"
            dual = stream == "x_block" and i in c["dual_attention_layers"]
            before_end = stream == "context_block" and last  # the text ends here
            shapes[f"{block}.adaLN_modulation.1"] = ((2 if before_end else 9 if dual else 6) * dim, dim)
            for attn in ("attn", "attn2") if dual else ("attn",):
                shapes[f"{block}.{attn}.qkv"] = (3 * dim, dim)
                if not before_end:
                    shapes[f"{block}.{attn}.proj"] = (dim, dim)
                if c["qk_norm"]:
                    norms |= {f"{block}.{attn}.{norm}.weight": (head,) for norm in ("ln_q", "ln_k")}
            if not before_end:
                shapes |= {f"{block}.mlp.fc1": (4 * dim, dim), f"{block}.mlp.fc2": (dim, 4 * dim)}
    return table | linears(shapes) | norms


def sdxl_tensors(c):
    """As the vendor's own U-Net counts: one list of blocks down, one up."""
    widths, time, per_level = c["block_out_channels"], 4 * c["block_out_channels"][0], c["layers_per_block"]
    depth, shapes = c["transformer_layers_per_block"], {}
    depth = depth if isinstance(depth, tuple) else (depth,) * len(widths)

    def layer(name, *shape, bias=True):
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    def resnet(name, before, width):
        layer(f"{name}.in_layers.0", before)
        layer(f"{name}.in_layers.2", width, before, 3, 3)
        layer(f"{name}.emb_layers.1", width, time)
        layer(f"{name}.out_layers.0", width)
        layer(f"{name}.out_layers.3", width, width, 3, 3)
        if before != width:
            layer(f"{name}.skip_connection", width, before, 1, 1)

    def transformer(name, width, layers):
        layer(f"{name}.norm", width)
        layer(f"{name}.proj_in", width, width)
        layer(f"{name}.proj_out", width, width)
        for i in range(layers):
            block = f"{name}.transformer_blocks.{i}"
            for attn, seen in (("attn1", width), ("attn2", c["cross_attention_dim"])):
                layer(f"{block}.{attn}.to_q", width, width, bias=False)
                layer(f"{block}.{attn}.to_k", width, seen, bias=False)
                layer(f"{block}.{attn}.to_v", width, seen, bias=False)
                layer(f"{block}.{attn}.to_out.0", width, width)
            for norm in ("norm1", "norm2", "norm3"):
                layer(f"{block}.{norm}", width)
            layer(f"{block}.ff.net.0.proj", 8 * width, width)
            layer(f"{block}.ff.net.2", width, 4 * width)

    layer("time_embed.0", time, widths[0])
    layer("time_embed.2", time, time)
    layer("label_emb.0.0", time, c["projection_class_embeddings_input_dim"])
    layer("label_emb.0.2", time, time)
    layer("input_blocks.0.0", widths[0], c["in_channels"], 3, 3)
    kept, number, width = [widths[0]], 1, widths[0]
    for level, out in enumerate(widths):
        for _ in range(per_level):
            resnet(f"input_blocks.{number}.0", width, out)
            width = out
            if "CrossAttn" in c["down_block_types"][level]:
                transformer(f"input_blocks.{number}.1", width, depth[level])
            kept.append(width)
            number += 1
        if level + 1 < len(widths):
            layer(f"input_blocks.{number}.0.op", width, width, 3, 3)
            kept.append(width)
            number += 1
    resnet("middle_block.0", width, width)
    transformer("middle_block.1", width, depth[-1])
    resnet("middle_block.2", width, width)
    number = 0
    for index, level in enumerate(reversed(range(len(widths)))):
        attends = "CrossAttn" in c["up_block_types"][index]
        for i in range(per_level + 1):
            resnet(f"output_blocks.{number}.0", width + kept.pop(), widths[level])
            width = widths[level]
            if attends:
                transformer(f"output_blocks.{number}.1", width, depth[level])
            if i == per_level and level:
                layer(f"output_blocks.{number}.{2 if attends else 1}.conv", width, width, 3, 3)
            number += 1
    layer("out.0", width)
    layer("out.2", c["out_channels"], width, 3, 3)
    return shapes


def sdxl_convert(checkpoint, config):
    prefixed = {f"model.diffusion_model.{name}": x for name, x in checkpoint.items()}
    return converters.convert_ldm_unet_checkpoint(prefixed, config)


def rows_of(shapes, convert, scale):
    """diffusers' name -> [[tensor, first row, end], ...], found by converting numbers of rows: of tensors `scale` times
    as large, where a converter knows one size alone."""
    names = sorted(shapes)
    numbered = {n: torch.arange(shapes[n][0] * scale) + 10**7 * i for i, n in enumerate(names)}
    result = {}
    for name, numbers in convert(numbered).items():
        ranges = []
        for number in numbers.tolist():
            tensor, row = names[number // 10**7], number % 10**7
            if ranges and ranges[-1][0] == tensor and ranges[-1][2] == row:
                ranges[-1][2] += 1
            else:
                ranges.append([tensor, row, row + 1])
        assert all(row % scale == 0 for r in ranges for row in r[1:]), name
        result[name] = [[tensor, begin // scale, end // scale] for tensor, begin, end in ranges]
    return result



FAMILIES = {
    "flux1": dict(cases=("small", "schnell", "aligned"), module=flux1_transformer, tensors=flux1_tensors,
                  convert=converters.convert_flux_transformer_checkpoint_to_diffusers, make=FluxTransformer2DModel,
                  width=3072),
    "flux2": dict(cases=("small", "aligned"), module=flux2_transformer, tensors=flux2_tensors,
                  convert=converters.convert_flux2_transformer_checkpoint_to_diffusers, make=Flux2Transformer2DModel),
    "sd3": dict(cases=("small", "first", "aligned"), module=sd3_transformer, tensors=sd3_tensors,
                convert=converters.convert_sd3_transformer_checkpoint_to_diffusers,
                make=lambda **config: sd3_transformer.make(config)),
    "sdxl": dict(cases=("levels",), module=sdxl_unet, tensors=sdxl_tensors, convert=sdxl_convert, width=1,
                 of_config=True, make=UNet2DConditionModel),
}


def width_of(config, row):
    """Of the model, beside the one that a converter knows."""
    return 1 if row.get("of_config") else config["num_attention_heads"] * config["attention_head_dim"]


def converter_of(config, row):
    return (lambda x: row["convert"](x, config)) if row.get("of_config") else row["convert"]


if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        row = FAMILIES[family]
        samples, described = {}, {}
        for name in row["cases"]:
            case = row["module"].CASES[name]
            config = case["config"]
            width = width_of(config, row)
            shapes = row["tensors"](config)
            rows = rows_of(shapes, converter_of(config, row), row.get("width", width) // width)
            tensors = {n: torch.from_numpy(weight(n, s)) for n, s in shapes.items()}
            model = row["make"](**config)
            model.load_state_dict({n: torch.cat([tensors[t][a:b] for t, a, b in r]) for n, r in rows.items()})
            inputs = (row["module"] if family == "flux2" else denoiser).inputs_of(name, case)
            with torch.no_grad():
                samples[name] = row["module"].velocity(model.eval(), case, *inputs).contiguous()
            described[name] = dict(tensors=shapes, rows=rows)
            print(family, name, len(shapes), "tensors,", len(rows), "weights")
        save_file(samples, Path(sys.argv[1]) / family / "single_file.safetensors", {"cases": json.dumps(described)})
