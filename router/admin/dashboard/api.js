// Asking the router. The token lives in this tab's session storage and goes in a header: no cookie, so no other page
// can ask in its place.

const TOKEN = "warmroute.token";
const RETRY_MS = 1000;
const SILENT_MS = 5000;

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  clear: () => sessionStorage.removeItem(TOKEN),
};

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(path, options = {}) {
  const headers = { accept: "application/json", ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  let message = `the router answered ${answer.status}`;
  try {
    message = (await answer.json()).error.message;
  } catch { /* an answer of something between us and the router */ }
  throw new Refused(answer.status, message);
}

export const getJson = async (path) => (await ask(path)).json();

export const postJson = async (path, text) =>
  (await ask(path, { method: "POST", body: text, headers: { "content-type": "application/json" } })).json();

/** Follow server-sent events until stopped; begins again when the connection breaks or says nothing for 5 s.
 *
 * `fetch` and not `EventSource`, which sends no Authorization header.
 */
export function follow(path, { onEvent, onUp, onDown, onRefused }) {
  let stopped = false;
  let abort = new AbortController();

  async function once() {
    abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENT_MS);
    try {
      const answer = await ask(path, { signal: abort.signal, headers: { accept: "text/event-stream" } });
      onUp();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let waiting = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENT_MS);
        waiting += value;
        const parts = waiting.split("\n\n");
        waiting = parts.pop();
        parts.forEach((part) => tell(part, onEvent));
      }
    } finally {
      clearTimeout(timer);
    }
  }

  async function run() {
    while (!stopped) {
      let why = "the connection ended";
      try {
        await once();
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          onRefused(error);
          return;
        }
        why = error instanceof Refused ? error.message : "the router does not answer";
      }
      if (!stopped) onDown(why);
      await new Promise((resolve) => { setTimeout(resolve, RETRY_MS); });
    }
  }

  run();
  return () => { stopped = true; abort.abort(); };
}

function tell(part, onEvent) {
  let name = "message";
  let data = "";
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (data) onEvent(name, JSON.parse(data));
}
