// Builds and updates elements. Text from users and servers goes through text nodes only.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "open", "htmlFor",
  "tabIndex", "min", "max", "step", "type", "name", "required", "readOnly", "multiple", "src", "alt",
  "rows", "placeholder", "spellcheck", "maxLength"]);

let counter = 0;
export const unique = (prefix) => `${prefix}-${++counter}`;
export const byId = (id) => document.getElementById(id);

/// h("p.muted", {title: "x"}, "text", node, [more]) makes <p class="muted" title="x">.
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props ?? {})) setProperty(node, key, value);
  node.append(...flat(children));
  return node;
}

export function setProperty(node, key, value) {
  if (value === undefined || value === null) return;
  if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
  else if (key === "vars") Object.entries(value).forEach(([k, v]) => node.style.setProperty(k, v));
  else if (key === "data") Object.assign(node.dataset, value);
  else if (PROPERTIES.has(key)) node[key] = value;
  else if (value !== false) node.setAttribute(key, value === true ? "" : value);
}

const flat = (children) => children.flat(Infinity)
  .filter((c) => c !== null && c !== undefined && c !== false)
  .map((c) => (c instanceof Node ? c : String(c)));

export function fill(node, ...children) {
  node.replaceChildren(...flat(children));
  return node;
}

/// Writes only where something changed, so that readers and selections are left in peace.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes ?? {})) node.setAttribute(key, value);
  node.append(...flat(children));
  return node;
}

const symbols = new Map();

/// Reads the icons once, so that they are there when the server is not.
export async function loadIcons() {
  const answer = await fetch("/studio/icons.svg");
  const page = new DOMParser().parseFromString(await answer.text(), "image/svg+xml");
  for (const symbol of page.querySelectorAll("symbol")) symbols.set(symbol.id, symbol);
}

export function icon(name) {
  const symbol = symbols.get(name);
  const node = svg("svg", { class: "icon", "aria-hidden": "true" });
  if (!symbol) return node;
  for (const { name: key, value } of symbol.attributes) if (key !== "id") node.setAttribute(key, value);
  node.append(...[...symbol.cloneNode(true).childNodes].map((child) => document.importNode(child, true)));
  return node;
}

export function setIcon(button, name) {
  button.querySelector(".icon").replaceWith(icon(name));
}

export const iconButton = (name, label, onclick, more) =>
  h("button.quiet.icon-only", { type: "button", "aria-label": label, title: label, onclick, ...more },
    icon(name));

/// Keeps the children of `parent` equal to `items`, without rebuilding those that stay.
/// `create(item)` gives {node, update(item)}.
export function keyed(parent, items, key, create) {
  const before = parent.views ?? new Map();
  const now = new Map();
  let cursor = parent.firstChild;
  for (const item of items) {
    const id = key(item);
    const view = before.get(id) ?? create(item);
    view.update?.(item);
    now.set(id, view);
    if (view.node === cursor) cursor = cursor.nextSibling;
    else parent.insertBefore(view.node, cursor);
  }
  for (const [id, view] of before) {
    if (now.has(id)) continue;
    view.remove?.();
    view.node.remove();
  }
  parent.views = now;
}

export function announce(text) {
  setText(byId("announcer"), text);
}

/// A short note at the edge of the page, gone by itself.
export function toast(text, kind = "plain") {
  const node = h("p.toast", { data: { kind } }, text);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 4500);
}

/// Settings that are open beside their result, and folded above it on a phone.
export function foldWhenNarrow(details) {
  const wide = matchMedia("(min-width: 56.01rem)");
  const fold = () => { details.open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
}

/// A button that asks once more before it does something that cannot be undone.
export function confirmButton(label, question, action, classes = "quiet") {
  let armed = 0;
  const words = h("span", null, label);
  const button = h(`button.${classes}`, { type: "button" }, icon("trash"), words);
  const calm = () => { armed = 0; words.textContent = label; button.classList.remove("danger"); };
  button.addEventListener("click", async () => {
    if (!armed) {
      armed = setTimeout(calm, 4000);
      words.textContent = question;
      button.classList.add("danger");
      return;
    }
    clearTimeout(armed);
    calm();
    button.disabled = true;
    try { await action(); } catch (error) { toast(error.message, "bad"); }
    button.disabled = false;
  });
  button.addEventListener("blur", () => { clearTimeout(armed); calm(); });
  return button;
}
