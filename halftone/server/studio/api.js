// Calls to the server. Every failure becomes an ApiError whose message can be shown as it is.

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", field = "", retry = 0 } = {}) {
    super(message);
    Object.assign(this, { status, code, field, retry });
  }
}

let askForKey = null;  // set by login.js: resolves once a key was accepted
export const onUnauthorized = (ask) => { askForKey = ask; };

const SECONDS = 60;

export async function call(method, path, body, { signal, type, patience = SECONDS } = {}) {
  const json = body !== undefined && type === undefined;
  const headers = {};
  if (json) headers["Content-Type"] = "application/json";
  if (type) headers["Content-Type"] = type;
  let answer;
  try {
    answer = await fetch(path, {
      method, headers, cache: "no-store", credentials: "same-origin",
      body: json ? JSON.stringify(body) : body,
      signal: signal ?? AbortSignal.timeout(patience * 1000),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError("Halftone does not answer. Check that it is still running; this page keeps trying.",
      { code: "offline" });
  }
  if (answer.status === 401 && askForKey && path !== "/api/login") {
    await askForKey();
    return call(method, path, body, { signal, type, patience });
  }
  if (!answer.ok) throw await readError(answer);
  if (answer.status === 204) return null;
  const isJson = (answer.headers.get("Content-Type") ?? "").includes("json");
  return isJson ? answer.json() : answer.text();
}

async function readError(answer) {
  const retry = Number(answer.headers.get("Retry-After")) || 0;
  let error = null;
  try { error = (await answer.json()).error; } catch { /* not ours: a proxy's page */ }
  const message = error?.message || `The server answered ${answer.status}. Try again in a moment.`;
  return new ApiError(retry ? `${message.replace(/\.?$/, ".")} Try again in ${retry} s.` : message, {
    status: answer.status, code: error?.code ?? "", field: error?.field ?? "", retry });
}

const part = encodeURIComponent;
const path = (file) => file.split("/").map(part).join("/");
const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, v]) => v !== undefined && v !== null && v !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const api = {
  login: (key) => call("POST", "/api/login", { key }),
  logout: () => call("POST", "/api/logout"),
  info: () => call("GET", "/api/info"),
  loras: () => call("GET", "/api/loras"),
  jobs: (filter) => call("GET", `/api/jobs${query(filter)}`),
  job: (id) => call("GET", `/api/jobs/${part(id)}`),
  submit: (kind, request) => call("POST", `/api/${kind}`, request),
  cancel: (id) => call("POST", `/api/jobs/${part(id)}/cancel`),
  resume: (id) => call("POST", `/api/jobs/${part(id)}/resume`),
  remove: (id) => call("DELETE", `/api/jobs/${part(id)}`),
  datasets: () => call("GET", "/api/datasets"),
  dataset: (name) => call("GET", `/api/datasets/${part(name)}`),
  createDataset: (name) => call("POST", "/api/datasets", { name }),
  removeDataset: (name) => call("DELETE", `/api/datasets/${part(name)}`),
  putFile: (name, file, body, type) =>
    call("PUT", `/api/datasets/${part(name)}/files/${path(file)}`, body, { type, patience: 600 }),
  putLora: (name, body, replace) =>
    call("PUT", `/api/loras/${part(name)}${replace ? "?replace=true" : ""}`, body,
      { type: "application/octet-stream", patience: 1800 }),
  removeLora: (name) => call("DELETE", `/api/loras/${part(name)}`),
  removeFile: (name, file) => call("DELETE", `/api/datasets/${part(name)}/files/${path(file)}`),
};
