// The size of a picture: shapes around the model's own area, or any that it can draw.

import { h, svg, iconButton } from "./dom.js";
import { number } from "./format.js";
import { numberField, segmentsField } from "./fields.js";

const SHAPES = [["1:1", 1, 1], ["4:3", 4, 3], ["3:4", 3, 4], ["16:9", 16, 9], ["9:16", 9, 16]];

const shapeIcon = (w, h0) => {
  const scale = 13 / Math.max(w, h0);
  return svg("svg", { class: "shape", viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("rect", { x: 8 - (w * scale) / 2, y: 8 - (h0 * scale) / 2, width: w * scale, height: h0 * scale, rx: 1.5 }));
};

export function sizeField(form) {
  const shape = segmentsField({ name: "shape", label: "Shape", options: [] });
  const width = numberField({ name: "width", label: "Width", min: 16, max: 8192 });
  const height = numberField({ name: "height", label: "Height", min: 16, max: 8192 });
  const swap = iconButton("swap", "Swap width and height", null);
  swap.classList.add("swap");
  const sizes = new Map();
  let multiple = 16;
  let most = Infinity;

  const mark = () => {
    shape.clear();
    for (const [name, size] of sizes) {
      if (size[0] === width.get() && size[1] === height.get()) shape.set(name);
    }
  };
  const put = (w, h0) => { width.set(w); height.set(h0); };
  shape.node.addEventListener("change", () => put(...sizes.get(shape.get())));
  for (const field of [width, height]) {
    field.box.addEventListener("input", mark);
    const own = field.check.bind(field);
    field.check = () => {
      const wrong = own();
      if (wrong) return wrong;
      const value = field.get();
      if (value % multiple) {
        const near = Math.max(multiple, Math.round(value / multiple) * multiple);
        return `${field === width ? "Width" : "Height"} must be a multiple of ${multiple}; ${near} is nearest.`;
      }
      if (field === height && value * width.get() > most) {
        return `Too large: this server draws up to ${number(most / 1e6, 1)} megapixels.`;
      }
      return "";
    };
  }
  swap.addEventListener("click", () => {
    put(height.get(), width.get());
    mark();
    form.keep();
  });
  form.add(width);
  form.add(height);

  return {
    nodes: [shape.node, h("div.pair-row", null, width.node, swap, height.node)],
    offer(model, limits) {
      multiple = model.defaults.multiple || 1;
      most = limits?.most_pixels || Infinity;
      const area = model.defaults.width * model.defaults.height;
      const round = (v) => Math.max(multiple, Math.round(v / multiple) * multiple);
      sizes.clear();
      for (const [name, a, b] of SHAPES) {
        const size = a === b ? [model.defaults.width, model.defaults.height]
          : [round(Math.sqrt((area * a) / b)), round(Math.sqrt((area * b) / a))];
        const twice = [...sizes.values()].some(([w, h0]) => w === size[0] && h0 === size[1]);
        if (!twice && size[0] * size[1] <= most) sizes.set(name, size);
      }
      shape.offer([...sizes].map(([name, [w, h0]]) => ({
        value: name, label: name, title: `${w} × ${h0}`, icon: () => shapeIcon(w, h0) })));
      width.limits(multiple, 8192, multiple);
      height.limits(multiple, 8192, multiple);
      mark();
    },
    set(w, h0) { put(w, h0); mark(); },
    mark,
  };
}
