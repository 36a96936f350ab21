// A LoRA that someone brings: a .safetensors dropped on its field or chosen in a dialog.

import { h, fill, icon } from "./dom.js";
import { api } from "./api.js";
import { bytes } from "./format.js";
import { store, loadLoras, model as findModel } from "./store.js";

const KIND = /\.safetensors$/i;

/// What the server takes as a name, as near to the file's own as it gets.
export const loraName = (file) => file.replace(KIND, "").replace(/[^\p{L}\p{N} ._-]+/gu, "-")
  .replace(/^[. -]+|[ -]+$/g, "").slice(0, 60) || "lora";

function refusal(file) {
  if (!KIND.test(file.name)) return `${file.name} is no LoRA: those are .safetensors files.`;
  if (!file.size) return `${file.name} is empty.`;
  const most = store.info?.limits?.most_lora_bytes;
  return most && file.size > most ? `${file.name} has ${bytes(file.size)}, and this server takes ${bytes(most)} at most.` : "";
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1).replace(/\.?$/, ".")}`;

/// Why it cannot be used with a model, in words.
export function whyUnfit(lora, id) {
  if (lora.error) return sentence(lora.error);
  const why = lora.unfit?.find((u) => u.model === id)?.why;
  return why ? `It does not fit ${findModel(id)?.title ?? id}: ${why.replace(/\.?$/, ".")}` : "";
}

/// `onhere(lora)` is told of each one that has arrived. Gives {node, button, drop(target)}.
export function loraUpload({ onhere }) {
  const chooser = h("input.only-read", { type: "file", accept: ".safetensors", tabIndex: -1, "aria-label": "LoRA file to add" });
  const button = h("button.small", { type: "button", onclick: () => chooser.click() }, icon("upload"), "Add a file");
  const said = h("div.upload-said", { role: "status" });
  const node = h("div", null, chooser, said);
  let busy = false;

  const say = (kind, ...words) => fill(said, h(kind === "bad" ? "p.error" : "p.hint", null, ...words));

  async function send(file, replace) {
    const name = loraName(file.name);
    busy = button.disabled = true;
    say("plain", `Sending ${file.name}, ${bytes(file.size)}…`);
    try {
      const lora = await api.putLora(name, file, replace);
      await loadLoras();
      const here = lora.fits.length ? `${lora.name} is here.` : `${lora.name} is kept, but fits no model that is here.`;
      const why = lora.fits.length ? "" : ` ${whyUnfit(lora, lora.unfit[0]?.model)}`;
      say(lora.fits.length ? "plain" : "bad", here + why);
      onhere(lora);
    } catch (error) {
      if (error.status !== 409) say("bad", `${file.name} was not taken: ${sentence(error.message)}`);
      else ask(file, name);
    }
    busy = button.disabled = false;
  }

  function ask(file, name) {
    const yes = h("button.small", { type: "button", onclick: () => send(file, true) }, "Replace it");
    fill(said, h("p.hint", null, `There is a LoRA called ${name} already.`),
      h("div.row", null, yes, h("button.small.quiet", { type: "button", onclick: () => { fill(said); button.focus(); } }, "Keep it")));
    yes.focus();
  }

  async function take(files) {
    for (const file of files) {
      if (busy) { say("bad", "Wait until the file before this one is sent."); return; }
      const why = refusal(file);
      if (why) say("bad", why);
      else await send(file, false);
    }
  }

  chooser.addEventListener("change", () => { take([...chooser.files]).finally(() => { chooser.value = ""; }); });

  return {
    node, button,
    drop(target) {
      target.addEventListener("dragover", (event) => {
        if (![...event.dataTransfer.types].includes("Files")) return;
        event.preventDefault();
        target.classList.add("over");
      });
      target.addEventListener("dragleave", (event) => {
        if (!target.contains(event.relatedTarget)) target.classList.remove("over");
      });
      target.addEventListener("drop", (event) => {
        event.preventDefault();
        target.classList.remove("over");
        take([...event.dataTransfer.files]);
      });
    },
  };
}
