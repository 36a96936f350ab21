// The Generate tab: the form on one side, the pictures on the other, the large view above both.

import { h, fill, announce, toast } from "./dom.js";
import { store, on, submit, putJob, changed } from "./store.js";
import { go } from "./router.js";
import { makeGenerateForm } from "./generate_form.js";
import { makeGallery } from "./gallery.js";
import { makeViewer } from "./viewer.js";
import { makePair } from "./pair.js";

let sent = 0;

/// Shows a tile at once and puts the server's job in its place when it answers.
async function send(request) {
  const id = `sending-${++sent}`;
  putJob({ id, kind: "generate", state: "sending", model: request.model, created: Date.now() / 1000 + 1e6,
    started: null, finished: null, position: null, cancelling: false, can_resume: false,
    request, progress: null, results: [], summary: {}, error: null });
  try {
    const job = await submit("generate", request);
    announceEnd(job);
    return job;
  } finally {
    store.jobs.delete(id);
    store.live.delete(id);
    changed("jobs");
  }
}

function announceEnd(job) {
  const off = on(`job:${job.id}`, () => {
    const state = store.jobs.get(job.id)?.state;
    if (state === "done") announce(`Picture finished: ${job.request.prompt}`);
    if (state === "failed") announce(`A picture failed: ${store.jobs.get(job.id).error?.message ?? ""}`);
    if (!state || ["done", "failed", "cancelled"].includes(state)) off();
  });
}

export function makeGenerate(panel) {
  if (!store.info.models.length) {
    fill(panel, h("div.empty", null, h("h2", null, "No model was found"),
      h("p", null, "Start Halftone with a model, for example the one that ships with it, and reload this page."),
      h("p", null, h("a", { href: "#/system" }, "System"), " says what this machine can do.")));
    return {};
  }
  const form = makeGenerateForm({ onsubmit: (request) => {
    const promise = send(request);
    if (matchMedia("(max-width: 56rem)").matches) gallery.node.scrollIntoView({ block: "start" });
    return promise;
  } });
  const retry = (job) => send(job.request).catch((error) => toast(error.message, "bad"));
  const gallery = makeGallery({ onretry: retry, onexample: (text) => form.setPrompt(text) });
  fill(panel, h("h1.only-read", null, "Generate"),
    h("div.sides", null, h("div.side", null, form.node), gallery.node));

  const close = (key) => {
    go("generate");
    if (key) gallery.focus(key);
  };
  const use = (request, options) => {
    go("generate");
    form.use(request, options);
  };
  const viewer = makeViewer({ onclose: close, onuse: use, tiles: gallery.tiles, send });
  const pair = makePair({ onclose: close });
  on("info", () => form.refresh());
  on("loras", () => form.refreshLoras());

  return {
    show(rest) {
      if (rest[0] === "view") viewer.show(rest[1], Number(rest[2]) || 0);
      else viewer.hide();
      if (rest[0] === "pair") pair.show(rest.slice(1));
      else pair.hide();
      if (rest[0] === "model" && rest[1]) {
        form.useModel(rest[1]);
        go("generate");
      }
      if (rest[0] === "with" && rest[1]) {
        form.useLora(rest[1]);
        go("generate");
      }
    },
    leave() { viewer.hide(); pair.hide(); },
  };
}
