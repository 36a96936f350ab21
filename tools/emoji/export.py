"""Write the folder that diffusers' ZImagePipeline loads, in bfloat16.

    python export.py --model run/ema.pt --vae run/vae.pt --shift 1.0 --out model
"""
import argparse
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file

from data import PACK
from model import TEXT, TINY_TEXT, TINY_TRANSFORMER, TRANSFORMER
from tokenizer import TEMPLATE
from vae import TINY_VAE, VAE


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def weights(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({k: v.bfloat16().contiguous() for k, v in tensors.items()}, path, {"format": "pt"})


def part(state, prefix, rename=""):
    return {rename + k[len(prefix):]: v for k, v in state.items() if k.startswith(prefix)}


def export(out, model, vae, sampling_shift, tiny=False):
    write(out / "model_index.json", {
        "_class_name": "ZImagePipeline", "_diffusers_version": "0.36.0",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"], "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"]})
    write(out / "scheduler/scheduler_config.json", {
        "_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "use_dynamic_shifting": False,
        "shift": sampling_shift})
    text = TINY_TEXT if tiny else TEXT
    write(out / "text_encoder/config.json", {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "torch_dtype": "bfloat16",
        "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 512, "max_window_layers": text["num_hidden_layers"], "sliding_window": None,
        "use_sliding_window": False, "tie_word_embeddings": True, "use_cache": False, "bos_token_id": 2043,
        "eos_token_id": 2045, **text})
    weights(out / "text_encoder/model.safetensors", part(model, "text_encoder.", "model."))
    (out / "tokenizer").mkdir(parents=True, exist_ok=True)
    (out / "tokenizer/tokenizer.json").write_text((PACK / "tokenizer.json").read_text())
    write(out / "tokenizer/tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "model_max_length": 512,
        "padding_side": "right", "chat_template": TEMPLATE})
    write(out / "transformer/config.json", {
        "_class_name": "ZImageTransformer2DModel", "all_patch_size": [2], "all_f_patch_size": [1],
        **(TINY_TRANSFORMER if tiny else TRANSFORMER)})
    weights(out / "transformer/diffusion_pytorch_model.safetensors", part(model, "transformer."))
    c = TINY_VAE if tiny else VAE
    levels = len(c["channels"])
    write(out / "vae/config.json", {
        "_class_name": "AutoencoderKL", "act_fn": "silu", "block_out_channels": c["channels"],
        "down_block_types": ["DownEncoderBlock2D"] * levels, "up_block_types": ["UpDecoderBlock2D"] * levels,
        "force_upcast": False, "in_channels": 3, "out_channels": 3, "latent_channels": c["latent"],
        "layers_per_block": c["layers"], "mid_block_add_attention": True, "norm_num_groups": c["groups"], "sample_size": 128,
        "scaling_factor": vae["scale"], "shift_factor": vae["shift"], "use_quant_conv": False, "use_post_quant_conv": False})
    state = dict(vae["model"])
    # The variance was not learned: give it the constant that is a small part of the spread.
    for key, value in (("weight", 0.0), ("bias", 2 * math.log(0.02 / vae["scale"]))):
        name = f"encoder.conv_out.{key}"
        state[name] = state[name].clone()
        state[name][c["latent"]:] = value
    weights(out / "vae/diffusion_pytorch_model.safetensors", state)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="ema.pt of a run")
    parser.add_argument("--vae", type=Path, required=True)
    parser.add_argument("--shift", type=float, default=1.0, help="of the sampling schedule")
    parser.add_argument("--out", type=Path, default=Path("model"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    model = torch.load(args.model, map_location="cpu", weights_only=True)["model"]
    export(args.out, model, torch.load(args.vae, map_location="cpu", weights_only=True), args.shift, args.tiny)
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"{args.out}: {size / 2**20:.2f} MiB")
