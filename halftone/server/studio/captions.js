// A folder of pictures with their captions: seen at once, written in place, saved when one leaves them.

import { h, fill, icon, iconButton, confirmButton, keyed, setText, toast, unique, announce } from "./dom.js";
import { api } from "./api.js";
import { count } from "./format.js";
import { loadDatasets, datasetNamed, createDataset, freeName, datasets, nameProblem } from "./datasets.js";
import { upload, filesOf, ACCEPT } from "./upload.js";

const captionFile = (file) => file.replace(/\.[^./]+$/, ".txt");

export function makeCaptions({ onpick }) {
  const title = h("h2");
  const counts = h("p.muted");
  const only = h("input", { type: "checkbox", id: unique("only") });
  const filter = h("label.inline-check", { htmlFor: only.id }, only, "Only those without a caption");
  const chooser = h("input.only-read", { type: "file", multiple: true, accept: ACCEPT, tabIndex: -1,
    "aria-label": "Pictures to add" });
  const add = h("button", { type: "button", onclick: () => chooser.click() }, icon("plus"), "Add pictures");
  const tools = h("div.row");
  const drop = h("div.drop", null, icon("upload"),
    h("p", null, h("b", null, "1. Drop pictures or a folder here")),
    h("p.muted", null, "Ten to thirty of the same person, thing or style are a good start. PNG, JPEG or WebP; captions in NAME.txt beside NAME.png come along."),
    h("div.row.centre", null, h("button", { type: "button", onclick: () => chooser.click() }, icon("picture"), "Choose pictures")),
    h("p", null, h("b", null, "2. Write below each what it shows")),
    h("p", null, h("b", null, "3. Name the result and start the training")));
  const sending = h("div.sending", { role: "status", hidden: true });
  const skipped = h("details.skipped", { hidden: true });
  const grid = h("div.captions");
  const node = h("div.dataset", null, h("div.area-head", null, h("div", null, title, counts), tools),
    chooser, sending, skipped, drop, filter, grid);
  let name = "";
  let data = null;
  let busy = false;

  function drawCounts() {
    const items = data?.items ?? [];
    const missing = items.filter((i) => !i.caption.trim()).length;
    setText(counts, !data ? "" : !items.length ? "No pictures yet" : [count(items.length, "picture"),
      missing ? `${missing} without a caption` : "every one has a caption",
      data.skipped.length ? `${data.skipped.length} left out` : "",
      data.editable ? "" : "this folder belongs to the server and cannot be changed here"].filter(Boolean).join(" · "));
    counts.dataset.missing = String(missing);
    filter.hidden = !missing && !only.checked;
  }

  function card(item) {
    const words = h("textarea", { rows: 3, spellcheck: true, readOnly: !data.editable, id: unique("caption"),
      placeholder: data.editable ? "What is in this picture?" : "No caption" });
    const state = h("span.card-state", { role: "status" });
    const label = h("label.only-read", { htmlFor: words.id }, `Caption of ${item.file}`);
    const own = name;
    let saved = item.caption;
    words.value = item.caption;
    async function save() {
      const text = words.value.trim();
      if (text === saved.trim()) return;
      setText(state, "Saving…");
      state.dataset.kind = "plain";
      try {
        await api.putFile(own, captionFile(item.file), text, "text/plain; charset=utf-8");
        saved = text;
        item.caption = text;
        setText(state, "Saved");
        drawCounts();
        const known = datasetNamed(own);
        if (known) known.captioned = data.items.filter((i) => i.caption.trim()).length;
      } catch (error) {
        setText(state, `Not saved: ${error.message}`);
        state.dataset.kind = "bad";
      }
    }
    words.addEventListener("blur", save);
    words.addEventListener("input", () => {
      setText(state, "");
      figure.classList.toggle("missing", !words.value.trim());
    });
    words.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { words.value = saved; words.blur(); }
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        (figure.nextElementSibling?.querySelector("textarea") ?? words).focus();
      }
    });
    const gone = data.editable ? iconButton("trash", `Remove ${item.file}`, async () => {
      gone.disabled = true;
      try {
        await api.removeFile(own, item.file);
        if (item.caption) await api.removeFile(own, captionFile(item.file)).catch(() => {});
        data.items = data.items.filter((i) => i !== item);
        drawItems();
        announce(`${item.file} is removed.`);
        toast(`${item.file} is removed.`);
        loadDatasets().catch(() => {});
      } catch (error) { toast(error.message, "bad"); gone.disabled = false; }
    }) : null;
    const figure = h("article.caption-card", { class: item.caption.trim() ? "" : "missing" },
      h("div.caption-picture", null, h("img", { src: item.url, alt: "", loading: "lazy", decoding: "async" }), gone),
      label, words, h("div.card-foot", null, h("span.file", { title: item.file }, item.file), state));
    figure.classList.add("caption-card");
    return { node: figure };
  }

  function drawItems() {
    const items = (data?.items ?? []).filter((i) => !only.checked || !i.caption.trim());
    keyed(grid, items, (i) => `${name}/${i.file}/${i.url}`, card);
    drop.hidden = !data?.editable || data.items.length > 0;
    drawCounts();
  }

  function drawSkipped() {
    const list = data?.skipped ?? [];
    skipped.hidden = !list.length;
    fill(skipped, h("summary", null, icon("warn"), `${count(list.length, "file")} left out, with the reason`, icon("down")),
      h("ul", null, list.map((s) => h("li", null, h("code", null, s.file), ` ${s.why}`))));
  }

  function drawTools() {
    fill(tools, data?.editable ? add : null, data?.editable
      ? confirmButton("Delete folder", "Delete all of it?", async () => {
        await api.removeDataset(name);
        const rest = (await loadDatasets())[0];
        onpick(rest?.name ?? "");
      }) : null);
  }

  async function show(which) {
    name = which;
    data = null;
    setText(title, which || "Teach it something new");
    setText(counts, which ? "Reading…" : "");
    fill(grid);
    grid.views = new Map();
    fill(tools);
    skipped.hidden = true;
    filter.hidden = true;
    drop.hidden = Boolean(which);
    if (!which) return;
    try {
      const got = await api.dataset(which);
      if (name !== which) return;
      data = { skipped: [], ...got };
      drawTools();
      drawSkipped();
      drawItems();
    } catch (error) {
      if (name === which) setText(counts, error.message);
    }
  }

  async function take(files) {
    if (!files.length) return;
    if (busy) { toast("Wait until the pictures before these are sent."); return; }
    if (data && !data.editable) { toast("This folder cannot be changed here. Make a new one first.", "bad"); return; }
    busy = true;
    sending.hidden = false;
    try {
      if (!name) name = await createDataset(freeName("pictures"));
      const target = name;
      const state = await upload(target, files, ({ done, total, failed }) => fill(sending,
        h("span", null, done < total ? `Sending ${done + 1} of ${total}…` : `${count(total - failed.length, "file")} added.`),
        h("span.bar-line", null, h("span.bar-fill", { vars: { "--part": String(total ? done / total : 1) } })),
        failed.length ? h("ul", null, failed.map((f) => h("li", null, h("code", null, f.file), ` ${f.why}`))) : null));
      await loadDatasets();
      if (name === target) { await show(target); onpick(target); }
      if (!state.failed.length) setTimeout(() => { if (!busy) sending.hidden = true; }, 3000);
    } catch (error) {
      fill(sending, h("p.error", null, error.message));
    } finally {
      busy = false;
    }
  }

  chooser.addEventListener("change", () => { take([...chooser.files]).finally(() => { chooser.value = ""; }); });
  only.addEventListener("change", drawItems);
  node.addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    node.classList.add("over");
  });
  node.addEventListener("dragleave", (event) => {
    if (!node.contains(event.relatedTarget)) node.classList.remove("over");
  });
  node.addEventListener("drop", async (event) => {
    event.preventDefault();
    node.classList.remove("over");
    try { take(await filesOf(event.dataTransfer)); } catch { toast("These files could not be read.", "bad"); }
  });

  return { node, show, current: () => name };
}

/// The line that makes a new, empty folder.
export function newFolder({ ondone }) {
  const input = h("input", { type: "text", id: unique("folder"), autocomplete: "off", spellcheck: false,
    placeholder: "my-pictures" });
  const error = h("p.error", { role: "alert", id: unique("folder-error") });
  input.setAttribute("aria-describedby", error.id);
  const node = h("div.new-folder", { hidden: true, role: "group", "aria-label": "New folder" },
    h("label", { htmlFor: input.id }, "Name of the new folder"), input,
    h("div.row", null, h("button", { type: "button", onclick: make }, "Make it"),
      h("button.quiet", { type: "button", onclick: () => { node.hidden = true; } }, "Cancel")), error);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") node.hidden = true;
    if (event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    make();
  });
  async function make() {
    const name = input.value.trim();
    const wrong = nameProblem(name, "The folder")
      || (datasets.list.some((d) => d.name === name) ? "There is a folder of that name already." : "");
    fill(error, wrong);
    if (wrong) { input.focus(); return; }
    try {
      await createDataset(name);
      node.hidden = true;
      input.value = "";
      ondone(name);
    } catch (problem) { fill(error, problem.message); }
  }
  return { node, open() { node.hidden = false; input.focus(); } };
}
