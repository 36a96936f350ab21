// A list of pictures, one at a time and large. Arrow keys go through them, Esc closes.

import { h, iconButton, setText } from "./dom.js";
import { swap } from "./tile.js";

export function openLightbox(list, start) {
  let at = start;
  const img = h("img", { alt: "" });
  const text = h("p.lightbox-text");
  const previous = iconButton("left", "The one before", () => show(at - 1));
  const next = iconButton("right", "The next one", () => show(at + 1));
  const close = iconButton("close", "Close", () => dialog.close());
  const dialog = h("dialog.viewer.single", { "aria-label": "Sample" },
    h("div.viewer-stage", null, img, previous, next, text), close);
  const from = document.activeElement;
  function show(to) {
    at = Math.max(0, Math.min(list.length - 1, to));
    swap(img, list[at].url);
    img.alt = list[at].text;
    img.style.setProperty("--w", list[at].width ?? 1024);
    img.style.setProperty("--h", list[at].height ?? 1024);
    setText(text, list[at].text);
    previous.disabled = at === 0;
    next.disabled = at === list.length - 1;
  }
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(at - 1);
    if (event.key === "ArrowRight") show(at + 1);
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { dialog.remove(); from?.focus?.(); });
  document.body.append(dialog);
  show(start);
  dialog.showModal();
  close.focus();
}
