// One training as it goes: what it is doing, its curve, its samples, and what to do with the result.

import { h, fill, icon, confirmButton, setText, toast, keyed } from "./dom.js";
import { bytes, seconds, number, precisionName, stageName, stateName, loss as lossText, count, choiceWords } from "./format.js";
import { store, on, liveOf, history, ended, cancel, resume, remove, getJob, model as findModel } from "./store.js";
import { makeChart } from "./chart.js";
import { openLightbox } from "./lightbox.js";
import { notesOf, part } from "./tile.js";
import { noteList, factList } from "./viewer.js";
import { go } from "./router.js";

const stat = (name) => {
  const value = h("dd", null, "–");
  return { node: h("div.stat", null, h("dt", null, name), value), set: (text) => setText(value, text || "–") };
};

export function makeRun({ ongone }) {
  const title = h("h2");
  const badge = h("span.badge.state");
  const doing = h("p.muted", { role: "status" });
  const actions = h("div.row");
  const bar = h("span.bar-fill");
  const notes = h("div");
  const problem = h("div");
  const stats = { step: stat("Step"), loss: stat("Loss"), speed: stat("Speed"), memory: stat("Memory"), left: stat("Time") };
  const chart = makeChart();
  const samples = h("section.samples");
  const outcome = h("section.outcome");
  const node = h("div.run", { hidden: true },
    h("div.area-head", null, h("div", null, h("div.title-row", null, title, badge), doing), actions),
    h("div.bar-line.tall", null, bar), problem, notes,
    h("dl.stats", null, Object.values(stats).map((s) => s.node)),
    chart.node, samples, outcome);
  let id = null;
  let off = () => {};
  let fresh = true;
  let drawn = {};

  const act = (action) => async () => {
    try { await action(id); } catch (error) { toast(error.message, "bad"); }
  };

  function drawActions(job) {
    const adapter = job.results.find((r) => r.media === "adapter");
    const page = job.results.find((r) => r.media === "page");
    const weights = job.results.find((r) => r.media === "model");
    const lora = job.state === "done" ? job.summary?.lora : null;
    const made = job.state === "done" ? job.summary?.model : null;
    fill(actions,
      lora ? h("a.button.primary", { href: `#/generate/with/${encodeURIComponent(lora)}` }, icon("spark"), "Use this LoRA") : null,
      made ? h("a.button.primary", { href: `#/generate/model/${encodeURIComponent(made)}` }, icon("spark"), "Use this model") : null,
      made && job.request.mode === "qat" ? h("a.button", { href: `#/quantize/quantize/${encodeURIComponent(made)}` }, icon("bits"), "Quantize it") : null,
      !ended(job) ? h("button", { type: "button", disabled: job.cancelling, onclick: act(cancel) }, icon("stop"),
        job.cancelling ? "Stopping…" : job.state === "queued" ? "Cancel" : "Stop") : null,
      job.can_resume ? h("button", { type: "button", onclick: act(resume) }, icon("play"), "Resume") : null,
      page ? h("a.button", { href: page.url, target: "_blank", rel: "noopener" }, icon("open"), "Report") : null,
      adapter ? h("a.button", { href: adapter.url, download: adapter.name }, icon("download"), "Download") : null,
      weights ? h("a.button", { href: weights.url, download: weights.name }, icon("download"), "Download the weights") : null,
      ended(job) ? confirmButton("Remove", "Remove with its files?", async () => { await remove(job.id); ongone(); }) : null);
  }

  function drawSamples(job) {
    const pictures = job.results.filter((r) => r.media === "image" && r.step !== undefined && r.step !== null);
    const prompts = new Map();
    for (const p of pictures) prompts.set(p.prompt ?? "", [...(prompts.get(p.prompt ?? "") ?? []), p]);
    if (!samples.childElementCount && prompts.size) fill(samples, h("h3", null, "Samples over time"), h("div.sample-rows"));
    samples.hidden = !prompts.size;
    if (!prompts.size) return;
    const rows = [...prompts].map(([prompt, list]) => ({ prompt, list: list.sort((a, b) => a.step - b.step) }));
    keyed(samples.lastChild, rows, (r) => `${id}/${r.prompt}`, (first) => {
      const strip = h("div.strip");
      let now = first;
      return {
        node: h("div.sample-row", null, h("p.sample-prompt", null, first.prompt), strip),
        update(row) {
          now = row;
          const grew = strip.childElementCount !== row.list.length;
          keyed(strip, row.list, (p) => p.name, (p) => ({ node: h("button.sample", { type: "button",
            "aria-label": `Step ${p.step}: ${row.prompt}`,
            onclick: () => openLightbox(now.list.map((q) => ({ ...q, text: `${row.prompt} · step ${q.step}` })), now.list.indexOf(p)) },
          h("img", { src: p.url, alt: "", loading: "lazy", vars: { "--ratio": String((p.width ?? 1) / (p.height ?? 1)) } }),
          h("span", null, p.step ? `step ${number(p.step)}` : "before")) }));
          if (grew) strip.scrollLeft = strip.scrollWidth;
        },
      };
    });
  }

  function drawOutcome(job) {
    const s = job.summary ?? {};
    const r = job.request;
    fill(outcome, ended(job) || r.steps ? h("h3", null, ended(job) ? "How it went" : "Settings") : null, factList([
      ["Result", { full: "a model, all weights trained", qat: "a model, trained for a format" }[r.mode] ?? "a LoRA"],
      ["Pictures", r.dataset], ["Model", findModel(job.model)?.title ?? job.model],
      ["Precision", choiceWords(s.precision) || precisionName(r.precision ?? "auto")],
      s.backward ? ["Gradients", choiceWords(s.backward)] : r.backward ? ["Gradients", precisionName(r.backward)] : null,
      Number.isFinite(s.loss_first) ? ["Loss", `${lossText(s.loss_first)} at first, ${lossText(s.loss_last)} at the end`] : null,
      r.mode === "lora" ? ["Rank", String(r.rank ?? "")] : null, ["Learning rate", String(r.lr ?? "")], ["Pictures per step", String(r.batch ?? "")],
      r.trigger ? ["Trigger word", r.trigger] : null,
      r.seed !== undefined && r.seed !== null ? ["Seed", String(r.seed)] : null,
      job.started && job.finished ? ["Time", seconds(job.finished - job.started)] : null,
      s.planned_bytes ? ["Memory", `${bytes(s.planned_bytes)} planned${s.peak_bytes ? `, ${bytes(s.peak_bytes)} used` : ""}`] : null,
    ].filter((row) => row && row[1])),
    (s.skipped ?? []).length ? h("details.skipped", { open: true }, h("summary", null, icon("warn"),
      `${count(s.skipped.length, "file")} left out, with the reason`, icon("down")),
    h("ul", null, s.skipped.map((f) => h("li", null, h("code", null, f.file), ` ${f.why}`)))) : null);
  }

  /// Rebuilds a part only where what it shows has changed, so that focus and scroll stay.
  function once(name, signature, action) {
    const text = JSON.stringify(signature);
    if (drawn[name] === text) return;
    drawn[name] = text;
    action();
  }

  function draw() {
    const job = store.jobs.get(id);
    if (!job) return;
    const live = liveOf(id);
    const p = job.progress ?? {};
    const training = p.stage === "training";
    setText(title, job.request.name ?? "Training");
    setText(badge, stateName(job.state));
    badge.dataset.state = job.state;
    setText(doing, job.state === "queued" ? job.position ? `Waiting: ${job.position} before it` : "Waiting: next"
      : job.state === "running" ? `${stageName(p.stage)}${!training && p.total ? `: ${p.done} of ${p.total}` : ""}`
        : live.checkpoint && job.can_resume ? `A checkpoint of step ${live.checkpoint} is kept` : "");
    bar.style.setProperty("--part", String(job.state === "done" ? 1 : part(job)));
    bar.dataset.state = job.state;
    const s = job.summary ?? {};
    const total = job.request.steps ?? p.total ?? 1;
    stats.step.set(training ? `${number(p.done)} of ${number(p.total)}` : s.steps ? number(s.steps) : `0 of ${number(total)}`);
    stats.loss.set(Number.isFinite(p.average_loss ?? p.loss) ? lossText(p.average_loss ?? p.loss)
      : Number.isFinite(s.loss_last) ? lossText(s.loss_last) : "");
    const speed = p.samples_per_second ?? s.samples_per_second;
    stats.speed.set(Number.isFinite(speed) ? `${number(speed, speed < 10 ? 2 : 0)} pictures/s` : "");
    stats.memory.set(bytes(p.peak_bytes ?? s.peak_bytes));
    stats.left.set(ended(job) ? (job.started && job.finished ? `took ${seconds(job.finished - job.started)}` : "")
      : Number.isFinite(p.seconds_left) ? `${seconds(p.seconds_left)} left` : "");
    const points = [...live.points].sort((a, b) => a[0] - b[0]);
    chart.set({ points, held: [...live.held].sort((a, b) => a[0] - b[0]), total }, fresh);
    fresh = false;
    const lines = [...new Set([...notesOf(job), ...(s.notes ?? [])])];
    once("notes", lines, () => fill(notes, noteList(lines)));
    once("problem", [job.state, job.error], () => fill(problem, job.state === "failed"
      ? h("p.note.bad", null, icon("warn"), h("span", null, job.error?.message ?? "It failed, and no reason was given.")) : null));
    once("actions", [job.state, job.cancelling, job.can_resume, job.results.filter((r) => r.media !== "image").map((r) => r.name), s.lora, s.model],
      () => drawActions(job));
    once("outcome", [job.state, s, job.request], () => drawOutcome(job));
    once("samples", job.results.map((r) => r.name), () => drawSamples(job));
  }

  return {
    node,
    async show(which) {
      off();
      fresh = which !== id;
      id = which;
      node.hidden = !which;
      drawn = {};
      fill(samples);
      if (!which) return;
      if (!store.jobs.has(which)) {
        try { await getJob(which); } catch (error) {
          toast(error.status === 404 ? "That run is not there any more." : error.message, "bad");
          go("train", "runs");
          return;
        }
      }
      off = on(`job:${which}`, draw);
      draw();
      history(which);
    },
  };
}
