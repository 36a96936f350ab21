// The Train tab: settings on one side; the pictures, and the runs, on the other.

import { h, fill, keyed, setText, toast } from "./dom.js";
import { ago, stateName } from "./format.js";
import { store, on, submit, loadJobs, jobsOf, ended } from "./store.js";
import { go, replace, address } from "./router.js";
import { datasets, loadDatasets } from "./datasets.js";
import { arrowTabs, markTab } from "./tabs.js";
import { makeTrainForm } from "./train_form.js";
import { makeCaptions } from "./captions.js";
import { makeRun } from "./run.js";
import { part } from "./tile.js";

function runButton(job) {
  const name = h("b");
  const state = h("span.muted");
  const bar = h("span.bar-fill");
  const link = h("a.run-link", { href: address("train", "runs", job.id) }, name, state, h("span.bar-line", null, bar));
  const update = () => {
    const now = store.jobs.get(job.id);
    if (!now) return;
    setText(name, now.request.name ?? now.id);
    setText(state, ended(now) ? `${stateName(now.state)} · ${ago(now.finished ?? now.created)}` : stateName(now.state));
    bar.style.setProperty("--part", String(now.state === "done" ? 1 : part(now)));
    bar.dataset.state = now.state;
  };
  return { node: link, update, remove: on(`job:${job.id}`, update) };
}

export function makeTrain(panel) {
  const form = makeTrainForm({
    onsubmit: async (request) => {
      const job = await submit("train", request);
      go("train", "runs", job.id);
      work.scrollIntoView({ block: "start" });
    },
    onpick: (name) => go("train", "pictures", name),
  });
  const captions = makeCaptions({ onpick: (name) => {
    form.setDataset(name);
    if (name) go("train", "pictures", name);
    else { captions.show(""); go("train", "pictures"); }
  } });
  const run = makeRun({ ongone: () => go("train", "runs") });
  const runs = h("nav.runs", { "aria-label": "Runs" });
  const older = h("button.quiet.small", { type: "button", hidden: true }, "Older runs");
  const none = h("div.empty", null, h("h3", null, "No training yet"),
    h("p.muted", null, "Choose pictures, give the result a name, and start. What it learns shows here step by step."));

  const tabs = ["Pictures", "Runs"].map((text, i) => h("a", { role: "tab", id: `train-tab-${i}`,
    href: i ? "#/train/runs" : "#/train/pictures", "aria-controls": `train-area-${i}`, "aria-selected": "false", tabIndex: -1 }, text));
  const areas = [h("div.area", null, captions.node), h("div.area", null, h("div.run-list", null, runs, older), none, run.node)];
  areas.forEach((area, i) => {
    for (const [k, v] of [["role", "tabpanel"], ["id", `train-area-${i}`], ["aria-labelledby", `train-tab-${i}`]]) area.setAttribute(k, v);
  });
  arrowTabs(tabs, (to) => go("train", to ? "runs" : "pictures"));
  const work = h("div.work", null, h("div.tabs.inner", { role: "tablist", "aria-label": "Pictures or runs" }, tabs), areas);

  let current = null;
  function drawRuns() {
    const all = jobsOf("train");
    keyed(runs, all, (j) => j.id, runButton);
    for (const link of runs.children) {
      if (link.getAttribute("href") === address("train", "runs", current ?? "")) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    none.hidden = all.length > 0;
    older.hidden = !store.next.get("train");
    const live = all.filter((j) => !ended(j)).length;
    setText(tabs[1], live ? `Runs (${live})` : "Runs");
  }
  older.addEventListener("click", () => loadJobs("train", { more: true }).catch((e) => toast(e.message, "bad")));
  on("jobs", drawRuns);
  on("info", () => form.refresh());
  on("connection", () => { if (store.connection.live && !datasets.loaded) loadDatasets().catch(() => {}); });

  const ready = Promise.all([loadDatasets().then(form.offerDatasets), loadJobs("train")]).catch((error) => toast(error.message, "bad"))
    .then(() => fill(panel, h("h1.only-read", null, "Train"), h("div.sides", null, h("div.side", null, form.node), work)));
  let turn = 0;

  return {
    async show(rest) {
      const mine = ++turn;
      await ready;
      if (mine !== turn) return;
      const active = jobsOf("train").find((j) => !ended(j));
      const what = rest[0] ?? (active ? "runs" : "pictures");
      const at = what === "runs" ? 1 : 0;
      markTab(tabs, at);
      areas.forEach((area, i) => { area.hidden = i !== at; });
      if (at) {
        current = rest[1] ?? active?.id ?? jobsOf("train")[0]?.id ?? null;
        if (!rest[1] && current) { replace("train", "runs", current); return; }
        run.show(current);
      } else {
        const name = rest[1] ?? form.dataset() ?? "";
        if (rest[1] && form.dataset() !== rest[1]) form.setDataset(rest[1]);
        if (captions.current() !== name || !rest[1]) captions.show(name);
      }
      drawRuns();
    },
    leave() { ++turn; },
  };
}
