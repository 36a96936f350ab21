// The large view of a picture: what it was made with, what happened, and what to do with it next.

import { h, fill, icon, iconButton, confirmButton, toast } from "./dom.js";
import { precisionName, precisionWords, seconds, bytes, moment, deviceWords, choiceWords } from "./format.js";
import { store, on, jobsOf, getJob, history, remove, model as findModel, ended } from "./store.js";
import { go, replace } from "./router.js";
import { pictures, notesOf, swap } from "./tile.js";

const AGAIN = ["prompt", "negative", "width", "height", "steps", "guidance", "model", "scheduler", "loras"];

/// A request for the same picture: the settings of `job` with the seed of its picture.
export function sameAs(job, index) {
  const out = {};
  for (const key of AGAIN) {
    const value = job.request[key];
    if (value !== undefined && value !== null && value !== "") out[key] = value;
  }
  const seed = pictures(job)[index]?.seed ?? (job.request.seed ?? 0) + index;
  return { ...out, seed, count: 1, previews: true };
}

const HOW = { native: "native", emulated: "emulated" };

/// The rows that say what a picture was made with and how it went.
export function facts(job, index) {
  const r = job.request;
  const s = job.summary ?? {};
  const result = pictures(job)[index];
  const p = s.precision ?? {};
  const lora = (r.loras ?? []).map((l) => `${l.name} at ${Number(l.strength ?? 1).toFixed(2)}`).join(", ");
  return [
    ["Model", findModel(job.model)?.title ?? job.model],
    ["Precision", p.used ? choiceWords({ ...p, how: HOW[p.how] ?? p.how }) : precisionName(r.precision)],
    ["Size", `${result?.width ?? r.width} × ${result?.height ?? r.height}`],
    ["Seed", String(result?.seed ?? r.seed ?? "")],
    ["Steps", String(r.steps ?? "")],
    findModel(job.model)?.defaults?.negative && r.guidance !== undefined ? ["Guidance", String(r.guidance)] : null,
    r.negative ? ["Avoid", r.negative] : null,
    r.scheduler ? ["Scheduler", r.scheduler] : null,
    lora ? ["LoRAs", lora] : null,
    s.seconds ? ["Time", seconds(s.seconds)] : null,
    s.device ? ["Drawn on", deviceWords(s.device.used)] : null,
    s.planned_bytes ? ["Memory", bytes(s.planned_bytes)] : null,
    job.finished ? ["Made", moment(job.finished)] : null,
  ].filter(Boolean);
}

export const factList = (rows) => h("dl.facts", null,
  rows.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));

export const noteList = (lines) => (lines.length
  ? h("div.note-list", null, lines.map((line) => h("p.note", null, icon("warn"), h("span", null, line)))) : null);

export function makeViewer({ onclose, onuse, tiles, send }) {
  const img = h("img", { alt: "" });
  const previous = iconButton("left", "Newer picture", () => step(-1));
  const next = iconButton("right", "Older picture", () => step(1));
  const close = iconButton("close", "Close", () => dialog.close());
  const side = h("div.viewer-side");
  const stage = h("div.viewer-stage", null, img, previous, next);
  const dialog = h("dialog.viewer", { "aria-label": "Picture" }, stage, side, close);
  document.body.append(dialog);
  let now = null;  // {id, index}
  let off = () => {};
  let leaving = false;

  const shown = () => tiles().filter((t) => store.jobs.get(t.id) && pictures(store.jobs.get(t.id))[t.index]);
  const position = () => shown().findIndex((t) => t.id === now?.id && t.index === now.index);

  function step(by) {
    const to = shown()[position() + by];
    if (to) replace("generate", "view", to.id, String(to.index));
  }

  dialog.addEventListener("close", () => {
    const key = now && `${now.id}/${now.index}`;
    now = null;
    off();
    if (!leaving) onclose(key);
    leaving = false;
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog || event.target === stage) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("select, input, textarea")) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });

  function actions(job, index) {
    const result = pictures(job)[index];
    const seed = result.seed ?? (job.request.seed ?? 0) + index;
    return h("div.viewer-actions", null,
      h("button.primary", { type: "button", onclick: () => onuse(job.request) }, icon("again"), "Again with these settings"),
      h("button", { type: "button", onclick: () => onuse(job.request, { seed }) }, icon("dice"), "With the same seed"),
      h("a.button", { href: result.url, download: `halftone-${seed}-${job.id}.png` }, icon("download"), "Download"),
      h("button.quiet", { type: "button", onclick: async () => {
        try { await navigator.clipboard.writeText(job.request.prompt); toast("The prompt is copied."); }
        catch { toast("This browser does not let the page copy.", "bad"); }
      } }, icon("copy"), "Copy prompt"),
      ended(job) ? confirmButton("Delete", pictures(job).length > 1 ? `Delete all ${pictures(job).length}?` : "Really delete?",
        async () => { await remove(job.id); dialog.close(); }) : null);
  }

  function twoPrecisions(job, index) {
    const m = findModel(job.model);
    if (!m || !ended(job)) return null;
    const can = m.precisions.filter((p) => p.name !== "auto" && p.support !== "unavailable").map((p) => p.name);
    if (can.length < 2) return null;
    const used = job.summary?.precision?.used;
    const first = can.includes(used) ? used : can[0];
    const second = can.find((p) => p !== first && (p === "nvfp4" || p === m.recommended?.precision))
      ?? can.find((p) => p !== first);
    const pick = (label, value) => {
      const select = h("select", { "aria-label": label }, can.map((p) => h("option", { value: p }, precisionName(p))));
      select.value = value;
      return select;
    };
    const left = pick("Left precision", first);
    const right = pick("Right precision", second);
    const button = h("button", { type: "button" }, icon("split"), "Compare");
    const error = h("p.error", { role: "alert" });
    button.addEventListener("click", async () => {
      fill(error);
      if (left.value === right.value) { fill(error, "Choose two that differ."); return; }
      button.disabled = true;
      try {
        const sides = [];
        for (const precision of [left.value, right.value]) {
          // What is on the screen already need not be drawn again.
          if (precision === used) sides.push(job.id, String(index));
          else sides.push((await send({ ...sameAs(job, index), precision })).id, "0");
        }
        go("generate", "pair", ...sides);
      } catch (problem) { fill(error, problem.message); }
      button.disabled = false;
    });
    const drawn = twins(job, index);
    return h("section.viewer-pair", null, h("h3", null, "Same seed in two precisions"),
      h("p.muted", null, "Draws this picture in both and puts them under a slider."),
      h("div.row", null, left, h("span.muted", null, "and"), right, button), error,
      drawn.length ? h("p.muted", null, "Drawn already: ", drawn.map((twin) => [
        h("a", { href: `#/generate/pair/${job.id}/${index}/${twin.id}/0` },
          precisionName(twin.summary?.precision?.used ?? twin.request.precision)), " "])) : null);
  }

  /// Finished jobs that drew the same picture in another precision.
  function twins(job, index) {
    const key = (j, i) => JSON.stringify({ ...sameAs(j, i), scheduler: j.request.scheduler });
    const mine = key(job, index);
    const used = (j) => j.summary?.precision?.used ?? j.request.precision;
    const seen = new Set([used(job)]);
    return jobsOf("generate").filter((j) => {
      if (j.id === job.id || j.state !== "done" || key(j, 0) !== mine || seen.has(used(j))) return false;
      return seen.add(used(j));
    }).slice(0, 4);
  }

  function draw() {
    const job = store.jobs.get(now?.id);
    const result = job && pictures(job)[now.index];
    if (!result) return;
    swap(img, result.url);
    img.alt = job.request.prompt;
    img.style.setProperty("--w", result.width ?? job.request.width);
    img.style.setProperty("--h", result.height ?? job.request.height);
    const at = position();
    previous.disabled = at <= 0;
    next.disabled = at < 0 || at + 1 >= shown().length;
    const used = job.summary?.precision?.used ?? job.request.precision;
    fill(side, h("p.viewer-prompt", null, job.request.prompt), noteList(notesOf(job)),
      actions(job, now.index), factList(facts(job, now.index)),
      h("p.hint", null, precisionWords(used)), twoPrecisions(job, now.index));
  }

  return {
    async show(id, index) {
      off();
      if (!store.jobs.get(id)) {
        try { await getJob(id); } catch (error) {
          toast(error.status === 404 ? "That picture is not there any more." : error.message, "bad");
          go("generate");
          return;
        }
      }
      now = { id, index };
      let signature = "";
      off = on(`job:${id}`, () => {
        const job = store.jobs.get(id);
        const mark = job && `${job.state}${job.results.length}${notesOf(job).length}`;
        if (mark && mark !== signature) { signature = mark; draw(); }
      });
      draw();
      if (!dialog.open) { dialog.showModal(); close.focus(); }
      history(id);
    },
    hide() {
      if (!dialog.open) return;
      leaving = true;
      dialog.close();
    },
  };
}
