// Everything that is asked before a picture is drawn.

import { h, fill, icon, foldWhenNarrow, toast } from "./dom.js";
import { bytes } from "./format.js";
import { store, model as findModel } from "./store.js";
import { Form, textField, numberField, selectField, segmentsField } from "./fields.js";
import { choiceField, precisionOptions } from "./choices.js";
import { sizeField } from "./size.js";
import { lorasField } from "./loras.js";

export const randomSeed = () => Math.floor(Math.random() * 2 ** 31);

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

export function makeGenerateForm({ onsubmit }) {
  const form = new Form({ draft: "generate", onsubmit: () => send(), classes: "generate-form" });
  const prompt = form.add(textField({ name: "prompt", label: "What should it show?", rows: 4,
    placeholder: "a red apple on a blue background",
    check: (text) => (text.trim() ? "" : "Say what the picture should show.") }));
  const button = h("button.primary.big", { type: "submit" }, icon("spark"), h("span", null, "Generate"),
    h("kbd", null, MAC ? "⌘ ↵" : "Ctrl ↵"));
  const number = form.add(numberField({ name: "count", label: "Pictures", min: 1, max: 8 }));
  const negative = form.add(textField({ name: "negative", label: "What should it avoid?", rows: 2,
    check: (text) => (text.trim() && !(guidance.get() > 0) ? "This needs a guidance above 0." : "") }));
  const model = form.add(selectField({ name: "model", label: "Model" }));
  const precision = form.add(choiceField({ name: "precision", label: "Precision" }));
  const loras = form.add(lorasField());
  const size = sizeField(form);
  const steps = form.add(numberField({ name: "steps", label: "Steps", min: 1, max: 100, slider: true,
    hint: "More steps take longer and are finer, up to a point." }));
  const guidance = form.add(numberField({ name: "guidance", label: "Guidance", min: 0, max: 20, step: 0.1,
    slider: true, hint: "How strictly the picture follows the prompt." }));
  const seedMode = form.add(segmentsField({ name: "seed_mode", label: "Seed", options: [
    { value: "random", label: "New each time" }, { value: "fixed", label: "Fixed" }] }));
  const dice = h("button.quiet.small", { type: "button" }, icon("dice"), "Roll");
  const seed = form.add(numberField({ name: "seed", label: "Seed number", min: 0,
    max: Number.MAX_SAFE_INTEGER, beside: dice,
    hint: "The same seed and settings draw the same picture." }));
  const scheduler = form.add(selectField({ name: "scheduler", label: "Scheduler",
    hint: "The way from noise to picture." }));
  const more = h("details.fold", null, h("summary", null, "More", icon("down")), scheduler.node);

  const settings = h("details.settings", null,
    h("summary", null, "Settings", h("span.summary-now"), icon("down")),
    h("div.stack", null, negative.node, model.node, precision.node, loras.node, ...size.nodes,
      h("div.count-seed", null, number.node, h("div.seed-mode", null, seedMode.node)), seed.node,
      steps.node, guidance.node, more));
  form.node.append(prompt.node, form.problem, button, settings);
  foldWhenNarrow(settings);

  function showSeed() { seed.node.hidden = seedMode.get() !== "fixed"; }

  function sayNow() {
    const m = findModel(model.get());
    if (!m) return;
    fill(settings.querySelector(".summary-now"),
      `${m.title} · ${form.get("width")} × ${form.get("height")} · ${form.get("steps")} steps`);
  }

  /// A model says what there is to choose; `fresh` also takes its numbers.
  function useModel(fresh) {
    const m = findModel(model.get());
    if (!m) return;
    precision.offer(precisionOptions(m));
    loras.offer(m.id);
    size.offer(m, store.info.limits);
    const own = { value: "", label: m.default_scheduler ? `The model's own (${m.default_scheduler})` : "The model's own" };
    scheduler.offer([own, ...(m.schedulers ?? []).map((s) => ({ value: s, label: s }))]);
    more.hidden = (m.schedulers ?? []).length < 2;
    negative.node.hidden = !m.defaults.negative;
    guidance.node.hidden = !m.defaults.negative;
    const limits = store.info.limits;
    const most = Math.max(1, Math.min(limits.most_steps || 100, 1000));
    steps.limits(1, most, 1, Math.min(most, Math.max(50, m.defaults.steps * 2)));
    number.limits(1, limits.most_count || 8);
    if (fresh) {
      size.set(m.defaults.width, m.defaults.height);
      steps.set(m.defaults.steps);
      guidance.set(m.defaults.guidance);
      scheduler.set("");
    }
    const memory = m.memory?.weights ? `${bytes(m.memory.weights)} of memory` : "";
    model.setHint([m.family_title, memory, m.loaded?.length ? "loaded" : "loads at the first picture"]
      .filter(Boolean).join(" · "));
    sayNow();
  }

  function offerModels() {
    const { models } = store.info;
    model.offer(models.map((m) => ({ value: m.id, disabled: Boolean(m.error),
      label: m.error ? `${m.title} (cannot be used: ${m.error})` : m.title })));
  }

  form.node.addEventListener("change", (event) => {
    if (event.target === model.control) useModel(true);
    if (seedMode.get() === "fixed" && seed.get() === null) seed.set(randomSeed());
    showSeed();
    sayNow();
    form.keep();
  });
  form.node.addEventListener("input", sayNow);
  dice.addEventListener("click", () => { seed.set(randomSeed()); form.keep(); });

  // Numbers of the model first, then what was typed before.
  offerModels();
  form.fill({ count: 1, seed_mode: "random" });
  form.restore();
  useModel(true);
  form.restore();
  useModel(false);
  showSeed();

  function request() {
    const m = findModel(model.get());
    const v = form.raw();
    const out = { prompt: v.prompt.trim(), model: v.model, precision: v.precision, width: v.width,
      height: v.height, steps: v.steps, count: v.count, scheduler: v.scheduler, previews: true };
    if (m.defaults.negative) {
      if (v.negative.trim()) out.negative = v.negative.trim();
      out.guidance = v.guidance;
    }
    if (v.seed_mode === "fixed") out.seed = v.seed;
    if (v.loras.length) out.loras = v.loras;
    for (const key of Object.keys(out)) if (out[key] === null || out[key] === undefined || out[key] === "") delete out[key];
    return out;
  }

  async function send() {
    if (!findModel(model.get())) {
      form.showError({ message: "There is no model to draw with yet. System says which models were found." });
      return;
    }
    if (!form.valid()) return;
    try { await onsubmit(request()); } catch (error) {
      form.showError(error, { size: "width", lora: "loras" });
    }
  }

  return {
    node: form.node,
    focus: () => prompt.focus(),
    setPrompt(text) { prompt.set(text); form.keep(); prompt.focus(); },
    /// Takes over what a picture was made with.
    use(r, { seed: given } = {}) {
      form.clearErrors();
      if (findModel(r.model)) model.set(r.model);
      useModel(true);
      form.fill({ ...r, seed: undefined, loras: r.loras ?? [] });
      negative.set(r.negative ?? "");
      size.set(r.width, r.height);
      if (given !== undefined) { seed.set(given); seedMode.set("fixed"); } else seedMode.set("random");
      useModel(false);
      showSeed();
      form.keep();
      prompt.focus();
    },
    useModel(id) {
      if (!findModel(id)) { toast(`${id} is not among the models any more.`, "bad"); return; }
      model.set(id);
      useModel(true);
      form.keep();
      prompt.focus();
      toast(`${findModel(id).title} is chosen.`);
    },
    useLora(name) {
      const known = store.loras.find((l) => l.name === name);
      const fitting = known?.fits?.find((id) => findModel(id));
      if (fitting && !known.fits.includes(model.get())) { model.set(fitting); useModel(true); }
      loras.add(name);
      settings.open = true;
      if (known?.trigger && !prompt.get().includes(known.trigger)) {
        prompt.set(`${known.trigger} ${prompt.get()}`.trim());
      }
      form.keep();
      prompt.focus({ preventScroll: true });
      loras.node.scrollIntoView({ block: "nearest" });
      toast(`${name} is chosen.`);
    },
    refresh() { offerModels(); useModel(false); },
    refreshLoras() { loras.offer(model.get()); },
  };
}
