// The frame: tabs, theme, state of the connection; then one view per tab, made when first seen.

import { byId, h, fill, icon, setIcon, setText, loadIcons } from "./dom.js";
import { count } from "./format.js";
import { route, onRoute, go } from "./router.js";
import { arrowTabs, markTab } from "./tabs.js";
import { store, on, start, counts } from "./store.js";
import { installLogin } from "./login.js";
import { makeGenerate } from "./generate.js";
import { makeTrain } from "./train.js";
import { makeQuantize } from "./quantize.js";
import { makeSystem } from "./system.js";

const VIEWS = { generate: makeGenerate, train: makeTrain, quantize: makeQuantize, system: makeSystem };
const TITLES = { generate: "Generate", train: "Train", quantize: "Quantize", system: "System" };
const made = {};

function show(now) {
  const names = Object.keys(VIEWS);
  markTab(names.map((tab) => byId(`tab-${tab}`)), names.indexOf(now.tab));
  for (const tab of names) {
    byId(`panel-${tab}`).hidden = tab !== now.tab;
    if (tab !== now.tab) made[tab]?.leave?.();
  }
  document.title = `${TITLES[now.tab]} · Halftone`;
  made[now.tab] ??= VIEWS[now.tab](byId(`panel-${now.tab}`));
  made[now.tab].show?.(now.rest);
}

function installTabs() {
  const names = Object.keys(VIEWS);
  arrowTabs(names.map((tab) => byId(`tab-${tab}`)), (to) => go(names[to]));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
}

function installTheme() {
  const button = byId("theme");
  const order = ["auto", "light", "dark"];
  const names = { auto: "as the system", light: "light", dark: "dark" };
  const icons = { auto: "auto", light: "sun", dark: "moon" };
  const now = () => document.documentElement.dataset.theme ?? "auto";
  const draw = () => {
    setIcon(button, icons[now()]);
    button.setAttribute("aria-label", `Colours: ${names[now()]}`);
    button.title = `Colours: ${names[now()]}`;
  };
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(now()) + 1) % order.length];
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try { localStorage.setItem("halftone.theme", next); } catch { /* for this visit only */ }
    draw();
  });
  draw();
}

function drawStatus() {
  const link = byId("status");
  const { running, queued } = counts();
  const lost = !store.connection.live && !store.connection.first;
  const words = lost ? "Not connected" : running || queued
    ? [running && `${running} running`, queued && `${queued} waiting`].filter(Boolean).join(" · ")
    : "Ready";
  link.dataset.state = lost ? "lost" : running ? "busy" : "ready";
  setText(link.querySelector(".words"), words);
}

let tick = 0;
function drawBanner() {
  const banner = byId("banner");
  const { live, first, retryAt } = store.connection;
  clearInterval(tick);
  if (live || (first && store.info)) {
    banner.hidden = true;
    return;
  }
  const words = h("span");
  const text = () => {
    const left = Math.max(0, Math.round((retryAt - Date.now()) / 1000));
    setText(words, `The connection to Halftone is lost. Work goes on there; ${left > 0
      ? `trying again in ${left} s.` : "trying again…"}`);
  };
  text();
  tick = setInterval(text, 1000);
  fill(banner, icon("warn"), words,
    h("button.quiet", { type: "button", onclick: () => store.hub?.retry() }, "Try now"));
  banner.hidden = false;
}

async function begin() {
  const main = byId("main");
  for (let wait = 1; ; wait = Math.min(wait * 2, 15)) {
    try {
      await start();
      byId("starting")?.remove();
      return;
    } catch (error) {
      byId("starting")?.remove();
      main.append(h("div.empty", { id: "starting" }, h("p", null, error.message),
        h("p.muted", null, `Trying again in ${count(wait, "second")}.`)));
      await new Promise((resolve) => setTimeout(resolve, wait * 1000));
    }
  }
}

// A file that misses its field must not take the page away.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());

await loadIcons().catch(() => {});  // words are enough
installTabs();
installTheme();
installLogin();
on("connection", drawBanner);
on("connection", drawStatus);
on("jobs", drawStatus);
await begin();
drawStatus();
onRoute(show);
show(route());
