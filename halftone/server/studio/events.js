// The stream of events: kept open, opened again with growing patience, never twice at once.
// A page that is hidden for long lets go of it, since browsers allow few connections per server.

const NAMES = ["state", "progress", "preview", "result", "held_out", "checkpoint", "gradients",
  "warning", "fallback"];
const WAITS = [1, 2, 4, 8, 15, 30];  // seconds
const HIDDEN_PATIENCE = 60;          // seconds

function listen(source, onEvent) {
  for (const name of NAMES) {
    source.addEventListener(name, (message) => {
      let data;
      try { data = JSON.parse(message.data); } catch { return; }
      const seq = Number(data.seq ?? message.lastEventId) || 0;
      onEvent({ ...data, type: name, seq });
    });
  }
}

export class EventHub {
  /// check() is awaited before each connection after a loss and says whether the server is the
  /// one that it was: {same}. onOpen({again}) comes when events flow.
  constructor({ onEvent, onStatus, onOpen, check }) {
    Object.assign(this, { onEvent, onStatus, onOpen, check });
    this.last = 0;
    this.from = 0;  // the first that this page heard; from there on it knows everything
    this.tries = 0;
    this.source = null;
    this.timer = 0;
    this.resting = 0;
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => this.visibility());
    addEventListener("pagehide", () => this.source?.close());
  }

  start() { this.connect(false); }

  connect(again) {
    this.source?.close();
    const source = new EventSource(`/api/events${this.last ? `?after=${this.last}` : ""}`);
    this.source = source;
    source.onopen = () => {
      this.tries = 0;
      this.onStatus({ live: true });
      this.onOpen({ again });
    };
    source.onerror = () => { if (source === this.source) this.lost(); };
    listen(source, (event) => {
      this.from ||= event.seq;
      this.last = Math.max(this.last, event.seq);
      this.onEvent(event);
    });
  }

  lost() {
    this.source?.close();
    this.source = null;
    const wait = WAITS[Math.min(this.tries++, WAITS.length - 1)] * (0.8 + 0.4 * Math.random());
    this.onStatus({ live: false, retryAt: Date.now() + wait * 1000, tries: this.tries });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.retry(), wait * 1000);
  }

  async retry() {
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.checking) return;
    this.checking = true;
    try {
      const { same } = await this.check();
      if (!same) this.last = this.from = 0;
      this.connect(true);
    } catch {
      this.lost();
    } finally {
      this.checking = false;
    }
  }

  hurry() { if (!this.source && !this.resting) this.retry(); }

  visibility() {
    clearTimeout(this.hiding);
    if (document.hidden) {
      this.hiding = setTimeout(() => {
        if (!this.source) return;
        this.source.close();
        this.source = null;
        this.resting = 1;
      }, HIDDEN_PATIENCE * 1000);
    } else if (this.resting) {
      this.resting = 0;
      this.retry();
    } else {
      this.hurry();
    }
  }
}

/// Every event of one job so far; ends by itself when the past has been told, up to what `known()` says is
/// known anyway, since a browser has few connections and a running job would keep this one.
export function replay(id, onEvent, known) {
  return new Promise((resolve) => {
    const source = new EventSource(`/api/jobs/${encodeURIComponent(id)}/events?after=0`);
    let timer = 0;
    const end = () => { clearTimeout(timer); source.close(); resolve(); };
    const soon = (ms) => { clearTimeout(timer); timer = setTimeout(end, ms); };
    source.onerror = end;
    source.onopen = () => soon(3000);
    listen(source, (event) => {
      onEvent(event);
      if (known() && event.seq >= known()) end();
      else soon(1200);
    });
    soon(10000);
  });
}
