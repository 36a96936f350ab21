// A quantization or comparison: how far it is, and its result in plain words.

import { h, fill, icon, confirmButton, setText, toast } from "./dom.js";
import { precisionName, bytes, seconds, number, stateName, stageName, timeLeft, certificateWords, ago } from "./format.js";
import { store, on, ended, cancel, remove, history, model as findModel } from "./store.js";
import { notesOf, part } from "./tile.js";
import { noteList, factList } from "./viewer.js";

function budgetWords(budget) {
  const [kind, value] = String(budget || "none").split("=");
  if (kind === "cosine") return `agrees at least to ${value}`;
  if (kind === "bytes") return `at most ${bytes(Number(value))} of quantized layers`;
  return kind === "auto" ? "automatic" : "none: every layer in the format";
}

function quantized(job) {
  const s = job.summary ?? {};
  const share = s.bytes_after && s.bytes_before ? s.bytes_after / s.bytes_before : 0;
  return [
    h("p.result-line", null, h("b", null, s.model ?? job.request.name), " is ready",
      share ? `: ${bytes(s.bytes_after)} instead of ${bytes(s.bytes_before)}, ${number(100 * share)}% of the size.` : "."),
    share ? h("div.size-bars", { "aria-hidden": "true" }, h("span", { vars: { "--part": "1" } }), h("span.after", { vars: { "--part": String(share) } })) : null,
    s.certificate ? h("p.certificate", null, icon("check"), h("span", null, certificateWords(s.certificate))) : null,
  ];
}

function compared(job) {
  const rows = job.summary?.rows ?? [];
  if (!rows.length) return [];
  const head = ["Precision", "Each step agrees", "Pictures alike", "Time per step", "Weights"];
  return [h("div.scroll", { tabIndex: 0, role: "group", "aria-label": "Results" }, h("table", null,
    h("thead", null, h("tr", null, head.map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, rows.map((r) => h("tr", null, h("th", { scope: "row" }, r.precision === "floor" ? "Chance" : findModel(r.precision)?.title ?? precisionName(r.precision)),
      h("td", null, Number.isFinite(r.velocity_cosine) ? r.velocity_cosine.toFixed(4) : ""),
      h("td", null, Number.isFinite(r.ssim) ? r.ssim.toFixed(3) : ""),
      h("td", null, r.precision === "floor" ? "" : seconds(r.seconds)), h("td", null, r.bytes ? bytes(r.bytes) : "")))))),
  h("p.hint", null, `Agreement with ${precisionName(job.request.reference ?? "bf16")}; 1 is the same. `
    + "Chance is that precision against itself, disturbed by a rounding: smaller differences mean nothing.")];
}

export function makeJobCard(id, { onuse, oncompare }) {
  const title = h("h3");
  const badge = h("span.badge.state");
  const doing = h("p.muted");
  const bar = h("span.bar-fill");
  const meter = h("div.bar-line", null, bar);
  const body = h("div.card-body");
  const actions = h("div.row");
  const node = h("article.card", null, h("div.card-head", null, h("div.title-row", null, title, badge), doing), meter, body, actions);
  let shown = "";

  function drawBody(job) {
    const r = job.request;
    const quantize = job.kind === "quantize";
    const page = job.results.find((x) => x.media === "page");
    const done = job.state === "done";
    fill(body, noteList([...new Set([...notesOf(job), ...(job.summary?.notes ?? [])])]),
      job.state === "failed" ? h("p.note.bad", null, icon("warn"), h("span", null, job.error?.message ?? "No reason was given.")) : null,
      done ? (quantize ? quantized(job) : compared(job)) : null,
      factList([["Model", findModel(job.model)?.title ?? job.model],
        quantize ? ["Format", precisionName(r.format)] : ["Precisions", (r.precisions ?? []).map(precisionName).join(", ")],
        quantize ? ["Budget", budgetWords(r.budget)] : ["Compared with", precisionName(r.reference ?? "bf16")],
        job.started && job.finished ? ["Time", seconds(job.finished - job.started)] : null].filter(Boolean)));
    const made = done && quantize && findModel(job.summary?.model);
    fill(actions,
      page ? h("a.button.primary", { href: page.url, target: "_blank", rel: "noopener" }, icon("open"), "Open the report") : null,
      made ? h("button.primary", { type: "button", onclick: () => onuse(made.id) }, icon("spark"), "Generate with it") : null,
      made ? h("button", { type: "button", onclick: () => oncompare(made.id) }, icon("split"), "Compare it") : null,
      !ended(job) ? h("button", { type: "button", disabled: job.cancelling, onclick: async () => {
        try { await cancel(id); } catch (error) { toast(error.message, "bad"); }
      } }, icon("stop"), job.cancelling ? "Stopping…" : "Cancel") : null,
      ended(job) ? confirmButton("Remove", quantize && done ? "Remove from this list?" : "Really remove?", () => remove(id)) : null);
  }

  function update() {
    const job = store.jobs.get(id);
    if (!job) return;
    const quantize = job.kind === "quantize";
    setText(title, quantize ? `${job.request.name}` : `${findModel(job.model)?.title ?? job.model}, compared`);
    setText(badge, stateName(job.state));
    badge.dataset.state = job.state;
    const p = job.progress;
    setText(doing, job.state === "running"
      ? [`${stageName(p?.stage)}${p?.total ? `: ${p.done} of ${p.total}` : ""}`, timeLeft(p)].filter(Boolean).join(" · ")
      : job.state === "queued" ? job.position ? `Waiting: ${job.position} before it` : "Waiting: next"
        : ago(job.finished ?? job.created));
    meter.hidden = ended(job);
    bar.style.setProperty("--part", String(part(job)));
    const mark = JSON.stringify([job.state, job.cancelling, job.results.length, job.summary, notesOf(job), job.error,
      Boolean(findModel(job.summary?.model))]);
    if (mark === shown) return;
    shown = mark;
    drawBody(job);
    if (ended(job)) history(id);
  }

  const offs = [on(`job:${id}`, update), on("info", update)];
  return { node, update, remove: () => offs.forEach((off) => off()) };
}
