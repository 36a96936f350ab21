// Form fields: each has a label, a hint, and a place for its error.
// A field is {name, node, get(), set(value), check(), setError(text), focus()}.

import { h, unique, fill } from "./dom.js";
import { readDraft, writeDraft } from "./drafts.js";

/// Some answers leave out what they are about ("is not a number"), since it was named beside them.
const sentence = (subject, message) =>
  (/^(is|are|was|has|have|does|do|holds?|must|cannot|needs?)\b/.test(message) ? `${subject} ${message}`
    : message.replace(/^[a-z]/, (c) => c.toUpperCase())).replace(/([^.!?…])$/, "$1.");

/// Values by name, drafts kept in the browser, errors at the field that they name.
export class Form {
  constructor({ draft, onsubmit, classes = "" }) {
    this.fields = new Map();
    this.draft = draft;
    this.node = h("form", { novalidate: true, class: `form ${classes}`.trim() });
    this.problem = h("p.error.wide", { role: "alert" });
    this.node.addEventListener("submit", (event) => { event.preventDefault(); onsubmit(); });
    this.node.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        onsubmit();
      }
    });
    const fieldOf = (event) => this.fields.get(event.target?.dataset?.field);
    this.node.addEventListener("input", (event) => { fieldOf(event)?.setError(""); this.keep(); });
    this.node.addEventListener("change", (event) => {  // what was typed is checked when one leaves it
      const field = fieldOf(event);
      const empty = field && [null, ""].includes(field.get());
      field?.setError(empty ? "" : field.check?.() ?? "");
      this.keep();
    });
  }

  add(field) {
    this.fields.set(field.name, field);
    return field;
  }

  keep() { if (this.draft) writeDraft(this.draft, this.raw()); }
  restore() { this.fill(this.draft ? readDraft(this.draft) : {}); }
  get(name) { return this.fields.get(name).get(); }
  set(name, value) { this.fields.get(name)?.set(value); }
  raw() { return Object.fromEntries([...this.fields].map(([name, f]) => [name, f.get()])); }

  fill(values) {
    for (const [name, value] of Object.entries(values ?? {})) {
      if (value !== undefined && value !== null) this.fields.get(name)?.set(value);
    }
  }

  /// True when every visible field can be sent; otherwise the first wrong one has the focus.
  valid() {
    this.clearErrors();
    let first = null;
    for (const field of this.fields.values()) {
      const wrong = field.node.hidden ? "" : field.check?.() ?? "";
      field.setError(wrong);
      if (wrong && !first) first = field;
    }
    first?.focus();
    return !first;
  }

  clearErrors() {
    fill(this.problem);
    for (const field of this.fields.values()) field.setError("");
  }

  /// `also` maps names of the server to names of fields, such as {width: "size"}.
  showError(error, also = {}) {
    const base = (error.field ?? "").split(/[.[]/)[0];
    const field = this.fields.get(also[base] ?? base);
    if (field && !field.node.hidden) {
      field.setError(sentence("This", error.message));
      field.focus();
    } else {
      fill(this.problem, sentence(error.field ? `"${error.field}"` : "It", error.message));
    }
  }
}

function frame({ name, label, hint, control, group = false, beside = null }) {
  const id = unique(name);
  const hintNode = h("p.hint", { id: `${id}-hint`, hidden: !hint }, hint);
  const error = h("p.error", { id: `${id}-error` });
  const described = `${id}-error ${id}-hint`;
  let node;
  if (group) {
    node = h("fieldset.field", { "aria-describedby": described },
      h("legend", null, label), control, hintNode, error);
  } else {
    control.id = id;
    control.setAttribute("aria-describedby", described);
    control.dataset.field = name;
    node = h("div.field", null,
      h("div.label-row", null, h("label", { htmlFor: id }, label), beside), control, hintNode, error);
  }
  const marked = group ? node : control;
  return {
    name, node, id, control,
    setError(text) {
      if (error.textContent === text) return;
      error.textContent = text;
      if (text) marked.setAttribute("aria-invalid", "true");
      else marked.removeAttribute("aria-invalid");
      for (let up = node.parentElement; text && up; up = up.parentElement) {
        if (up.tagName === "DETAILS") up.open = true;
      }
    },
    setHint(...words) {
      fill(hintNode, ...words);
      hintNode.hidden = !hintNode.textContent;
    },
    focus() { (group ? node.querySelector("input:not(:disabled),button,summary") : control)?.focus(); },
  };
}

export function textField({ name, label, hint, placeholder, rows = 0, check, beside, most }) {
  const control = rows
    ? h("textarea", { rows, placeholder, spellcheck: true })
    : h("input", { type: "text", placeholder, spellcheck: false, autocomplete: "off" });
  if (most) control.maxLength = most;
  const field = frame({ name, label, hint, control, beside });
  return Object.assign(field, {
    get: () => control.value,
    set: (value) => { control.value = value; },
    check: () => check?.(control.value) ?? "",
  });
}

/// `empty`: what it means to leave it empty; otherwise a number is needed.
export function numberField({ name, label, hint, min, max, step = 1, slider = false, empty, beside }) {
  const box = h("input", { type: "number", min, max, step: step === "any" ? "any" : step,
    inputmode: step === 1 ? "numeric" : "decimal", placeholder: empty, autocomplete: "off" });
  const field = frame({ name, label, hint, control: box, beside });
  let range = null;
  if (slider) {
    range = h("input", { type: "range", min, max, step, "aria-label": `${label}, slider`, tabIndex: -1 });
    const row = h("div.slider-row");
    box.replaceWith(row);
    row.append(range, box);
    range.addEventListener("input", () => {
      box.value = range.value;
      paint();
      box.dispatchEvent(new Event("input", { bubbles: true }));
    });
    box.addEventListener("input", () => { range.value = box.value; paint(); });
  }
  const paint = () => {
    if (!range) return;
    const lo = Number(range.min);
    const part = (Number(range.value) - lo) / (Number(range.max) - lo || 1);
    range.style.setProperty("--part", `${100 * part}%`);
  };
  return Object.assign(field, {
    box, range,
    get: () => (box.value.trim() === "" ? null : Number(box.value)),
    set: (value) => {
      box.value = value ?? "";
      if (range) range.value = box.value;
      paint();
    },
    /// The slider may end before what can be typed.
    limits(lo, hi, by = step, end = hi) {
      for (const control of [box, range].filter(Boolean)) {
        control.min = lo;
        control.max = hi;
        control.step = by;
      }
      if (range) { range.max = end; range.value = box.value; }
      Object.assign(this, { lo, hi });
      paint();
    },
    lo: min, hi: max,
    check() {
      if (box.validity.badInput) return `${label} must be a number.`;
      if (box.value.trim() === "") return empty ? "" : `${label} is missing.`;
      const value = Number(box.value);
      if (!Number.isFinite(value)) return `${label} must be a number.`;
      if (step === 1 && !Number.isInteger(value)) return `${label} must be a whole number.`;
      if (this.lo !== undefined && value < this.lo) return `${label} must be at least ${this.lo}.`;
      if (this.hi !== undefined && value > this.hi) return `${label} can be ${this.hi} at most.`;
      return "";
    },
  });
}

export function selectField({ name, label, hint, options = [], beside, check }) {
  const control = h("select");
  const field = frame({ name, label, hint, control, beside });
  let wanted = null;
  let offered = "";
  const offer = (list) => {
    if (offered === JSON.stringify(list)) return;
    offered = JSON.stringify(list);
    const now = wanted ?? control.value;
    fill(control, list.map((o) => h("option", { value: o.value, disabled: o.disabled }, o.label)));
    const there = list.find((o) => o.value === now && !o.disabled) ?? list.find((o) => !o.disabled);
    if (there) control.value = there.value;
  };
  offer(options);
  control.addEventListener("change", () => { wanted = control.value; });
  return Object.assign(field, {
    get: () => control.value,
    set: (value) => {
      wanted = value;
      if ([...control.options].some((o) => o.value === value && !o.disabled)) control.value = value;
    },
    offer,
    check: () => check?.(control.value) ?? "",
  });
}

/// A row of buttons of which one is chosen (radio buttons underneath).
export function segmentsField({ name, label, hint, options }) {
  const group = unique(name);
  const row = h("div.segments");
  const field = frame({ name, label, hint, control: row, group: true });
  let wanted = options[0]?.value;
  let offered = "";
  const offer = (list) => {
    if (offered === JSON.stringify(list)) return;
    offered = JSON.stringify(list);
    const there = list.find((o) => o.value === wanted && !o.disabled) ?? list.find((o) => !o.disabled);
    fill(row, list.map((o) => h("label.segment", { title: o.title }, h("input", {
      type: "radio", name: group, value: o.value, checked: o === there, disabled: o.disabled,
      data: { field: name } }), o.icon?.() ?? null, h("span", null, o.label))));
  };
  offer(options);
  row.addEventListener("change", (event) => { wanted = event.target.value; });
  return Object.assign(field, {
    get: () => row.querySelector("input:checked")?.value ?? null,
    set: (value) => {
      wanted = value;
      for (const input of row.querySelectorAll("input")) {
        if (input.value === String(value) && !input.disabled) input.checked = true;
      }
    },
    clear: () => row.querySelectorAll("input").forEach((input) => { input.checked = false; }),
    offer,
  });
}

export function checkField({ name, label, hint }) {
  const box = h("input", { type: "checkbox" });
  const field = frame({ name, label, hint, control: box });
  field.node.classList.add("check");
  return Object.assign(field, {
    get: () => box.checked,
    set: (value) => { box.checked = Boolean(value); },
    allow: (yes) => { box.disabled = !yes; if (!yes) box.checked = false; },
  });
}
