// Numbers, sizes, times and names in words.

const PRECISIONS = {
  auto: ["Automatic", ""],
  fp32: ["FP32", "32 bits. The most exact, the most memory."],
  bf16: ["BF16", "16 bits. What models are usually made in."],
  fp8: ["FP8", "8 bits. Half the memory of BF16."],
  mxfp8: ["MXFP8", "8 bits, with a scale for every 32 values."],
  nvfp4: ["NVFP4", "4 bits. About a third of the memory of BF16."],
  "fp8-tensor": ["FP8, one scale", "8 bits, with one scale for each matrix."],
  "fp8-e5m2": ["FP8 E5M2", "8 bits, coarser and with more range than FP8."],
  "fp8-e5m2-tensor": ["FP8 E5M2, one scale", "8 bits, coarser, with one scale for each matrix."],
  "mxfp8-e5m2": ["MXFP8 E5M2", "8 bits, coarser and with more range than MXFP8."],
  "nvfp4-4over6": ["NVFP4 4/6", "4 bits, where each block chooses the better of two scales."],
  "nvfp4-16x16": ["NVFP4 16 × 16", "4 bits, with a scale for each square of 16 × 16."],
};

export const precisionName = (name) => PRECISIONS[name]?.[0] ?? String(name ?? "").toUpperCase();
export const precisionWords = (name) => PRECISIONS[name]?.[1] ?? "";

const SUPPORT = { native: "native", emulated: "emulated", unavailable: "not available" };
export const supportName = (support) => SUPPORT[support] ?? support;

const STAGES = {
  waiting: "Waiting", loading: "Loading the model", text: "Reading the prompt",
  denoising: "Drawing", decoding: "Finishing", pictures: "Encoding pictures",
  captions: "Encoding captions", training: "Training", calibrating: "Watching the model work",
  "rounding weights": "Rounding weights", "measuring layers": "Measuring each layer",
  certifying: "Measuring the result", comparing: "Drawing and measuring", writing: "Writing", saving: "Saving",
  sampling: "Drawing samples",
};
export const stageName = (stage) =>
  STAGES[stage] ?? (stage ? stage[0].toUpperCase() + stage.slice(1) : "Working");

const STATES = {
  sending: "Sending", queued: "Waiting", running: "Running", done: "Done", failed: "Failed",
  cancelled: "Stopped",
};
export const stateName = (state) => STATES[state] ?? state;

export const number = (value, digits = 0) => Number(value).toLocaleString("en", {
  minimumFractionDigits: digits, maximumFractionDigits: digits });

export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

export function bytes(value) {
  if (!Number.isFinite(value)) return "";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let v = value;
  while (v >= 1024 && at < units.length - 1) { v /= 1024; ++at; }
  return `${number(v, at && v < 100 ? 1 : 0)} ${units[at]}`;
}

export function seconds(value) {
  if (!Number.isFinite(value)) return "";
  if (value < 0.995) return `${Math.max(1, Math.round(value * 1000))} ms`;
  if (value < 9.95) return `${number(value, 1)} s`;
  if (value < 59.5) return `${Math.round(value)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 60) {
    const rest = Math.round(value - Math.floor(value / 60) * 60);
    return value < 600 && rest && rest < 60 ? `${Math.floor(value / 60)} min ${rest} s` : `${minutes} min`;
  }
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

export function ago(time, now = Date.now() / 1000) {
  const gone = now - time;
  if (gone < 45) return "just now";
  if (gone < 3600) return `${Math.max(1, Math.round(gone / 60))} min ago`;
  if (gone < 86400) return `${Math.round(gone / 3600)} h ago`;
  return new Date(time * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

export const moment = (time) =>
  new Date(time * 1000).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });

export const loss = (value) => (Number.isFinite(value)
  ? (Math.abs(value) < 0.001 ? value.toExponential(2) : value.toPrecision(4)) : "no number");

/// A device as it is chosen, "cuda:0", in words.
export const deviceWords = (name) => (name === "cpu" ? "the processor"
  : String(name).replace(/^cuda:?/, "GPU ").trim());

/// A choice that was made, in words: what, how, and why where it is not what was asked for.
export function choiceWords(choice) {
  if (!choice) return "";
  const asked = choice.asked === "auto" || !choice.asked ? "chosen here"
    : choice.asked !== choice.used ? `instead of ${precisionName(choice.asked)}` : "";
  const what = [precisionName(choice.used), choice.how, asked].filter(Boolean).join(", ");
  return choice.why && (asked || choice.how !== "native") ? `${what}: ${choice.why}` : what;
}

export function timeLeft(progress) {
  return Number.isFinite(progress?.seconds_left) && progress.seconds_left > 0.5
    ? `${seconds(progress.seconds_left)} left` : "";
}

/// A certificate in a sentence that needs no other knowledge.
export function certificateWords(c) {
  if (!c) return "";
  const reference = precisionName(c.reference ?? "bf16");
  const parts = [];
  if (Number.isFinite(c.velocity_cosine_mean)) {
    parts.push(`Each step agrees with ${reference} to ${c.velocity_cosine_mean.toFixed(4)} on average`
      + (Number.isFinite(c.velocity_cosine_worst) ? `, ${c.velocity_cosine_worst.toFixed(4)} at worst` : "")
      + " (1 is the same)");
  }
  if (Number.isFinite(c.ssim_mean)) parts.push(`finished pictures are ${c.ssim_mean.toFixed(3)} alike`);
  const prompts = Number.isFinite(c.prompts) ? `, measured on ${count(c.prompts, "prompt")}` : "";
  return parts.length ? `${parts.join("; ")}${prompts}.` : "";
}

export function certificateShort(c) {
  if (!c || !Number.isFinite(c.velocity_cosine_mean)) return "";
  return `agrees to ${c.velocity_cosine_mean.toFixed(4)}`
    + (Number.isFinite(c.ssim_mean) ? `, pictures ${c.ssim_mean.toFixed(3)} alike` : "");
}
