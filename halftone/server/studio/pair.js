// The view of one picture in two precisions: both runs as they go, then the slider and the figures.

import { h, fill, iconButton, icon, toast, announce } from "./dom.js";
import { precisionName, seconds, bytes } from "./format.js";
import { store, on, getJob, liveOf, ended, cancel } from "./store.js";
import { makeSlider } from "./slider.js";
import { pictures, notesOf, progressWords, part } from "./tile.js";
import { noteList } from "./viewer.js";
import { go } from "./router.js";

export function makePair({ onclose }) {
  const slider = makeSlider();
  const side = h("div.viewer-side");
  const close = iconButton("close", "Close", () => dialog.close());
  const dialog = h("dialog.viewer", { "aria-label": "Two precisions" },
    h("div.viewer-stage", null, slider.node), side, close);
  document.body.append(dialog);
  let sides = [];
  let offs = [];
  let leaving = false;
  let told = false;

  dialog.addEventListener("close", () => {
    offs.forEach((off) => off());
    offs = [];
    if (!leaving) onclose(sides[0] && `${sides[0].id}/${sides[0].index}`);
    leaving = false;
  });

  function sideOf({ id, index }) {
    const job = store.jobs.get(id);
    const result = pictures(job)[index];
    return { job, result, name: precisionName(job.summary?.precision?.used ?? job.request.precision),
      url: result?.url ?? liveOf(id).previews.get(index), preview: !result };
  }

  function column({ job, result, name }) {
    const how = job.summary?.precision?.how;
    return h("div.pair-column", null, h("h3", null, name, how ? h("span.badge", { data: { support: how } }, how) : null),
      result ? h("p", null, seconds(job.summary?.seconds),
        job.summary?.planned_bytes ? h("span.muted", null, ` · ${bytes(job.summary.planned_bytes)}`) : null)
        : ended(job) ? h("p.error", null, job.error?.message ?? "Stopped before it was finished.")
          : h("div", null, h("p.muted", null, progressWords(job)),
            h("div.bar-line", null, h("span.bar-fill", { vars: { "--part": String(part(job)) } }))),
      noteList(notesOf(job)));
  }

  function draw() {
    if (sides.some((s) => !store.jobs.has(s.id))) return;
    const [a, b] = sides.map(sideOf);
    const r = a.job.request;
    slider.set(a, b, r.width, r.height);
    const running = [a, b].filter((s) => !ended(s.job));
    fill(side, h("p.viewer-prompt", null, r.prompt),
      h("div.pair-columns", null, column(a), column(b)),
      running.length ? h("button.quiet", { type: "button", onclick: () => running.forEach((s) =>
        cancel(s.job.id).catch((error) => toast(error.message, "bad"))) }, icon("stop"), "Cancel") : null,
      h("p.hint", null, "Move the edge with the mouse, a finger, or the arrow keys. Small differences are not "
        + "always losses. ", h("a", { href: "#/quantize/compare" }, "A comparison"), " says how much chance alone changes."));
    if (!running.length && !told) {
      told = true;
      announce("Both pictures are finished.");
    }
  }

  return {
    async show([idA, indexA, idB, indexB]) {
      offs.forEach((off) => off());
      sides = [{ id: idA, index: Number(indexA) || 0 }, { id: idB, index: Number(indexB) || 0 }];
      told = false;
      try {
        for (const { id } of sides) if (!store.jobs.has(id)) await getJob(id);
      } catch (error) {
        toast(error.status === 404 ? "One of these pictures is not there any more." : error.message, "bad");
        go("generate");
        return;
      }
      offs = sides.map(({ id }) => on(`job:${id}`, draw));
      draw();
      if (!dialog.open) { dialog.showModal(); slider.range.focus(); }
    },
    hide() {
      if (!dialog.open) return;
      leaving = true;
      dialog.close();
    },
  };
}
