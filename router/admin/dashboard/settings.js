// The configuration in force, secrets masked by the router, and what became of its file.

import { byId, el, setText } from "./dom.js";
import { moment } from "./format.js";
import { facts } from "./drawer.js";

export function showReload(reload, version, workers) {
  const text = JSON.stringify([reload, version, workers]);
  const holder = byId("reload");
  if (holder.dataset.shown === text) return;
  holder.dataset.shown = text;
  const list = facts([
    ["In force since", moment(reload.loaded_unix_s)],
    ["Last reload", `${reload.result}, ${moment(reload.tried_unix_s)}`],
    ["Digest", reload.digest || "-", "mono"],
    ["Version", workers > 1 ? `${version}, ${workers} workers` : version],
    ...(reload.needs_restart.length ? [["Changed, needs a restart", reload.needs_restart.join(", ")]] : []),
    ...reload.problems.map((problem) => ["Wrong in the file", problem, "full"]),
  ]);
  holder.replaceChildren(...list.childNodes);
  setText(byId("settings-note"), reload.result === "failed" ? "the file can't be loaded: what was in force before stays" : "secrets are masked");
}

export function showConfig(config) {
  const { reload, ...rest } = config;
  byId("config").replaceChildren(tree(rest));
}

function tree(value) {
  return el("ul", {}, Object.entries(value).map(([key, below]) => el("li", {}, el("span", { class: "key" }, key), ": ", leaf(below))));
}

function leaf(value) {
  if (value === null) return el("span", { class: "null" }, "not set");
  if (Array.isArray(value) && value.every((each) => typeof each !== "object")) return value.length ? value.join(", ") : el("span", { class: "null" }, "none");
  if (typeof value === "object") return tree(value);
  return String(value);
}
