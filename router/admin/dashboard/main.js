// Puts the page together: the stream, the keys, the theme, signing in.

import { follow, getJson, postJson, Refused, token } from "./api.js";
import { Decisions } from "./decisions.js";
import { byId, el, setAttribute, setText } from "./dom.js";
import { decision, Drawer, replica } from "./drawer.js";
import { Fleet } from "./fleet.js";
import { plural } from "./format.js";
import { Flow, Now, showWarnings } from "./now.js";
import { Prefixes } from "./prefixes.js";
import { Samples } from "./rates.js";
import { showConfig, showReload } from "./settings.js";

const THEME = "warmroute.theme";
const KEYS = [
  ["1 to 5", "Go to tokens, fleet, prefixes, decisions, configuration"],
  ["/", "Filter the fleet"],
  ["i", "Find a request by its id"],
  ["e", "Explain a body without sending it"],
  ["Down, Up or j, k", "Next or previous row of a table"],
  ["Enter", "Open the row"],
  ["Left, Right", "Read a chart, choose a tab"],
  ["p", "Hold the figures still, or go on"],
  ["t", "Light or dark"],
  ["Esc", "Close"],
];

const samples = new Samples();
const drawer = new Drawer();
const now = new Now();
const flow = new Flow();
const prefixes = new Prefixes();
const fleet = new Fleet((row) => openReplica(row.replica));
const decisions = new Decisions((id) => openDecision(id));
flow.onSpan = () => flow.update(samples);

let view = null;
let paused = false;
let digest = null;
let stop = () => {};
let heard = 0;

function onEvent(name, data) {
  heard = Date.now();
  if (name === "history") { samples.begin(data); fleet.bounds = data.ttft_bounds_s; }
  if (name === "sample") samples.add(data);
  if (name === "overview") {
    view = data;
    view.replicas.sort((one, other) => one.replica.localeCompare(other.replica, "en", { numeric: true }));
  }
  if (paused) return;
  if (name === "overview") show();
  if (name === "prefixes") prefixes.update(data);
  if (name === "sample" || name === "history") flow.update(samples);
}

function show() {
  now.update(view, samples);
  showWarnings(view.warnings);
  prefixes.fleet(view);
  fleet.update(view);
  decisions.update(view);
  showReload(view.reload, view.version, view.workers);
  setText(byId("ready"), view.ready ? "ready" : "not ready");
  setAttribute(byId("ready"), "data-tone", view.ready ? "good" : "bad");
  setAttribute(byId("ready"), "title", view.reasons.join("; "));
  document.title = `${view.warnings.length ? `(${view.warnings.length}) ` : ""}Warmroute`;
  if (view.reload.digest !== digest) {
    digest = view.reload.digest;
    getJson("config").then(showConfig).catch(refused);
  }
}

function connected(text, tone) {
  setText(byId("live"), text);
  setAttribute(byId("live"), "data-tone", tone);
}

function begin() {
  stop();
  connected("connecting", null);
  byId("leave").hidden = !token.get();
  stop = follow("events", {
    onEvent,
    onUp: () => connected(paused ? "held still" : "live", null),
    onDown: (why) => connected(`not live: ${why}`, "bad"),
    onRefused: (error) => signIn(token.get() ? error.message : ""),
  });
}

function refused(error) {
  if (error instanceof Refused && error.status === 401) signIn(error.message);
}

function signIn(message) {
  stop();
  token.clear();
  connected("signed out", null);
  setText(byId("sign-in-error"), message);
  byId("token").value = "";
  if (!byId("sign-in").open) byId("sign-in").showModal();
}

byId("sign-in").addEventListener("cancel", (event) => event.preventDefault());
byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  try {
    await getJson("overview");
    byId("sign-in").close();
    begin();
  } catch (error) {
    token.clear();
    setText(byId("sign-in-error"), error.message);
    byId("token").select();
  }
});
byId("leave").addEventListener("click", () => signIn(""));

async function openDecision(id) {
  try {
    drawer.show(`Why ${id} went there`, decision(await getJson(`decisions/${encodeURIComponent(id)}`)));
  } catch (error) {
    drawer.fail(`Request ${id}`, error);
  }
}

async function openReplica(id) {
  try {
    const found = (await getJson("replicas")).replicas.find((each) => each.replica === id);
    if (!found) throw new Error("it is no longer in the fleet");
    drawer.show(`Replica ${id}`, replica(found, view.replicas.find((row) => row.replica === id)));
  } catch (error) {
    drawer.fail(`Replica ${id}`, error);
  }
}

function tryBody() {
  const model = view?.replicas.find((row) => row.models.length)?.models[0] ?? "MODEL";
  const example = JSON.stringify({ model, messages: [{ role: "user", content: "Where would this go?" }] }, null, 2);
  const text = el("textarea", { id: "body-text", spellcheck: "false" });
  text.value = example;
  const out = el("div", { id: "body-answer", "aria-live": "polite" });
  const form = el("form", {},
    el("p", { class: "note" }, "An OpenAI body: the decision that it would get now. Nothing is sent to an engine."),
    el("label", { for: "body-text" }, "Body"), text, el("button", { type: "submit" }, "Explain"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      out.replaceChildren(...decision(await postJson("explain", text.value), { sent: false }));
    } catch (error) {
      out.replaceChildren(el("p", { class: "error", role: "alert" }, error.message));
    }
  });
  drawer.show("Explain a body", form, out);
  text.focus();
}

function showKeys() {
  drawer.show("Keyboard", el("table", { "aria-label": "Keys" }, el("tbody", {}, KEYS.map(([key, meaning]) =>
    el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, meaning))))));
}

function pause() {
  paused = !paused;
  setAttribute(byId("pause"), "aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Go on" : "Pause");
  connected(paused ? "held still" : "live", null);
  if (!paused && view) { show(); flow.update(samples); }
}

function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const current = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = current === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem(THEME, next);
  prefixes.redraw();
}

byId("pause").addEventListener("click", pause);
byId("theme").addEventListener("click", theme);
byId("keys").addEventListener("click", showKeys);
byId("try").addEventListener("click", tryBody);
byId("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = byId("find-id").value.trim();
  if (id) openDecision(id);
});

const SECTIONS = ["flow", "fleet", "prefixes", "decisions", "settings"];
const ACTIONS = { p: pause, t: theme, "?": showKeys, e: tryBody, "/": () => byId("fleet-filter").focus(), i: () => byId("find-id").focus() };

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea") || document.querySelector("dialog[open]")) return;
  const section = SECTIONS[Number(event.key) - 1];
  if (section) {
    byId(section).scrollIntoView();
    byId(section).focus({ preventScroll: true });
  } else if (ACTIONS[event.key]) ACTIONS[event.key]();
  else return;
  event.preventDefault();
});

const kept = localStorage.getItem(THEME);
if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => prefixes.redraw());

setInterval(() => {
  const silent = Math.round((Date.now() - heard) / 1000);
  if (heard && silent >= 3 && !paused && byId("live").textContent === "live") connected(`no news for ${plural(silent, "second")}`, "bad");
  else if (silent < 3 && byId("live").textContent.startsWith("no news")) connected("live", null);
}, 1000);

begin();
