// Pictures and captions dropped on the page or chosen in a dialog, sent two at a time.

import { api } from "./api.js";
import { bytes } from "./format.js";
import { store } from "./store.js";

const TYPES = { png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", webp: "image/webp", txt: "text/plain" };
const AT_ONCE = 2;
const MOST_FILES = 20000;

const extension = (name) => (name.includes(".") ? name.split(".").pop().toLowerCase() : "");
export const ACCEPT = ".png,.jpg,.jpeg,.webp,.txt";

/// Every file of a drop, also those in folders.
export async function filesOf(transfer) {
  const entries = [...(transfer.items ?? [])].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files];
  const out = [];
  const read = (reader) => new Promise((resolve, reject) => reader.readEntries(resolve, reject));
  async function walk(entry, depth) {
    if (out.length >= MOST_FILES || depth > 8) return;
    if (entry.isFile) {
      out.push(await new Promise((resolve, reject) => entry.file(resolve, reject)));
    } else if (entry.isDirectory) {
      const reader = entry.createReader();
      for (let some = await read(reader); some.length; some = await read(reader)) {
        for (const inner of some) await walk(inner, depth + 1);
      }
    }
  }
  for (const entry of entries) await walk(entry, 0);
  return out;
}

function refusal(file) {
  const kind = extension(file.name);
  if (!TYPES[kind]) return "is no PNG, JPEG, WebP or caption (.txt)";
  if (!file.size) return "is empty";
  const most = store.info?.limits?.most_upload_bytes;
  if (most && file.size > most) return `is larger than ${bytes(most)}, the most that this server takes`;
  return "";
}

/// onProgress({done, total, failed: [{file, why}]}) after each file. Pictures go before captions.
export async function upload(name, files, onProgress) {
  const sorted = [...files].filter((f) => !f.name.startsWith("."))
    .sort((a, b) => (extension(a.name) === "txt") - (extension(b.name) === "txt"));
  const state = { done: 0, total: sorted.length, failed: [] };
  const queue = sorted.slice();
  onProgress(state);
  async function worker() {
    for (let file = queue.shift(); file; file = queue.shift()) {
      const why = refusal(file);
      if (why) {
        state.failed.push({ file: file.name, why });
      } else {
        try {
          await api.putFile(name, file.name, file, TYPES[extension(file.name)]);
        } catch (error) {
          state.failed.push({ file: file.name, why: error.message });
        }
      }
      ++state.done;
      onProgress(state);
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  return state;
}
