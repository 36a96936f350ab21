// The address says what is shown (#/tab/what/ID), so that reload, back and links just work.

const TABS = ["generate", "train", "quantize", "system"];
const listeners = new Set();

export function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((p) => {
    try { return decodeURIComponent(p); } catch { return p; }
  });
  const tab = TABS.includes(parts[0]) ? parts[0] : "generate";
  return { tab, rest: TABS.includes(parts[0]) ? parts.slice(1).filter(Boolean) : [] };
}

export const address = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function go(...parts) {
  if (location.hash !== address(...parts)) location.hash = address(...parts);
}

/// As go(), without leaving a step for "back".
export function replace(...parts) {
  if (location.hash === address(...parts)) return;
  history.replaceState(null, "", address(...parts));
  tell();
}

export function onRoute(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let last = "";
function tell() {
  const now = location.hash;
  if (now === last) return;
  last = now;
  for (const listener of [...listeners]) listener(route());
}

addEventListener("hashchange", () => {
  if (location.hash && !location.hash.startsWith("#/")) return;  // the skip link
  tell();
});
