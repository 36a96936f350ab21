// What a training is to do: on which pictures, with which settings, and what this machine allows.

import { h, fill, icon, foldWhenNarrow } from "./dom.js";
import { count } from "./format.js";
import { store, model as findModel, on } from "./store.js";
import { datasets, datasetNamed, nameProblem } from "./datasets.js";
import { Form, textField, numberField, selectField } from "./fields.js";
import { choiceField, supportOptions } from "./choices.js";
import { newFolder } from "./captions.js";

const DEFAULTS = { steps: 500, rank: 16, batch: 4 };

/// What a training makes: "the LoRA" or "the model", and what it is good for.
const MODES = {
  lora: { label: "A LoRA", words: "A small file that is used beside the model. The quickest, and it can be mixed and turned off" },
  full: { label: "A new model", words: "Trains all weights. Learns more, and takes several times the memory and space" },
  qat: { label: "A model for a format", words: "Trains all weights so that they lose less in 8 or 4 bits. Quantize it afterwards" },
};

/// Samples about ten times along the way.
const sampleRhythm = (steps) => Math.max(1, Math.round(steps / 10));

export function makeTrainForm({ onsubmit, onpick }) {
  const form = new Form({ draft: "train", onsubmit: () => send(), classes: "train-form" });
  const folder = newFolder({ ondone: (name) => { dataset.set(name); form.keep(); onpick(name); } });
  const fresh = h("button.quiet.small", { type: "button", onclick: () => folder.open() }, icon("plus"), "New folder");
  const dataset = form.add(selectField({ name: "dataset", label: "Pictures to learn from", beside: fresh,
    check: (value) => {
      const d = datasetNamed(value);
      if (!value) return "Choose a folder, or drop pictures to make one.";
      if (d?.pictures === 0) return "This folder is empty. Add pictures to it first.";
      return d?.editable && d.captioned === 0 && !caption.get().trim()
        ? "No picture has a caption yet. Write below each what it shows, or one caption for all of them under Settings." : "";
    } }));
  const name = form.add(textField({ name: "name", label: "Name of the result", placeholder: "my-style",
    check: (value) => nameProblem(value.trim(), "The result") || (taken(value.trim())
      ? `There is a ${mode.get() === "lora" ? "LoRA" : "model"} of that name already.` : "") }));
  const mode = form.add(choiceField({ name: "mode", label: "Makes" }));
  const model = form.add(selectField({ name: "model", label: "Model" }));
  const trigger = form.add(textField({ name: "trigger", label: "Trigger word", placeholder: "none",
    hint: "Goes before every caption. Later, write it in a prompt to call up what was learned." }));
  const caption = form.add(textField({ name: "caption", label: "Caption of pictures without one", placeholder: "none: they are left out" }));
  const steps = form.add(numberField({ name: "steps", label: "Steps", min: 1, max: 100000 }));
  const batch = form.add(numberField({ name: "batch", label: "Pictures per step", min: 1, max: 256 }));
  const rank = form.add(numberField({ name: "rank", label: "Rank", min: 1, max: 1024 }));
  const lr = form.add(numberField({ name: "lr", label: "Learning rate", min: 1e-8, max: 1, step: "any", empty: "0.0001" }));
  const resolution = form.add(numberField({ name: "resolution", label: "Picture size", min: 16, max: 8192,
    empty: "the model's own" }));
  const precision = form.add(choiceField({ name: "precision", label: "Precision" }));
  const backward = form.add(choiceField({ name: "backward", label: "Gradients" }));
  const compile = form.add(selectField({ name: "compile", label: "Compile", options: [{ value: "auto", label: "Automatic" },
    { value: "on", label: "On" }, { value: "off", label: "Off" }] }));
  const prompts = form.add(textField({ name: "sample_prompts", label: "Draw samples of", rows: 3,
    placeholder: "one prompt per line", hint: "Drawn along the way, so that you see it learn." }));
  const sampleEvery = form.add(numberField({ name: "sample_every", label: "Samples every … steps", min: 0, max: 100000,
    empty: "ten times" }));
  const saveEvery = form.add(numberField({ name: "save_every", label: "Save every … steps", min: 0, max: 100000,
    empty: "100" }));
  const seed = form.add(numberField({ name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, empty: "0" }));
  const more = h("details.fold", null, h("summary", null, "More", icon("down")),
    h("div.stack", null, prompts.node, h("div.two", null, sampleEvery.node, saveEvery.node), seed.node));
  const button = h("button.primary.big", { type: "submit" }, icon("play"), h("span", null, "Start training"));
  const cannot = h("p.error", { role: "status" });
  const settings = h("details.settings", null, h("summary", null, "Settings", icon("down")),
    h("div.stack", null, h("p.hint", null, "All of these have values that work. Change them when you know why."), trigger.node, caption.node, model.node, h("div.two", null, steps.node, batch.node),
      h("div.two", null, rank.node, lr.node), resolution.node, precision.node, backward.node, compile.node, more));
  foldWhenNarrow(settings);
  form.node.append(dataset.node, folder.node, name.node, mode.node, form.problem, cannot, button, settings);

  const taken = (value) => (mode.get() === "lora" ? store.loras.some((l) => l.name === value) : Boolean(findModel(value)));

  function sayDataset() {
    const d = datasetNamed(dataset.get());
    dataset.setHint(d && d.captioned < d.pictures
      ? `${d.pictures - d.captioned} of ${d.pictures} have no caption yet.` : "");
  }

  function offerDatasets() {
    const list = datasets.list;
    dataset.offer(list.length ? list.map((d) => ({ value: d.name, label: `${d.name} (${count(d.pictures, "picture")})` }))
      : [{ value: "", label: "No folder yet" }]);
    sayDataset();
  }

  function offerModels() {
    model.offer(store.info.models.map((m) => {
      const why = m.error || (m.trains?.possible ? "" : m.trains?.why || "cannot be trained");
      return { value: m.id, disabled: Boolean(why), label: why ? `${m.title} (${why})` : m.title };
    }));
  }

  function useModel() {
    const m = findModel(model.get());
    const possible = Boolean(store.info.trains && m?.trains?.possible && !m.error);
    fill(cannot, possible ? "" : m ? `Training does not work here: ${m.error || m.trains?.why || "this server was started without it."}`
      : "There is no model that can be trained.");
    button.disabled = !possible;
    if (!m?.trains) return;
    const t = m.trains;
    resolution.box.placeholder = t.resolution ? `${t.resolution}, the model's own` : "the model's own";
    mode.offer(t.modes.map((o) => ({ value: o.name, label: MODES[o.name].label, words: MODES[o.name].words, why: o.why,
      support: o.support === "unavailable" ? "unavailable" : undefined })));
    const adapts = mode.get() === "lora";
    rank.node.hidden = !adapts;
    lr.box.placeholder = adapts ? "0.0001" : "0.00001";
    const exact = new Set(["fp32", "bf16"]);
    const list = mode.get() === "qat" ? t.precisions.filter((p) => !exact.has(p.name)) : t.precisions;
    precision.offer(supportOptions(list, mode.get() === "qat" ? {} : { auto: adapts
      ? "Uses 8 bits where it is faster here and learns as well." : "What the model is usually run in here." }));
    backward.offer(supportOptions(t.backward, { auto: "Follows the precision." }));
    backward.node.hidden = !(t.backward?.length);
    compile.control.disabled = !t.compile?.possible;
    compile.setHint(t.compile?.possible ? t.compile.why || "Runs operations together where it can, so that each step is faster."
      : `Not available: ${t.compile?.why || "not on this machine."}`);
  }

  form.node.addEventListener("change", (event) => {
    if (event.target === model.control || event.target.dataset.field === "mode") useModel();
    sayDataset();
    form.keep();  // with what was just offered anew
    if (event.target === dataset.control) onpick(dataset.get());
  });
  on("datasets", offerDatasets);
  offerDatasets();
  offerModels();
  form.fill(DEFAULTS);
  form.restore();
  useModel();
  form.restore();

  function request() {
    const v = form.raw();
    const out = { mode: v.mode, dataset: v.dataset, name: v.name.trim(), model: v.model, steps: v.steps, batch: v.batch,
      rank: v.mode === "lora" ? v.rank : null, lr: v.lr, resolution: v.resolution, precision: v.precision, trigger: v.trigger.trim(), caption: v.caption.trim(),
      save_every: v.save_every, seed: v.seed };
    const t = findModel(v.model)?.trains;
    if (t?.backward?.length && v.backward !== "auto") out.backward = v.backward;
    if (t?.compile?.possible) out.compile = v.compile;
    out.sample_every = v.sample_every ?? (v.sample_prompts.trim() ? sampleRhythm(v.steps) : 0);
    const lines = v.sample_prompts.split("\n").map((l) => l.trim()).filter(Boolean);
    if (lines.length) out.sample_prompts = lines;
    for (const key of Object.keys(out)) if (out[key] === null || out[key] === undefined || out[key] === "") delete out[key];
    return out;
  }

  async function send() {
    if (button.disabled || !form.valid()) return;
    button.disabled = true;
    try { await onsubmit(request()); } catch (error) { form.showError(error); }
    useModel();
  }

  return {
    node: form.node,
    dataset: () => dataset.get(),
    setDataset(value) { dataset.set(value); sayDataset(); form.keep(); },
    offerDatasets,
    refresh() { offerModels(); useModel(); },
  };
}
