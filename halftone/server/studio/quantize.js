// The Quantize tab: make a model smaller within a budget, or see what each precision costs.

import { h, fill, keyed, icon, toast } from "./dom.js";
import { precisionName, bytes } from "./format.js";
import { store, on, submit, loadJobs, jobsOf, model as findModel } from "./store.js";
import { Form, textField, numberField, selectField, segmentsField, checkField } from "./fields.js";
import { choiceField, supportOptions } from "./choices.js";
import { nameProblem } from "./datasets.js";
import { arrowTabs, markTab } from "./tabs.js";
import { go, replace } from "./router.js";
import { makeJobCard } from "./job_card.js";

const WIDE = new Set(["auto", "fp32", "bf16"]);  // every other precision is one to store weights in

const BUDGETS = {
  none: "Every layer goes into the format.",
  auto: "Layers that would lose too much in the format get a wider one.",
  cosine: "Each layer gets the smallest format with which the model stays this close.",
  bytes: "Each layer gets a format, so that together they lose least within this size.",
};

function modelField(form, whyNot = () => "") {
  const field = form.add(selectField({ name: "model", label: "Model" }));
  const label = (m) => {
    if (m.error) return `${m.title} (cannot be used: ${m.error})`;
    return whyNot(m) ? `${m.title} (${whyNot(m)})` : `${m.title}${m.bytes ? `, ${bytes(m.bytes)}` : ""}`;
  };
  const offer = () => field.offer(store.info.models.map((m) => ({ value: m.id, disabled: Boolean(m.error || whyNot(m)), label: label(m) })));
  offer();
  return { field, offer };
}

function makeQuantizeForm() {
  const form = new Form({ draft: "quantize", onsubmit: () => send() });
  const { field: model, offer } = modelField(form, (m) => (m.stored ? `is in ${precisionName(m.stored)} already` : m.quantizes?.why ?? ""));
  const format = form.add(choiceField({ name: "format", label: "Format" }));
  const budget = form.add(segmentsField({ name: "budget_kind", label: "Budget", options: [
    { value: "none", label: "None" }, { value: "auto", label: "Automatic" }, { value: "cosine", label: "Quality" },
    { value: "bytes", label: "Size" }] }));
  const cosine = form.add(numberField({ name: "cosine", label: "Agrees at least to", min: 0.9, max: 0.9999, step: 0.0001, slider: true,
    hint: "How much each step agrees with the original: 1 is the same, 0.999 is hard to tell apart, 0.99 is seen in details." }));
  const size = form.add(numberField({ name: "megabytes", label: "At most (MB)", min: 0.001, max: 1e7, step: "any",
    hint: "For the layers that are quantized. The few that stay exact come on top." }));
  const calibrate = form.add(checkField({ name: "calibrate", label: "Watch the model draw first",
    hint: "Rounds by what is seen, and measures the result. Without it, it takes moments." }));
  const samples = form.add(numberField({ name: "samples", label: "Pictures to watch", min: 0, max: 1000, empty: "one per prompt" }));
  const certify = form.add(numberField({ name: "certify", label: "Pictures to measure on", min: 0, max: 1000, empty: "8" }));
  const more = h("details.fold", null, h("summary", null, "More", icon("down")),
    h("div.stack", null, calibrate.node, h("div.two", null, samples.node, certify.node)));
  const name = form.add(textField({ name: "name", label: "Name of the new model",
    check: (value) => nameProblem(value.trim(), "The model")
      || (findModel(value.trim()) ? "There is a model of that name already." : "") }));
  const button = h("button.primary.big", { type: "submit" }, icon("bits"), h("span", null, "Quantize"));
  const hint = h("p.hint", null, "Halftone watches the model draw, rounds its weights with care, and measures the result on "
    + "prompts that it has not seen. Large models take minutes.");
  form.node.append(model.node, format.node, budget.node, cosine.node, size.node, name.node, more, form.problem, button, hint);
  let named = "";

  function follow() {
    const m = findModel(model.get());
    if (m) {
      format.offer(supportOptions(m.precisions.filter((p) => !WIDE.has(p.name)))
        .map((o) => ({ ...o, support: o.support === "unavailable" ? "emulated" : o.support })));
    }
    cosine.node.hidden = budget.get() !== "cosine";
    size.node.hidden = budget.get() !== "bytes";
    if (size.get() === null && m) size.set(Number((0.6 * m.bytes / 1e6).toPrecision(3)));
    budget.setHint(BUDGETS[budget.get()]);
    samples.node.hidden = certify.node.hidden = !calibrate.get();
    const suggestion = `${model.get()}-${format.get()}`;
    if (!name.get() || name.get() === named) name.set(suggestion);
    named = suggestion;
    form.keep();
  }
  format.set("fp8");
  form.fill({ cosine: 0.995, calibrate: true });
  form.restore();
  follow();
  form.restore();
  follow();
  form.node.addEventListener("change", follow);

  async function send() {
    if (!form.valid()) return;
    const kind = budget.get();
    const request = { model: model.get(), name: name.get().trim(), format: format.get(),
      calibrate: calibrate.get() };
    if (kind === "auto") request.budget = "auto";
    if (kind === "cosine") request.budget = `cosine=${cosine.get()}`;
    if (kind === "bytes") request.budget = `bytes=${Math.round(size.get() * 1e6)}`;
    if (request.calibrate && samples.get() !== null) request.samples = samples.get();
    if (!request.calibrate) request.certify = 0;
    else if (certify.get() !== null) request.certify = certify.get();
    button.disabled = true;
    try {
      await submit("quantize", request);
      toast("The quantization is on its way.");
    } catch (error) { form.showError(error, { budget: { cosine: "cosine", bytes: "megabytes" }[kind] ?? "budget_kind" }); }
    button.disabled = false;
  }
  return { node: form.node, refresh() { offer(); follow(); }, use(id) { model.set(id); follow(); } };
}

function makeCompareForm() {
  const form = new Form({ draft: "compare", onsubmit: () => send() });
  const { field: model, offer } = modelField(form);
  const precisions = form.add(choiceField({ name: "precisions", label: "Precisions", multiple: true }));
  precisions.check = () => (precisions.get().length ? "" : "Choose one precision or more.");
  const reference = form.add(selectField({ name: "reference", label: "Compared with",
    hint: "The precision that the others are measured against." }));
  const prompts = form.add(textField({ name: "prompts", label: "Prompts", rows: 4, placeholder: "one per line; empty: Halftone's own",
    hint: "What is drawn in each precision." }));
  const steps = form.add(numberField({ name: "steps", label: "Steps", min: 1, max: 1000, empty: "the model's own" }));
  const seed = form.add(numberField({ name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, empty: "0" }));
  const button = h("button.primary.big", { type: "submit" }, icon("split"), h("span", null, "Compare"));
  form.node.append(model.node, precisions.node, reference.node, prompts.node, h("div.two", null, steps.node, seed.node),
    form.problem, button, h("p.hint", null, "The result is a page with picture pairs, charts and figures, which you can keep or send on."));

  function follow() {
    const m = findModel(model.get());
    if (!m) return;
    const list = m.precisions.filter((p) => p.name !== "auto");
    precisions.offer(supportOptions(list));
    reference.offer(list.filter((p) => p.support !== "unavailable").map((p) => ({ value: p.name, label: precisionName(p.name) })));
  }
  precisions.set(["fp8", "nvfp4"]);
  reference.set("bf16");
  form.restore();
  follow();
  form.restore();
  form.node.addEventListener("change", (event) => { if (event.target === model.control) follow(); });

  async function send() {
    if (!form.valid()) return;
    const v = form.raw();
    const request = { model: v.model, precisions: v.precisions.filter((p) => p !== v.reference), reference: v.reference };
    if (!request.precisions.length) {
      precisions.setError("Choose one that is not what you compare with.");
      return;
    }
    const lines = v.prompts.split("\n").map((l) => l.trim()).filter(Boolean);
    if (lines.length) request.prompts = lines;
    if (v.steps !== null) request.steps = v.steps;
    if (v.seed !== null) request.seed = v.seed;
    button.disabled = true;
    try {
      await submit("compare", request);
      toast("The comparison is on its way.");
    } catch (error) { form.showError(error); }
    button.disabled = false;
  }
  return { node: form.node, refresh() { offer(); follow(); }, use(id) { model.set(id); follow(); } };
}

export function makeQuantize(panel) {
  const forms = [makeQuantizeForm(), makeCompareForm()];
  const names = ["quantize", "compare"];
  const tabs = ["Quantize", "Compare"].map((text, i) => h("a", { role: "tab", id: `quantize-tab-${i}`,
    href: `#/quantize/${names[i]}`, "aria-controls": `quantize-area-${i}`, "aria-selected": "false", tabIndex: -1 }, text));
  const areas = forms.map((form, i) => h("div", { role: "tabpanel", id: `quantize-area-${i}`,
    "aria-labelledby": `quantize-tab-${i}` }, form.node));
  arrowTabs(tabs, (to) => go("quantize", names[to]));
  const list = h("div.cards");
  const empty = h("div.empty", null, h("h3", null, "Smaller models, with the evidence"),
    h("p.muted", null, "Quantize makes a model that needs less memory and says what it lost. Compare draws the same pictures in several precisions and measures the difference. Both work with what is chosen on the form already."));
  fill(panel, h("h1.only-read", null, "Quantize and compare"), h("div.sides", null,
    h("div.side", null, h("div.tabs.inner", { role: "tablist", "aria-label": "Quantize or compare" }, tabs), areas),
    h("div.work", null, h("div.area-head", null, h("h2", null, "Results")), empty, list)));

  const draw = () => {
    const all = jobsOf("quantize", "compare");
    keyed(list, all, (j) => j.id, (job) => makeJobCard(job.id, {
      onuse: (id) => go("generate", "model", id), oncompare: (id) => { forms[1].use(id); go("quantize", "compare"); } }));
    empty.hidden = all.length > 0;
  };
  on("jobs", draw);
  on("info", () => forms.forEach((form) => form.refresh()));
  Promise.all([loadJobs("quantize"), loadJobs("compare")]).then(draw, (error) => toast(error.message, "bad"));
  draw();

  return {
    show(rest) {
      const at = rest[0] === "compare" ? 1 : 0;
      markTab(tabs, at);
      areas.forEach((area, i) => { area.hidden = i !== at; });
      if (rest[1]) {
        forms[at].use(rest[1]);
        replace("quantize", names[at]);
      }
    },
  };
}
