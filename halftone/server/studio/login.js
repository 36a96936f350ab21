// The form that asks for the key, when the server wants one.

import { h, fill } from "./dom.js";
import { api, onUnauthorized } from "./api.js";

let open = null;

export function installLogin() {
  onUnauthorized(() => {
    open ??= ask().finally(() => { open = null; });
    return open;
  });
}

function ask() {
  return new Promise((resolve) => {
    const input = h("input", { type: "password", id: "key", name: "key", required: true,
      autocomplete: "current-password", "aria-describedby": "key-error key-hint" });
    const error = h("p.error", { id: "key-error", role: "alert" });
    const button = h("button.primary", { type: "submit" }, "Unlock");
    const form = h("form.login", { method: "dialog" },
      h("img", { src: "/studio/mark.svg", alt: "" }),
      h("h2", null, "This Halftone asks for a key"),
      h("p.muted", { id: "key-hint" }, "It is one of those that the server was started with. "
        + "Whoever runs it can tell you."),
      h("input", { type: "text", autocomplete: "username", value: "halftone", hidden: true, "aria-label": "User" }),
      h("label", { htmlFor: "key" }, "Key"), input, error, button);
    const dialog = h("dialog.small", { "aria-label": "Key needed" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!input.value) return;
      button.disabled = true;
      fill(error);
      try {
        await api.login(input.value);
        dialog.close();
        dialog.remove();
        resolve();
      } catch (problem) {
        fill(error, problem.status === 401 || problem.status === 403
          ? "That key is not accepted. Check it for missing letters and try again." : problem.message);
        input.select();
      } finally {
        button.disabled = false;
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    input.focus();
  });
}
