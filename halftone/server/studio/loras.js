// LoRAs for a generation: those that fit the model, each with a strength.

import { h, fill, unique, iconButton } from "./dom.js";
import { store } from "./store.js";
import { loraUpload, whyUnfit } from "./lora_upload.js";

export function lorasField() {
  const list = h("div.loras");
  const error = h("p.error");
  const picker = h("select", { id: unique("lora"), "aria-label": "Add a LoRA" });
  const upload = loraUpload({ onhere: (lora) => {
    if (fits(lora) && !chosen.some((c) => c.name === lora.name)) chosen.push({ name: lora.name, strength: 1 });
    draw();
    tell();
  } });
  const node = h("fieldset.field.lora-field", null, h("legend", null, "LoRAs"), list,
    h("div.lora-add", null, picker, upload.button), upload.node, error,
    h("p.hint", null, "Small files that teach a model a style or a subject. Drop a .safetensors here, or make one under Train."));
  upload.drop(node);
  let chosen = [];
  let modelId = "";

  const tell = () => node.dispatchEvent(new Event("input", { bubbles: true }));
  const fits = (lora) => lora.fits.includes(modelId);

  function row(entry) {
    const known = store.loras.find((l) => l.name === entry.name);
    const strength = h("input", { type: "range", min: -1, max: 2, step: 0.05, id: unique("strength"),
      "aria-label": `Strength of ${entry.name}` });
    const value = h("output", { for: strength.id });
    const paint = () => {
      value.textContent = Number(strength.value).toFixed(2);
      strength.style.setProperty("--part", `${(100 * (Number(strength.value) + 1)) / 3}%`);
    };
    strength.value = entry.strength;
    paint();
    strength.addEventListener("input", () => { entry.strength = Number(strength.value); paint(); });
    const problem = !known ? "This LoRA is not there any more."
      : !fits(known) ? whyUnfit(known, modelId) : "";
    const partly = known?.partly?.find((p) => p.model === modelId);
    return h("div.lora", null,
      h("div.lora-name", null, h("span", null, entry.name), value,
        iconButton("close", `Take ${entry.name} away`, () => {
          chosen = chosen.filter((c) => c !== entry);
          draw();
          tell();
          picker.focus();
        })),
      strength,
      known?.trigger ? h("p.hint", null, "Its word in the prompt: ", h("code", null, known.trigger)) : null,
      partly ? h("p.hint", null, `${partly.unmatched} of its tensors match nothing in this model and are left out: ${partly.first}, …`) : null,
      problem ? h("p.error", null, problem) : null);
  }

  function draw() {
    fill(list, chosen.map(row));
    const rest = store.loras.filter((l) => !chosen.some((c) => c.name === l.name));
    fill(picker, h("option", { value: "" }, !store.loras.length ? "None here yet" : rest.length ? "Choose one…" : "All are chosen"),
      rest.map((l) => h("option", { value: l.name, disabled: !fits(l) },
        fits(l) ? l.name : `${l.name} (${l.error ? "cannot be used" : "for another model"})`)));
    picker.value = "";
    picker.disabled = !rest.length;
  }

  picker.addEventListener("change", () => {
    if (picker.value) chosen.push({ name: picker.value, strength: 1 });
    draw();
    tell();
  });

  return {
    name: "loras", node,
    get: () => chosen.map((c) => ({ ...c })),
    set(list0) {
      chosen = (Array.isArray(list0) ? list0 : []).map((l) => ({ name: l.name, strength: l.strength ?? 1 }));
      draw();
    },
    add(name) {
      if (!chosen.some((c) => c.name === name)) chosen.push({ name, strength: 1 });
      draw();
    },
    offer(id) { modelId = id; draw(); },
    check: () => (chosen.some((c) => !fits(store.loras.find((l) => l.name === c.name) ?? { fits: [] }))
      ? "Take away the LoRAs that do not fit this model, or choose another model." : ""),
    setError(text) { error.textContent = text; },
    focus: () => picker.focus(),
  };
}
