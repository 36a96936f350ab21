// The System tab: what this machine can do, what is loaded, what is waiting.

import { h, fill, icon, keyed, setText, toast, confirmButton } from "./dom.js";
import { bytes, seconds, count, number, precisionName, stageName, supportName } from "./format.js";
import { store, on, loadInfo, loadLoras, jobsOf, cancel, ended, model as findModel } from "./store.js";
import { whyUnfit } from "./lora_upload.js";
import { badge } from "./choices.js";
import { progressWords, part } from "./tile.js";
import { address } from "./router.js";
import { api } from "./api.js";

const KINDS = { generate: "Picture", train: "Training", quantize: "Quantization", compare: "Comparison" };

function whereTo(job) {
  if (job.kind === "train") return address("train", "runs", job.id);
  return address(job.kind === "generate" ? "generate" : "quantize");
}

function queueRow(job) {
  const what = h("a", { href: whereTo(job) });
  const words = h("span.muted");
  const bar = h("span.bar-fill");
  const stop = h("button.small", { type: "button", onclick: async () => {
    stop.disabled = true;
    try { await cancel(job.id); } catch (error) { toast(error.message, "bad"); stop.disabled = false; }
  } }, "Cancel");
  const node = h("li.queue-row", null, h("div", null, what, h("p", null, words)), h("span.bar-line", null, bar), stop);
  const update = () => {
    const now = store.jobs.get(job.id);
    if (!now) return;
    const text = now.request.prompt ?? now.request.name ?? now.model;
    setText(what, `${KINDS[now.kind]}: ${text}`);
    stop.setAttribute("aria-label", `Cancel ${text}`);
    const p = now.progress;
    setText(words, now.kind === "generate" || now.state === "queued" || now.cancelling ? progressWords(now)
      : p ? `${stageName(p.stage)}${p.total ? `: ${number(p.done)} of ${number(p.total)}` : ""}` : "Starting…");
    stop.disabled = Boolean(now.cancelling);
    bar.style.setProperty("--part", String(part(now)));
  };
  return { node, update, remove: on(`job:${job.id}`, update) };
}

const ORDER = ["native", "emulated", "unavailable"];

function deviceCard(d) {
  const used = d.memory ? 1 - d.memory.available / d.memory.total : 0;
  return h("article.card", null,
    h("div.card-head", null, h("div.title-row", null, icon("chip"), h("h3", null, d.title || d.name)),
      h("p.muted", null, [d.kind === "cuda" ? "NVIDIA GPU" : "processor", d.threads ? count(d.threads, "thread") : ""]
        .filter(Boolean).join(" · "))),
    d.memory ? h("div", null, h("div.bar-line.tall", null, h("span.bar-fill.calm", { vars: { "--part": String(used) } })),
      h("p.hint", null, `${bytes(d.memory.available)} of ${bytes(d.memory.total)} memory free`)) : null,
    h("dl.formats", null, [...(d.formats ?? [])].sort((a, b) => ORDER.indexOf(a.support) - ORDER.indexOf(b.support)).map((f) =>
      h("div", null, h("dt", null, precisionName(f.name), badge(f.support)), h("dd", null, f.why)))));
}

function modelCard(m) {
  const loaded = m.loaded ?? [];
  return h("article.card", null,
    h("div.card-head", null, h("div.title-row", null, icon("picture"), h("h3", null, m.title),
      h("span.badge", { data: { support: loaded.length ? "native" : "plain" } }, loaded.length ? "loaded" : "not loaded")),
    h("p.muted", null, [m.family_title, bytes(m.bytes), m.path].filter(Boolean).join(" · "))),
    m.error ? h("p.note.bad", null, icon("warn"), h("span", null, m.error)) : null,
    h("dl.facts", null,
      h("div", null, h("dt", null, "In memory"), h("dd", null, loaded.length ? loaded.map(precisionName).join(" · ") : "nothing")),
      m.memory?.weights ? h("div", null, h("dt", null, "Weights"), h("dd", null, bytes(m.memory.weights))) : null,
      m.recommended ? h("div", null, h("dt", null, "Recommended"), h("dd", null,
        `${precisionName(m.recommended.precision)}: ${m.recommended.why}`)) : null,
      ORDER.map((support) => {
        const names = (m.precisions ?? []).filter((p) => p.name !== "auto" && p.support === support).map((p) => precisionName(p.name));
        return names.length ? h("div", null, h("dt", null, `Runs ${supportName(support)}`.replace("Runs not", "Not")), h("dd", null, names.join(" · "))) : null;
      }),
      h("div", null, h("dt", null, "Training"), h("dd", null, m.trains?.possible ? m.stored ? `a LoRA only: its weights are in ${precisionName(m.stored)}` : "a LoRA, or all weights" : m.trains?.why || "not possible"))));
}

function loraRow(lora) {
  const fits = lora.fits.map((id) => findModel(id)?.title ?? id);
  const about = [bytes(lora.bytes), fits.length ? `fits ${fits.join(", ")}` : "", lora.trigger ? `its word: ${lora.trigger}` : "",
    lora.editable ? "" : "belongs to a folder of this machine"].filter(Boolean).join(" · ");
  const why = fits.length ? "" : whyUnfit(lora, lora.unfit[0]?.model);
  const gone = lora.editable ? confirmButton("Remove", "Really remove?", async () => {
    await api.removeLora(lora.name);
    await loadLoras();
  }, "quiet.small") : null;
  gone?.setAttribute("aria-label", `Remove the LoRA ${lora.name}`);
  return h("li.queue-row.lora-row", null, h("div", null, h("b", null, lora.name), h("p.muted", null, about),
    why ? h("p.error", null, why) : null), gone);
}

export function makeSystem(panel) {
  const queue = h("ul.queue");
  const idle = h("p.muted", null, "Nothing is running and nothing waits.");
  const room = h("p.hint");
  const devices = h("div.cards.wide-cards");
  const gpu = h("p.muted");
  const models = h("div.cards.wide-cards");
  const loras = h("ul.queue");
  const noLoras = h("p.muted", null, "None yet. Train makes them, and Generate takes those that you have as files.");
  const fallbacks = h("div");
  const about = h("div.stack");
  const error = h("p.error", { role: "status" });
  fill(panel, h("div.system", null, h("h1", null, "System"), error,
    h("section", null, h("h2", null, "Queue"), idle, queue, room),
    h("section", null, h("h2", null, "Fallbacks"), fallbacks),
    h("section", null, h("h2", null, "Devices"), gpu, devices),
    h("section", null, h("h2", null, "Models"), models),
    h("section", null, h("h2", null, "LoRAs"), noLoras, loras),
    h("section", null, h("h2", null, "About"), about)));
  const uptime = h("dd");
  let visible = false;

  function drawQueue() {
    const jobs = jobsOf("generate", "train", "quantize", "compare").filter((j) => !ended(j) && j.state !== "sending")
      .sort((a, b) => (b.state === "running") - (a.state === "running") || (a.position ?? 0) - (b.position ?? 0));
    keyed(queue, jobs, (j) => j.id, queueRow);
    idle.hidden = jobs.length > 0;
    const most = store.info.queue?.most ?? store.info.limits?.most_queued;
    setText(room, most ? `Up to ${number(most)} can wait.` : "");
  }

  const drawn = new Map();
  /// Draws a part again only where what it shows has changed, so that the focus stays.
  function once(part0, what, action) {
    const text = JSON.stringify(what);
    if (drawn.get(part0) === text) return;
    drawn.set(part0, text);
    action();
  }

  function draw() {
    const { info } = store;
    setText(uptime, seconds(info.uptime));
    once(fallbacks, info.fallbacks, () => fill(fallbacks, info.fallbacks?.length ? h("div.note-list", null, info.fallbacks.map((line) =>
      h("p.note", null, icon("warn"), h("span", null, line))))
      : h("p.muted", null, "None: everything that is loaded runs as it was asked to.")));
    setText(gpu, info.why_no_gpu ? `No GPU is used: ${info.why_no_gpu}` : "");
    gpu.hidden = !info.why_no_gpu;
    once(devices, info.devices, () => fill(devices, info.devices.map(deviceCard)));
    once(models, info.models, () => fill(models,
      info.models.length ? info.models.map(modelCard) : h("p.muted", null, "No model was found.")));
    once(about, [info.version, info.limits, info.needs_key], () => fill(about, h("dl.facts", null,
      h("div", null, h("dt", null, "Version"), h("dd", null, `Halftone ${info.version}`)),
      h("div", null, h("dt", null, "Running for"), uptime),
      h("div", null, h("dt", null, "Records"), h("dd", null, info.store ?? "")),
      h("div", null, h("dt", null, "Limits"), h("dd", null, [`${number((info.limits?.most_pixels ?? 0) / 1e6, 1)} megapixels`,
        info.limits?.most_steps ? `${number(info.limits.most_steps)} steps` : "",
        info.limits?.most_count ? `${number(info.limits.most_count)} pictures at once` : "",
        info.limits?.most_upload_bytes ? `${bytes(info.limits.most_upload_bytes)} per picture to train on` : "",
        info.limits?.most_lora_bytes ? `${bytes(info.limits.most_lora_bytes)} per LoRA` : ""].filter(Boolean).join(", ")))),
    h("div.row", null, h("a.button", { href: "/openapi.json", target: "_blank", rel: "noopener" }, icon("open"), "API description"),
      h("a.button", { href: "/metrics", target: "_blank", rel: "noopener" }, icon("open"), "Metrics"),
      info.needs_key ? h("button.quiet", { type: "button", onclick: async () => {
        try { await api.logout(); location.reload(); } catch (problem) { toast(problem.message, "bad"); }
      } }, "Lock this page") : null)));
    drawQueue();
  }

  function drawLoras() {
    fill(loras, store.loras.map(loraRow));
    noLoras.hidden = store.loras.length > 0;
  }

  on("info", draw);
  on("loras", drawLoras);
  drawLoras();
  on("jobs", drawQueue);
  draw();
  setInterval(() => { if (visible && !document.hidden && store.connection.live) loadInfo().then(() => fill(error), () => {}); }, 10000);

  return {
    show() {
      visible = true;
      loadInfo().then(() => fill(error), (problem) => fill(error, problem.message));
    },
    leave() { visible = false; },
  };
}
