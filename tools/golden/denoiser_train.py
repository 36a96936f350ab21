#!/usr/bin/env python3
"""Fixtures of training runs of tiny FLUX.1 and Stable Diffusion 3 transformers and of a tiny U-Net of SDXL: 20 steps of
AdamW on a low-rank adapter, and on all weights, by PyTorch, diffusers and PEFT. The C++ test trains on the same data.
Also what noise predictors are taught at each timestep of training, with min-SNR weights.

    VENV/bin/pip install torch diffusers transformers peft safetensors
    VENV/bin/python tools/golden/denoiser_train.py tests/data [FAMILY ...]
"""
import json
import sys
from pathlib import Path

from denoiser import gradients, inputs_of, unit  # first: it says which instructions torch may use

import torch
from diffusers import DDPMScheduler, FluxTransformer2DModel, SD3Transformer2DModel, UNet2DConditionModel
from diffusers.training_utils import compute_snr
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save_file

import flux1_transformer
import sd3_transformer
import sdxl_unet
from procedural import fill, uniform, weight

STEPS, RANK, ALPHA, GAMMA = 20, 4, 6.0, 5.0
ADAMW = dict(lr=2e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)
ADAMW_FULL = dict(lr=2e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.02)


def flux1():
    case = flux1_transformer.CASES["small"]
    # While it is trained the network is told of no guidance.
    return dict(case, guidance=[1.0] * 2), fill(FluxTransformer2DModel(**case["config"])), flux1_transformer.velocity


def sd3():
    case = sd3_transformer.CASES["small"]
    model = fill(SD3Transformer2DModel(**case["config"]))
    table = model.pos_embed.pos_embed
    table.copy_(torch.from_numpy(weight("pos_embed.pos_embed", tuple(table.shape))))
    return case, model, sd3_transformer.velocity


def sdxl():
    case = sdxl_unet.CASES["small"]
    return dict(case, predicts="noise"), fill(UNet2DConditionModel(**case["config"])), sdxl_unet.velocity


def noise_scheduler(prediction):
    return DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type=prediction)


def min_snr(scheduler, timesteps):
    """As training scripts weigh the error of what is predicted."""
    snr = compute_snr(scheduler, timesteps)
    limited = torch.minimum(snr, torch.full_like(snr, GAMMA))
    return limited / (snr + 1 if scheduler.config.prediction_type == "v_prediction" else snr)


def taught(step, x, noise, case, out):
    """What is shown at a step, what is to be predicted, the network's time, and weights of rows where they differ."""
    u = torch.from_numpy(uniform(f"train.sigma.{step}", (x.shape[0],)))
    if "predicts" not in case:
        sigma = u * 0.45 + 0.5
        s = sigma[:, None, None, None]
        return (1 - s) * x + s * noise, noise - x, sigma.tolist(), None
    scheduler = noise_scheduler("epsilon")
    t = (torch.from_numpy(uniform(f"train.sigma.{step % 4}", (x.shape[0],))) * 499 + 500).long()
    ones, zeros = torch.ones(x.shape[0]), torch.zeros(x.shape[0])
    for name, values in (("timesteps", t), ("signal", scheduler.add_noise(ones, zeros, t)),
                         ("level", scheduler.add_noise(zeros, ones, t)), ("weights", min_snr(scheduler, t))):
        out.setdefault(name, []).append(values.float())
    return scheduler.add_noise(x, noise, t), noise, (t / 1000).tolist(), min_snr(scheduler, t)


def train(model, case, velocity, trained, adamw, first_gradients):
    """Losses of all steps, and the gradients of the first."""
    optimizer = torch.optim.AdamW(trained.values(), **adamw)
    losses, first, shown = [], {}, {}
    for step in range(STEPS):
        x, text, pooled = inputs_of(f"train.{step % 4}", case)
        noise = unit(f"train.noise.{step}", tuple(x.shape))
        noisy, target, sigmas, weights = taught(step, x, noise, case, shown)
        sample = velocity(model, dict(case, sigmas=sigmas), noisy, text, pooled)
        squares = (sample - target) ** 2
        loss = squares.mean() if weights is None else (squares.mean(dim=(1, 2, 3)) * weights).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            first = first_gradients()
        optimizer.step()
        losses.append(loss.item())
    return losses, first | {name: torch.stack(rows) for name, rows in shown.items()}


def save(path, losses, tensors, description):
    tensors = {k: v.detach().clone().contiguous().float() for k, v in tensors.items()}
    save_file(dict(tensors, losses=torch.tensor(losses)), path, {"case": json.dumps(description)})
    print(path, losses[0], losses[-1], len(tensors), "tensors")


def main(folder, name, make):
    case, model, velocity = make()
    model.requires_grad_(False)
    about = dict(config=json.loads(model.to_json_string()), size=case["size"], text=case["text"],
                 rows=len(case["sigmas"]), **{k: case[k] for k in ("sizes",) if k in case})
    targets = [n for n, m in model.named_modules() if "transformer_blocks" in n and isinstance(m, torch.nn.Linear)]
    inject_adapter_in_model(LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets, lora_dropout=0.0), model)
    trained = {n.replace(".default", ""): p for n, p in model.named_parameters() if "lora_" in n}
    with torch.no_grad():
        for key, p in trained.items():
            p.copy_(torch.from_numpy(uniform(f"train.{key}", tuple(p.shape))) * (0.2 if "lora_A" in key else 0.02))
            p.requires_grad_(True)
    losses, first = train(model, case, velocity, trained, ADAMW,
                          lambda: {f"grad.{n}": p.grad.clone() for n, p in trained.items()})
    save(folder / name / "train.safetensors", losses, first,
         dict(about, rank=RANK, alpha=ALPHA, adamw=ADAMW, targets=len(targets)))

    case, model, velocity = make()
    model.requires_grad_(True)
    trained = dict(model.named_parameters())
    losses, first = train(model, case, velocity, trained, ADAMW_FULL, lambda: gradients(model))
    save(folder / name / "train_full.safetensors", losses, first, dict(about, adamw=ADAMW_FULL, targets=len(trained)))


def objectives(folder):
    """By timestep: factors of the picture and of noise in what is shown and in what is to be predicted; weights."""
    out, t = {}, torch.arange(1000)
    ones, zeros = torch.ones(1000), torch.zeros(1000)
    for prediction in ("epsilon", "v_prediction"):
        scheduler = noise_scheduler(prediction)
        rows = [scheduler.add_noise(ones, zeros, t), scheduler.add_noise(zeros, ones, t)]
        if prediction == "epsilon":
            rows += [zeros, ones]
        else:
            rows += [scheduler.get_velocity(ones, zeros, t), scheduler.get_velocity(zeros, ones, t)]
        out[prediction] = torch.stack([*rows, min_snr(scheduler, t)], 1).contiguous()
    save_file(out, folder / "sdxl" / "objectives.safetensors", {"gamma": str(GAMMA)})


if __name__ == "__main__":
    makers = dict(flux1=flux1, sd3=sd3, sdxl=sdxl)
    for name in sys.argv[2:] or makers:
        main(Path(sys.argv[1]), name, makers[name])
        if name == "sdxl":
            objectives(Path(sys.argv[1]))
