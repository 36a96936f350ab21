// What was typed, kept in this browser, so that a reload loses nothing.

const PREFIX = "halftone.draft.";

export function readDraft(name) {
  try { return JSON.parse(localStorage.getItem(PREFIX + name)) ?? {}; } catch { return {}; }
}

const timers = new Map();
export function writeDraft(name, values) {
  clearTimeout(timers.get(name));
  timers.set(name, setTimeout(() => {
    try { localStorage.setItem(PREFIX + name, JSON.stringify(values)); } catch { /* full or none */ }
  }, 200));
}
