// What the page knows about the server: info, jobs and what their events said. The server's answers
// are the truth; events only bring them up to date. Views subscribe to topics and read.

import { api } from "./api.js";
import { EventHub, replay } from "./events.js";

const ENDED = new Set(["done", "failed", "cancelled"]);
export const ended = (job) => ENDED.has(job.state);

export const store = {
  info: null,
  jobs: new Map(),      // id -> Job
  live: new Map(),      // id -> what only events say
  loras: [],
  next: new Map(),      // kind -> id to go on from, null at the end
  connection: { live: false, first: true },
};

// ---- topics: "info", "jobs", "loras", "connection", "job:ID", "result" ------------------------

const topics = new Map();
const dirty = new Set();
let waiting = false;

export function on(topic, listener) {
  if (!topics.has(topic)) topics.set(topic, new Set());
  topics.get(topic).add(listener);
  return () => topics.get(topic)?.delete(listener);
}

/// Listeners are called once per frame however much has happened.
export function changed(topic) {
  dirty.add(topic);
  if (waiting) return;
  waiting = true;
  if (document.hidden) setTimeout(flush, 200);
  else requestAnimationFrame(flush);
}

function flush() {
  waiting = false;
  const now = [...dirty];
  dirty.clear();
  for (const topic of now) {
    for (const listener of [...(topics.get(topic) ?? [])]) {
      try { listener(); } catch (error) { console.error(error); }
    }
  }
}

// ---- jobs --------------------------------------------------------------------------------------

export const model = (id) => store.info?.models.find((m) => m.id === id) ?? null;

export function liveOf(id) {
  if (!store.live.has(id)) {
    store.live.set(id, { previews: new Map(), warnings: [], fallbacks: [], points: new Map(),
      held: new Map(), checkpoint: 0, gradients: null, told: false });
  }
  return store.live.get(id);
}

/// Newest first.
export const jobsOf = (...kinds) => [...store.jobs.values()]
  .filter((job) => kinds.includes(job.kind))
  .sort((a, b) => b.created - a.created || String(b.id).localeCompare(String(a.id)));

export function putJob(job) {
  const known = store.jobs.has(job.id);
  store.jobs.set(job.id, job);
  changed(`job:${job.id}`);
  if (!known) changed("jobs");
  return job;
}

export function dropJob(id) {
  store.jobs.delete(id);
  store.live.delete(id);
  changed("jobs");
  changed(`job:${id}`);
}

export async function getJob(id) {
  return putJob(await api.job(id));
}

const asked = new Map();
/// Asks for a job again, once for any number of reasons at the same time.
function refresh(id) {
  if (asked.has(id)) return asked.get(id);
  const promise = api.job(id).then(putJob, (error) => {
    if (error.status === 404) dropJob(id);
  }).finally(() => asked.delete(id));
  asked.set(id, promise);
  return promise;
}

export async function loadJobs(kind, { more = false, limit = 50 } = {}) {
  if (more && !store.next.get(kind)) return false;
  const page = await api.jobs({ kind, limit, before: more ? store.next.get(kind) : undefined });
  page.jobs.forEach(putJob);
  if (more || !store.next.has(kind)) store.next.set(kind, page.next ?? null);
  changed("jobs");
  return page.next != null;
}

/// What a job's stream has told, for what its record does not hold: curves, warnings.
export async function history(id, { again = false } = {}) {
  const live = liveOf(id);
  if (live.told && !again) return;
  live.told = true;
  await replay(id, (event) => learn(event, true), () => store.hub?.from ?? 0);
  changed(`job:${id}`);
}

export async function submit(kind, request) {
  const job = await api.submit(kind, request);
  putJob(job);
  refreshQueue();
  return job;
}

export async function cancel(id) {
  const job = await api.cancel(id);
  if (job) putJob(job);
}

export async function resume(id) {
  putJob(await api.resume(id));
}

export async function remove(id) {
  try { await api.remove(id); } catch (error) { if (error.status !== 404) throw error; }
  dropJob(id);
}

// ---- events ------------------------------------------------------------------------------------

const add = (list, text) => { if (text && !list.includes(text)) list.push(text); };

/// What an event adds to the picture. `past`: it is told again and changes no state.
function learn(event, past) {
  const live = liveOf(event.job);
  const job = store.jobs.get(event.job);
  switch (event.type) {
    case "progress":
      if (Number.isFinite(event.loss)) live.points.set(event.done, event.loss);
      if (!past && job && !(ended(job) && event.time <= job.finished)) {
        const { type, seq, time, job: id, ...progress } = event;
        job.progress = { ...job.progress, ...progress };
        if (job.state === "queued") { job.state = "running"; job.position = null; }
      }
      break;
    case "preview":
      if (!job || !ended(job)) live.previews.set(event.index ?? 0, event.url);
      break;
    case "result":
      if (job && event.result && !job.results.some((r) => r.name === event.result.name)) {
        job.results = [...job.results, event.result];
      }
      break;
    case "held_out": live.held.set(event.step, event.loss); break;
    case "checkpoint": live.checkpoint = Math.max(live.checkpoint, event.step); break;
    case "gradients": live.gradients = event; break;
    case "warning": add(live.warnings, event.message); break;
    case "fallback": add(live.fallbacks, event.message); break;
    default: return;
  }
  changed(`job:${event.job}`);
}

function apply(event) {
  if (event.type !== "state") { learn(event, false); return; }
  const job = store.jobs.get(event.job);
  if (job) {
    if (ended(job) && event.time <= job.finished) return;  // told again
    const before = job.state;
    job.state = event.state;
    if (event.error) job.error = event.error;
    changed(`job:${job.id}`);
    if (before !== event.state && ENDED.has(event.state)) afterEnd(job);
  }
  refresh(event.job).then(() => changed("jobs"));
  refreshQueue();
}

function afterEnd(job) {
  if (job.kind === "train") loadLoras();
  if (job.kind === "quantize" || job.kind === "train" || job.kind === "generate") loadInfo();
}

let queueTimer = 0;
function refreshQueue() {
  clearTimeout(queueTimer);
  queueTimer = setTimeout(async () => {
    try {
      (await api.jobs({ state: "queued", limit: 50 })).jobs.forEach(putJob);
      changed("jobs");
    } catch { /* the next event brings the next try */ }
  }, 250);
}

// ---- starting and coming back ------------------------------------------------------------------

export async function loadInfo() {
  store.info = await api.info();
  changed("info");
  return store.info;
}

export async function loadLoras() {
  try {
    store.loras = (await api.loras()).loras;
    changed("loras");
  } catch { /* generating works without */ }
}

async function loadActive() {
  const [running, queued] = await Promise.all([
    api.jobs({ state: "running", limit: 50 }), api.jobs({ state: "queued", limit: 50 })]);
  const active = [...running.jobs, ...queued.jobs];
  active.forEach(putJob);
  // Jobs that we believe in and that are over, or gone, since we last heard:
  for (const job of store.jobs.values()) {
    if (!ended(job) && job.state !== "sending" && !active.some((a) => a.id === job.id)) refresh(job.id);
  }
  for (const job of running.jobs) history(job.id, { again: true });
  changed("jobs");
}

export async function start() {
  const hub = new EventHub({
    onEvent: apply,
    onStatus: (status) => {
      store.connection = { ...status, first: store.connection.first && !status.live };
      changed("connection");
    },
    onOpen: ({ again }) => {
      loadActive().catch(() => {});
      if (!again) return;
      loadLoras();
      for (const kind of store.next.keys()) loadJobs(kind).catch(() => {});
    },
    check: async () => {
      const before = store.info?.uptime ?? 0;
      const info = await loadInfo();
      return { same: info.uptime >= before };
    },
  });
  store.hub = hub;
  await loadInfo();
  await loadLoras();
  hub.start();
}

export function counts() {
  const all = [...store.jobs.values()];
  return {
    running: all.filter((j) => j.state === "running").length,
    queued: all.filter((j) => j.state === "queued" || j.state === "sending").length,
  };
}
