#!/usr/bin/env python3
"""Fixtures of samplers: whole runs of diffusers' schedulers over a network that is a formula.

    VENV/bin/python tools/golden/schedulers.py tests/data/schedulers

configs.json holds each class' config as it writes it with every field, but for -Infinity, which JSON
does not have. A case is a tensor [steps, 2 + 24]: sigma, timestep, and the latents after each step. Noise is a
function of its name (procedural.py), and the network of its input (`network` below).
"""
import json
import sys
import types
from pathlib import Path

import diffusers
import mpmath
import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from safetensors.torch import save_file

from procedural import uniform

SHAPE = (1, 2, 3, 4)
EVERY = [1, 2, 3, 4, 8, 20, 50]
SD = dict(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
COSINE = dict(beta_schedule="squaredcos_cap_v2")
ZERO = dict(SD, rescale_betas_zero_snr=True, timestep_spacing="trailing", prediction_type="v_prediction")
LEADING = dict(SD, timestep_spacing="leading", steps_offset=1)
V, X0 = dict(prediction_type="v_prediction"), dict(prediction_type="sample")
FLOW = dict(prediction_type="flow_prediction", use_flow_sigmas=True)
SMALLEST = dict(final_sigmas_type="sigma_min")

EULER = [
    (LEADING, EVERY), ({}, [1, 4, 20]), (dict(SD, timestep_spacing="trailing"), [1, 3, 20]),
    (dict(SD, timestep_spacing="linspace"), [2, 20]), (dict(LEADING, **V), [4, 20]), (dict(LEADING, **X0), [4, 20]),
    (dict(COSINE, steps_offset=3), [4, 20]), (ZERO, [1, 4, 20]),
]
SOLVER = EULER + [
    (dict(LEADING, use_karras_sigmas=True), [1, 4, 20, 50]), (dict(LEADING, use_exponential_sigmas=True), [4, 20]),
    (dict(SD, use_beta_sigmas=True), [1, 4, 20]), (dict(LEADING, use_karras_sigmas=True, **V), [8]),
    (dict(COSINE, use_karras_sigmas=True, **X0), [8]),
    (dict(SD, solver_order=1), [3, 20]), (dict(SD, solver_order=3), EVERY), (dict(LEADING, solver_order=3, **V), [4, 20]),
    (dict(SD, solver_order=3, use_karras_sigmas=True), [20]), (dict(SD, **SMALLEST), [1, 4, 20]),
    (dict(SD, solver_order=3, lower_order_final=False, **SMALLEST), [3, 8, 20]),
    (dict(SD, solver_order=2, lower_order_final=False, **SMALLEST), [1, 8]),
    (dict(FLOW, flow_shift=3.0), EVERY), (dict(FLOW, flow_shift=1.0, solver_order=3), [4, 20]),
    (dict(FLOW, flow_shift=5.0, solver_order=1), [4]),
    (dict(FLOW, use_dynamic_shifting=True), [4, 20], dict(tokens=1024)),
]
CASES = {
    "EulerDiscreteScheduler": EULER + [
        (dict(LEADING, use_karras_sigmas=True), [1, 4, 20]), (dict(SD, use_karras_sigmas=True, sigma_min=0.002, sigma_max=80.0), [8]),
        (dict(SD, use_exponential_sigmas=True), [4, 20]), (dict(SD, use_beta_sigmas=True), [1, 4, 20]),
        (dict(LEADING, **SMALLEST), [4, 20])],
    "EulerAncestralDiscreteScheduler": [case for case in EULER if case[0].get("prediction_type") != "sample"],
    "DDIMScheduler": [(dict(config, clip_sample=False, set_alpha_to_one=i % 2 == 1), steps) for i, (config, steps) in enumerate(EULER)] + [
        (dict(LEADING, clip_sample=False), [4], dict(eta=0.5)), (dict(LEADING, clip_sample=False), [1, 20], dict(eta=1.0)),
        (dict(ZERO, clip_sample=False), [4], dict(eta=1.0)), (dict(ZERO, clip_sample=False, **X0), [4])],
    "DPMSolverMultistepScheduler": SOLVER + [
        (dict(SD, solver_type="heun"), [4, 20]), (dict(SD, euler_at_final=True, **SMALLEST), [8, 20]),
        (dict(SD, use_lu_lambdas=True), [4, 20]), (dict(COSINE, lambda_min_clipped=-5.1), [4, 20]),
        (dict(COSINE, lambda_min_clipped=-5.1, timestep_spacing="leading"), [4, 20]),
        (dict(LEADING, algorithm_type="sde-dpmsolver++"), EVERY), (dict(SD, algorithm_type="sde-dpmsolver++", solver_type="heun", **V), [4, 20]),
        (dict(SD, algorithm_type="sde-dpmsolver++", solver_order=1, **SMALLEST), [4]),
        (dict(SD, algorithm_type="sde-dpmsolver++", use_karras_sigmas=True), [20]),
        (dict(FLOW, algorithm_type="sde-dpmsolver++", flow_shift=3.0), [4, 20])],
    "UniPCMultistepScheduler": SOLVER + [
        (dict(SD, solver_type="bh1", **SMALLEST), [1, 3, 20]), (dict(SD, solver_type="bh1", solver_order=3, **SMALLEST), [8]),
        (dict(FLOW, flow_shift=5.0, solver_order=3), [8, 50]), (dict(FLOW, use_karras_sigmas=True), [8]),
        (dict(FLOW, use_dynamic_shifting=True, shift_terminal=0.02), [8], dict(tokens=2048))],
    "FlowMatchEulerDiscreteScheduler": [
        (dict(shift=3.0), EVERY), (dict(shift=1.0), [4]), (dict(use_dynamic_shifting=True), [4, 28], dict(tokens=4096)),
        (dict(use_dynamic_shifting=True, time_shift_type="linear"), [8], dict(tokens=1024)),
        (dict(use_dynamic_shifting=True), [4, 50], dict(tokens=4096, mu_rule="flux2")),
        (dict(use_dynamic_shifting=True), [8], dict(tokens=6144, mu_rule="flux2")),
        (dict(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02), [2, 20], dict(tokens=4096)),
        (dict(shift=3.0), [1, 4, 28], dict(spacing="trained")), (dict(shift=3.0, stochastic_sampling=True), [1, 8]),
        (dict(shift=3.0, use_karras_sigmas=True), [1, 8]), (dict(shift=3.0, use_exponential_sigmas=True), [8]),
        (dict(shift=3.0, use_beta_sigmas=True), [8])],
}


class Beta:
    """scipy.stats.beta, by another hand."""

    @staticmethod
    def ppf(p, a, b):
        if p in (0.0, 1.0):
            return float(p)
        value = lambda x: mpmath.betainc(a, b, 0, x, regularized=True) - p
        return float(mpmath.findroot(value, (0, 1), solver="anderson", tol=1e-25))


def noise(name):
    return torch.from_numpy(uniform(name, SHAPE)) * 3**0.5


def network(x, t):
    i = torch.arange(x.numel(), dtype=torch.float64).reshape(SHAPE)
    return (1.5 * torch.tanh((0.5 + 0.03 * i) * x.double() + 0.8 * float(t) / 1000 + 0.1 * (i % 5) - 0.2)).float()


def patched(kind):
    """The class, with numbers instead of random ones and without scipy."""
    module = sys.modules[getattr(diffusers, kind).__module__]
    module.is_scipy_available = lambda: True
    module.scipy = types.SimpleNamespace(stats=types.SimpleNamespace(beta=Beta))
    return module, getattr(diffusers, kind)


def run(kind, config, steps, tokens=0, mu_rule="linear", spacing="by_step", eta=0.0):
    module, cls = patched(kind)
    s = cls(**config)
    arguments = {}
    if kind.startswith("FlowMatch") and spacing == "by_step":
        arguments["sigmas"] = np.linspace(1.0, 1 / steps, steps)
    if config.get("use_dynamic_shifting"):
        c = dict(base_image_seq_len=256, max_image_seq_len=4096, base_shift=0.5, max_shift=1.15)
        c.update({k: v for k, v in config.items() if k in c})
        arguments["mu"] = (compute_empirical_mu(tokens, steps) if mu_rule == "flux2" else
                           calculate_shift(tokens, c["base_image_seq_len"], c["max_image_seq_len"], c["base_shift"], c["max_shift"]))
    s.set_timesteps(**arguments) if "sigmas" in arguments else s.set_timesteps(steps, **arguments)
    if hasattr(s, "set_begin_index"):
        s.set_begin_index(0)
    if "Ancestral" in kind:  # its difference of squares cancels in float, down to NaN
        s.sigmas = s.sigmas.double()
    scale = float(getattr(s, "init_noise_sigma", 1.0))
    x, rows = noise("noise") * scale, []
    for i, t in enumerate(s.timesteps):
        module.randn_tensor = lambda *_, **__: noise(f"noise.{i}")
        scaled = s.scale_model_input(x, t) if hasattr(s, "scale_model_input") else x
        sigma = float(s.sigmas[i]) if hasattr(s, "sigmas") else float(((1 - s.alphas_cumprod[t].clamp(min=2**-24)) / s.alphas_cumprod[t].clamp(min=2**-24)) ** 0.5)
        x = s.step(network(scaled, t), t, x, return_dict=False, **({"eta": eta} if eta else {}))[0]
        rows.append([sigma, float(t), *x.flatten().tolist()])
    table = torch.tensor(rows, dtype=torch.float32)
    assert table.shape == (steps, 26) and table.isfinite().all(), (kind, config, steps, table)
    return table, scale


def every_number_of_steps():
    """Sums of timestep times position, modulo a prime, for 1 .. 1000 steps."""
    rows = []
    for kind, config in [("DDIMScheduler", dict(steps_offset=0)), ("DPMSolverMultistepScheduler", dict(steps_offset=1))]:
        for spacing in ["leading", "trailing", "linspace"]:
            s = getattr(diffusers, kind)(**SD, **config, timestep_spacing=spacing)
            row = []
            for steps in range(1, 1001):
                s.set_timesteps(steps)
                t = s.timesteps.numpy()[:steps]  # diffusers gives one more for some
                row.append(int((t * np.arange(1, steps + 1)).sum()) % 65521)
            rows.append(row)
    return torch.tensor(rows, dtype=torch.float32)


def full_config(kind):
    config = json.loads(getattr(diffusers, kind)().to_json_string())
    return {k: None if v == float("-inf") else v for k, v in config.items() if k != "_diffusers_version"}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "configs.json").write_text(json.dumps([full_config(kind) for kind in CASES], indent=1) + "\n")
    for kind, entries in CASES.items():
        tensors, cases = {}, []
        for config, all_steps, *more in entries:
            for steps in all_steps:
                options = more[0] if more else {}
                tensors[str(len(cases))], scale = run(kind, config, steps, **options)
                cases.append(dict(config=dict(_class_name=kind, **config), steps=steps, initial_scale=scale, **options))
        save_file(tensors, folder / f"{kind}.safetensors", {"cases": json.dumps(cases)})
        print(kind, len(cases))
    save_file({"sums": every_number_of_steps()}, folder / "timesteps.safetensors")
