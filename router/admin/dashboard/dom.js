// Making and changing elements. Text is always text: nothing that a client sent can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

/** Change text only where it differs: a fleet of 200 changes little from second to second. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === "") node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** A share as a bar with its figure; `update(share, tone)` changes it. */
export function meter() {
  const fill = svg("rect", { class: "fill", height: 7, width: 0 });
  const figure = el("span", {}, "-");
  const node = el("span", { class: "meter" }, svg("svg", { "aria-hidden": "true" }, fill), figure);
  return {
    node,
    update(share, tone, text) {
      setAttribute(fill, "width", share === null ? 0 : (56 * Math.min(1, Math.max(0, share))).toFixed(1));
      setText(figure, text);
      setAttribute(node, "data-tone", tone);
    },
  };
}

const tip = () => byId("tip");

export function showTip(text, x, y) {
  const node = tip();
  setText(node, text);
  node.hidden = false;
  const box = node.getBoundingClientRect();
  node.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 4))}px`;
  node.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
}

export const hideTip = () => { tip().hidden = true; };
