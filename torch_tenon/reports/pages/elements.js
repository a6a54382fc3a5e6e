"use strict";
// What every page is made of: elements, figures, tables that sort, and a tip at the pointer.
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const tip = document.getElementById("tip");
const embedded = (id) => JSON.parse(document.getElementById(id).textContent);

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "circle", "rect", "line", "text", "g"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
                   : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") for (const [event, run] of Object.entries(value)) made.addEventListener(event, run);
    else if (value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((c) => c !== null && c !== undefined));
  return made;
}
const colour = (k) => getComputedStyle(document.documentElement).getPropertyValue(COLOURS[k % COLOURS.length]).trim();
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function seconds(s) {
  if (s === 0) return "0";
  for (const [unit, size, from] of [["h", 3600, 7200], ["min", 60, 120]])
    if (Math.abs(s) >= from) return `${(s / size).toPrecision(3)} ${unit}`;
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (Math.abs(s) >= size || unit === "µs") return `${(s / size).toPrecision(3)} ${unit}`;
}
function amount(n, unit = "") {
  for (const [name, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(n) >= size) return `${(n / size).toPrecision(3)} ${name}${unit}`;
  return `${Math.round(n)} ${unit}`.trim();
}
const bytes = (n) => amount(n, "B");
function percent(share) {
  if (share > 0 && share < 1e-4) return "< 0.01 %";
  return `${share === 0 ? 0 : (100 * share).toPrecision(share < 0.1 ? 2 : 3)} %`;
}
const count = (n) => n.toLocaleString("en");
function say(event, text) {
  tip.textContent = text;
  tip.hidden = !text;
  const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}
const hush = () => { tip.hidden = true; };
const told = (text) => ({ on: { pointermove: (e) => say(e, text), pointerleave: hush } });

// A table whose heads sort it: columns are [name, of a row, {number, show, wide}].
function table(rows, columns, most = 30) {
  const head = element("tr");
  const lines = element("tbody");
  const more = element("button", { type: "button" }, "Show all");
  let shown = most;
  const fill = () => {
    lines.replaceChildren(...rows.slice(0, shown).map((row) => element("tr", {}, ...columns.map(
      ([, get, how = {}]) => {
        const value = get(row);
        const cell = how.show ? how.show(value, row) : value;
        return element("td", { class: [how.number && "number", how.wide && "wide"].filter(Boolean).join(" ") || undefined }, cell instanceof Node ? cell : String(cell));
      }))));
    more.hidden = rows.length <= shown;
  };
  for (const [name, get, how = {}] of columns) {
    const sort = () => {
      const up = head.dataset.by === name;
      rows.sort((a, b) => (get(a) < get(b) ? 1 : get(a) > get(b) ? -1 : 0) * (up ? -1 : 1));
      head.dataset.by = up ? "" : name;
      fill();
    };
    head.append(element("th", { class: [how.number && "number", how.wide && "wide"].filter(Boolean).join(" ") || undefined, scope: "col" },
      element("button", { type: "button", on: { click: sort }, title: "sort" }, name)));
  }
  more.addEventListener("click", () => { shown = rows.length; fill(); });
  fill();
  return element("div", {}, element("div", { class: "scroll" }, element("table", {}, element("thead", {}, head), lines)), element("div", { class: "tools" }, more));
}
const nothing = (text) => element("p", { class: "quiet" }, text);

// The page can be used: said last of all.
const ready = () => { document.documentElement.dataset.ready = "true"; };
