// All pictures, newest first. Reads more of them as the end comes into sight.

import { h, fill, keyed, toast, setText } from "./dom.js";
import { count } from "./format.js";
import { store, on, jobsOf, loadJobs, cancel, ended } from "./store.js";
import { makeTile, tilesOf } from "./tile.js";

const EXAMPLES = {
  emoji: ["a red apple on a blue background", "a cat next to a pizza", "an owl on a dark blue background",
    "a unicorn on a pink background"],
  other: ["a lighthouse at dusk, oil painting", "a paper boat on a calm lake, morning fog",
    "a bowl of ramen, studio photograph", "a city of glass in the rain, isometric"],
};

export function makeGallery({ onretry, onexample }) {
  const summary = h("p.muted");
  const stopAll = h("button.quiet.small", { type: "button", hidden: true }, "Cancel all");
  const head = h("div.gallery-head", null, h("h2", null, "Pictures"), summary, stopAll);
  const grid = h("div.tiles");
  const empty = h("div.empty", { hidden: true });
  const end = h("div.end", { "aria-hidden": "true" });
  const node = h("div.gallery", null, head, empty, grid, end);
  const watching = new Map();
  let loading = false;
  let loaded = false;
  let tried = false;

  const tiles = () => jobsOf("generate").flatMap(tilesOf);
  const active = () => jobsOf("generate").filter((j) => !ended(j));

  function drawHead() {
    const waiting = active();
    setText(summary, waiting.length > 1 ? `${count(waiting.length, "job")} on the way` : "");
    stopAll.hidden = waiting.length < 2;
  }

  function drawEmpty() {
    const none = loaded && !jobsOf("generate").length;
    empty.hidden = !none;
    if (!none || empty.childElementCount) return;
    const examples = EXAMPLES[store.info.models[0]?.id] ?? EXAMPLES.other;
    fill(empty, h("h3", null, "Your pictures appear here"),
      h("p.muted", null, "Write what you want to see, or start with one of these:"),
      h("div.chips", null, examples.map((text) =>
        h("button.chip", { type: "button", onclick: () => onexample(text) }, text))));
  }

  function draw() {
    if (!tried) return;  // all at once, so that nothing moves
    keyed(grid, tiles(), (t) => t.key, (t) => {
      const tile = makeTile(t, { onretry });
      const off = on(`job:${t.id}`, () => tile.update());
      return { node: tile.node, update: tile.update, remove: off };
    });
    for (const job of jobsOf("generate")) {
      if (!watching.has(job.id)) watching.set(job.id, on(`job:${job.id}`, () => redrawIfGrown(job.id)));
    }
    drawHead();
    drawEmpty();
  }

  // A failed job may need one tile less than it promised; a job that went away, none.
  const sizes = new Map();
  function redrawIfGrown(id) {
    const job = store.jobs.get(id);
    const now = job ? tilesOf(job).length : 0;
    if (sizes.get(id) !== now) {
      sizes.set(id, now);
      draw();
    }
    drawHead();
  }

  async function more() {
    if (loading) return;
    loading = true;
    try {
      await loadJobs("generate", { more: loaded, limit: 40 });
      loaded = true;
    } catch (error) {
      toast(error.message, "bad");
    } finally {
      loading = false;
      tried = true;
      draw();
    }
    // Still in sight: the screen is larger than a page of pictures.
    const sight = end.getBoundingClientRect();
    if (store.next.get("generate") && sight.height && sight.top < innerHeight + 600) setTimeout(more, 50);
  }

  stopAll.addEventListener("click", async () => {
    for (const job of active()) await cancel(job.id).catch((error) => toast(error.message, "bad"));
  });
  new IntersectionObserver((entries) => {
    if (loaded && entries.some((e) => e.isIntersecting) && store.next.get("generate")) more();
  }, { rootMargin: "600px" }).observe(end);
  on("jobs", draw);
  more();

  return { node, tiles, focus: (key) => grid.querySelector(`a[data-key="${CSS.escape(key)}"]`)?.focus() };
}
