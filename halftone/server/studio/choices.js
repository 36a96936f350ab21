// Choosing a precision (or another thing with a support and a reason): folded to one line, and open
// a list in which everything that this machine can or cannot do says why.

import { h, fill, unique, icon } from "./dom.js";
import { precisionName, precisionWords, supportName, certificateShort, count } from "./format.js";

const sentences = (...parts) => parts.filter(Boolean)
  .map((text) => `${text[0].toUpperCase()}${text.slice(1).replace(/\.?$/, ".")}`).join(" ");

export const badge = (support) => h("span.badge", { data: { support } }, supportName(support));

/// offer(options): [{value, label?, words?, support?, why, mark?, more?}]
export function choiceField({ name, label, multiple = false }) {
  const group = unique(name);
  const now = h("span.now");
  const list = h("div.choices", { role: multiple ? "group" : "radiogroup", "aria-label": label });
  const summary = h("summary", null, h("span.choice-label", null, label), now, icon("down"));
  const error = h("p.error");
  const details = h("details.choice", null, summary, list);
  const node = h("div.field", null, details, error);
  let options = [];
  let wanted = multiple ? [] : "auto";

  const inputs = () => [...list.querySelectorAll("input")];
  const chosen = () => inputs().filter((i) => i.checked).map((i) => i.value);
  const draw = () => {
    const values = chosen();
    const one = options.find((o) => o.value === values[0]);
    if (multiple) {
      fill(now, values.length ? values.map(precisionName).join(", ") : "none chosen");
    } else {
      fill(now, h("b", null, one?.label ?? precisionName(one?.value)),
        one?.aside ? h("span.aside", null, one.aside) : null,
        one?.support && one.value !== "auto" ? badge(one.support) : null);
    }
  };
  list.addEventListener("change", () => { wanted = multiple ? chosen() : chosen()[0]; draw(); });

  return {
    name, node, details,
    offer(given) {
      if (JSON.stringify(given) === JSON.stringify(options)) return;  // the focus may be in here
      options = given;
      const free = given.filter((o) => o.support !== "unavailable");
      const on = multiple ? wanted.filter((w) => free.some((o) => o.value === w))
        : [free.some((o) => o.value === wanted) ? wanted : free[0]?.value];
      fill(list, given.map((o) => h("label.option", { data: { off: o.support === "unavailable" } },
        h("input", { type: multiple ? "checkbox" : "radio", name: group, value: o.value,
          checked: on.includes(o.value), disabled: o.support === "unavailable", data: { field: name } }),
        h("span.option-text", null,
          h("span.option-name", null, h("b", null, o.label ?? precisionName(o.value)),
            o.support ? badge(o.support) : null,
            o.mark ? h("span.badge.mark", null, o.mark) : null),
          sentences(o.words, o.why),
          o.more ? h("span.option-more", null, o.more) : null))));
      draw();
    },
    get: () => (multiple ? chosen() : chosen()[0] ?? "auto"),
    set(value) {
      wanted = value;
      for (const input of inputs()) {
        input.checked = !input.disabled
          && (multiple ? value.includes(input.value) : input.value === value);
      }
      if (!multiple && !chosen().length && inputs().length) inputs().find((i) => !i.disabled).checked = true;
      draw();
    },
    check: () => "",
    setError(text) {
      error.textContent = text;
      if (text) details.open = true;
    },
    focus: () => summary.focus(),
  };
}

/// The precisions of a model, the recommended one with its certificate's numbers.
export function precisionOptions(model) {
  const { recommended } = model;
  return model.precisions.map((p) => {
    const best = recommended && p.name === recommended.precision && p.name !== "auto";
    const numbers = best ? certificateShort(recommended.certificate) : "";
    const auto = p.name === "auto" && recommended;
    return {
      value: p.name, support: auto ? undefined : p.support,
      words: auto ? `Takes ${precisionName(recommended.precision)}: ${recommended.why}` : precisionWords(p.name),
      why: auto && p.why === recommended.why ? "" : p.why,
      mark: best ? "recommended" : "",
      aside: auto ? precisionName(recommended.precision) : "",
      more: numbers ? `Measured against ${precisionName(recommended.certificate.reference ?? "bf16")}: ${numbers}`
        + (recommended.certificate.prompts ? ` (${count(recommended.certificate.prompts, "prompt")})` : "") : "",
    };
  });
}

/// Settings of training with support and reason, "auto" first where the server does not list it.
export function supportOptions(list, { auto = "" } = {}) {
  const options = (list ?? []).map((p) => ({ value: p.name, support: p.name === "auto" ? undefined : p.support,
    words: precisionWords(p.name), why: p.why }));
  if (auto && !options.some((o) => o.value === "auto")) options.unshift({ value: "auto", words: auto });
  return options;
}
