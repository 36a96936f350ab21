// Two pictures of the same thing, one over the other, with an edge between them that the mouse, a
// finger or the arrow keys move. The range input under the pointer is what screen readers see.

import { h, setText } from "./dom.js";
import { swap } from "./tile.js";

export function makeSlider() {
  const left = { img: h("img", { alt: "", hidden: true, draggable: false }), label: h("span.slider-label.left") };
  const right = { img: h("img", { alt: "", hidden: true, draggable: false }), label: h("span.slider-label.right") };
  const range = h("input", { type: "range", min: 0, max: 100, step: 1,
    "aria-label": "Edge between the two pictures" });
  const over = h("div.slider-over", null, left.img);
  const node = h("div.slider", null, h("span.dots", { "aria-hidden": "true" }), right.img, over,
    left.label, right.label, h("span.slider-edge", { "aria-hidden": "true" }, h("span.slider-grip")), range);

  const paint = () => {
    node.style.setProperty("--at", `${range.value}%`);
    range.setAttribute("aria-valuetext", `${range.value}% ${left.name}, ${100 - range.value}% ${right.name}`);
  };
  range.value = 50;
  range.addEventListener("input", paint);

  return {
    node, range,
    /// sides: {url, name, preview} each
    set(a, b, width, height) {
      node.style.setProperty("--w", width);
      node.style.setProperty("--h", height);
      for (const [side, given] of [[left, a], [right, b]]) {
        side.name = given.name;
        setText(side.label, given.name);
        if (given.url) swap(side.img, given.url);
        side.img.alt = given.url ? `Drawn in ${given.name}` : "";
        side.img.classList.toggle("unfinished", Boolean(given.preview));
      }
      range.setAttribute("aria-label", `Edge between ${a.name} and ${b.name}`);
      paint();
    },
  };
}
