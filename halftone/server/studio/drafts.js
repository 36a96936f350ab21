// What was typed, kept in this browser, so that a reload loses nothing.

const PREFIX = "halftone.draft.";

export function readDraft(name) {
  try { return JSON.parse(localStorage.getItem(PREFIX + name)) ?? {}; } catch { return {}; }
}

const waiting = new Map();
let timer = 0;

function write() {
  clearTimeout(timer);
  timer = 0;
  for (const [name, values] of waiting) {
    try { localStorage.setItem(PREFIX + name, JSON.stringify(values)); } catch { /* full or none */ }
  }
  waiting.clear();
}

export function writeDraft(name, values) {
  waiting.set(name, values);
  timer ||= setTimeout(write, 200);
}
addEventListener("pagehide", write);
