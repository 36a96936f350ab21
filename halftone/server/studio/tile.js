// One picture of the gallery. It has its final shape from the first moment; what is drawn sharpens in
// place, and what went otherwise than asked is written on it.

import { h, fill, icon, iconButton, setText, toast } from "./dom.js";
import { precisionName, stageName, seconds, timeLeft } from "./format.js";
import { store, liveOf, ended, cancel, remove } from "./store.js";
import { address } from "./router.js";

export const pictures = (job) => job.results.filter((r) => r.media === "image");

/// The tiles of a job: {key, job, index}.
export function tilesOf(job) {
  const there = pictures(job).length;
  const wanted = ended(job) ? Math.max(there + (job.state === "done" ? 0 : 1), 1) : job.request.count ?? 1;
  return Array.from({ length: Math.max(wanted, there) },
    (_, index) => ({ key: `${job.id}/${index}`, id: job.id, index }));
}

/// What went otherwise than asked, each sentence once.
export function notesOf(job) {
  const live = liveOf(job.id);
  return [...new Set([...(job.summary?.fallbacks ?? []), ...(job.warnings ?? []),
    ...live.fallbacks, ...live.warnings])];
}

/// Shows a picture once it is decoded, so that nothing flickers.
export function swap(img, url) {
  if (img.wanted === url) return;
  img.wanted = url;
  const next = new Image();
  next.src = url;
  const put = () => { if (img.wanted === url) { img.src = url; img.hidden = false; } };
  next.decode().then(put, () => {});
}

export function progressWords(job) {
  const p = job.progress;
  if (job.cancelling && !ended(job)) return "Stopping…";
  if (job.state === "sending") return "Sending…";
  if (job.state === "queued") {
    return job.position ? `Waiting: ${job.position} before it` : "Waiting: next";
  }
  if (!p) return "Starting…";
  if (p.stage === "denoising" && p.total) {
    // The steps of all pictures of the job are counted together.
    const many = (job.request.count ?? 1) > 1;
    return [many ? `${Math.floor((100 * p.done) / p.total)}% drawn` : `Step ${p.done} / ${p.total}`, timeLeft(p)]
      .filter(Boolean).join(" · ");
  }
  return `${stageName(p.stage)}…`;
}

export const part = (job) => (job.progress?.total ? job.progress.done / job.progress.total : 0);

export function makeTile({ key, id, index }, { onretry }) {
  const img = h("img", { alt: "", decoding: "async", hidden: true, draggable: false });
  const dots = h("span.dots", { "aria-hidden": "true" });
  const open = h("a.open", { href: address("generate", "view", id, String(index)), data: { key } });
  const words = h("span.words");
  const bar = h("span.bar-fill");
  const stop = iconButton("close", "Cancel this picture", async () => {
    stop.disabled = true;
    try { await cancel(id); } catch (error) { toast(error.message, "bad"); stop.disabled = false; }
  });
  const meter = h("div.meter", null, h("div.meter-row", null, words, stop), h("div.bar-line", null, bar));
  const notes = h("div.notes");
  const problem = h("div.problem");
  const frame = h("div.frame", null, dots, img, open, notes, meter, problem);
  const prompt = h("p.tile-prompt");
  const meta = h("p.tile-meta");
  const node = h("article.tile", null, frame, prompt, meta);
  let shown = "";

  function drawProblem(job) {
    const failed = job.state === "failed";
    fill(problem, h("p.problem-title", null, icon(failed ? "warn" : "stop"), failed ? "This did not work" : "Stopped"),
      failed ? h("p", null, job.error?.message ?? "No reason was given.") : null,
      h("div.row", null,
        h("button.small", { type: "button", onclick: () => onretry(job) }, "Try again"),
        h("button.quiet.small", { type: "button", onclick: async () => {
          try { await remove(id); } catch (error) { toast(error.message, "bad"); }
        } }, "Remove")));
  }

  function update() {
    const job = store.jobs.get(id);
    if (!job) return;
    const result = pictures(job)[index];
    const r = job.request;
    const ratio = (result?.width ?? r.width ?? 1) / (result?.height ?? r.height ?? 1);
    node.style.setProperty("--ratio", String(Math.min(2.6, Math.max(0.42, ratio))));
    const state = result ? "done" : ended(job) ? "over" : job.state;
    const live = liveOf(id);
    node.dataset.state = state;
    open.hidden = !result;
    meter.hidden = state === "done" || state === "over";
    problem.hidden = state !== "over";
    if (result) {
      swap(img, result.url);
      img.alt = result.prompt ?? r.prompt ?? "";
      open.setAttribute("aria-label", `Open: ${r.prompt}${index ? `, picture ${index + 1}` : ""}`);
    } else if (live.previews.has(index) && !ended(job)) {
      swap(img, live.previews.get(index));
      img.alt = "Preview";
    }
    dots.style.setProperty("--part", String(part(job)));
    setText(words, progressWords(job));
    bar.style.setProperty("--part", String(part(job)));
    stop.hidden = job.state === "sending";
    stop.disabled = Boolean(job.cancelling);
    setText(prompt, r.prompt ?? "");
    prompt.title = r.prompt ?? "";
    const used = job.summary?.precision?.used;
    const asked = r.precision ?? "auto";
    setText(meta, [precisionName(used ?? asked), `${r.width} × ${r.height}`,
      job.summary?.seconds ? seconds(job.summary.seconds) : r.steps ? `${r.steps} steps` : ""].filter(Boolean).join(" · "));
    const lines = notesOf(job);
    const signature = `${state}|${lines.join("\n")}|${job.error?.message}`;
    if (signature === shown) return;
    shown = signature;
    fill(notes, lines.map((line) => h("p.note", { title: line }, icon("warn"), h("span", null, line))));
    if (state === "over") drawProblem(job);
    if (state === "over" || state === "done") stop.blur();
  }

  return { node, update };
}
