"use strict";
const profile = JSON.parse(document.getElementById("profile").textContent);
const before = JSON.parse(document.getElementById("before").textContent);
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
const tip = document.getElementById("tip");

// Elements and figures

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
const body = (section) => document.querySelector(`#${section} .body`);
const colour = (k) => getComputedStyle(document.documentElement).getPropertyValue(COLOURS[k % COLOURS.length]).trim();
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function seconds(s) {
  if (s === 0) return "0";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]])
    if (Math.abs(s) >= size || unit === "µs") return `${(s / size).toPrecision(3)} ${unit}`;
}
function amount(n, unit = "") {
  for (const [name, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(n) >= size) return `${(n / size).toPrecision(3)} ${name}${unit}`;
  return `${Math.round(n)} ${unit}`.trim();
}
const bytes = (n) => amount(n, "B");
const percent = (share) => `${(100 * share).toPrecision(share < 0.1 ? 2 : 3)} %`;
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

// Sections

function run() {
  const m = profile.machine, e = profile.events;
  document.getElementById("run").append(
    element("code", {}, profile.script.join(" ")), ` ran for ${seconds(profile.seconds)} on the target ${m.target} (${m.processor}; `,
    `${bytes(m.bytes_per_second)}/s, ${amount(m.operations_per_second)} operations/s at most). ${count(e.seen)} events`,
    e.kept < e.seen ? `, of which ${percent(e.kept / e.seen)}, spread over the run, were kept for the timeline and the lines of kernels; all sums are of all of them` : "",
    e.lost ? `; ${count(e.lost)} more did not fit and are in no figure` : "", ".");
  if (profile.status !== 0) {
    const failure = document.getElementById("failure");
    failure.hidden = false;
    failure.textContent = `The script ended with status ${profile.status}${profile.error ? `: ${profile.error}` : ""}. This is what it did up to there.`;
  }
}

function time() {
  const parts = profile.time.map((p, k) => ({ ...p, k, before: before && before.time.find((b) => b.name === p.name) }));
  const total = parts.reduce((sum, p) => sum + p.seconds, 0) || 1;
  body("time").append(
    element("div", { class: "bar", role: "img", "aria-label": parts.map((p) => `${p.name} ${percent(p.seconds / total)}`).join(", ") },
      ...parts.map((p) => element("span", { style: `width:${(100 * p.seconds) / total}%;background:var(${COLOURS[p.k]})`, ...told(`${p.name}: ${seconds(p.seconds)}`) }))),
    table(parts, [
      ["", (p) => p.name, { show: (name, p) => element("span", {}, element("span", { class: "key", style: `background:var(${COLOURS[p.k]})` }), name) }],
      ["time", (p) => p.seconds, { number: true, show: seconds }],
      ["share", (p) => p.seconds / total, { number: true, show: percent }],
      ...(before ? [["before", (p) => (p.before ? p.before.seconds : 0), { number: true, show: (v, p) => versus(p.seconds, v) }]] : []),
    ]),
    nothing(`Of the thread that ran the script. The builder made plans beside it for ${seconds(profile.builder)}.` +
      (before ? ` The run before took ${seconds(before.seconds)}.` : "")));
}
function versus(now, then) {
  const better = now < then;
  return element("span", { class: Math.abs(now - then) < 0.02 * Math.max(now, then) ? "" : better ? "better" : "worse" },
    `${seconds(then)} (${now > 0 && then > 0 ? `${(now / then).toPrecision(3)} times` : "–"})`);
}

function advice() {
  if (!profile.advice.length) return body("advice").append(nothing("Nothing stands out."));
  body("advice").append(element("ol", { class: "advice" }, ...profile.advice.map((a) => element("li", {}, a.text, " ",
    element("span", { class: "saves" }, `saves about ${seconds(a.saves)} (${percent(Math.min(a.saves / profile.seconds, 1))})`)))));
}

function waits() {
  const kinds = [["waits", profile.waits], ["ops that ran at once", profile.at_once], ["copies", profile.copies]];
  for (const [name, rows] of kinds) {
    body("waits").append(element("h3", {}, name));
    body("waits").append(rows.length ? table(rows, [
      ["line", (r) => r.line || "not known", { show: (line) => element("code", {}, line) }],
      ["what", (r) => r.what], ["times", (r) => r.count, { number: true, show: count }],
      ["time", (r) => r.seconds, { number: true, show: seconds }],
      ...(name === "copies" ? [["bytes", (r) => r.bytes, { number: true, show: bytes }]] : []),
      ["a second", (r) => r.count / profile.seconds, { number: true, wide: true, show: (n) => n.toPrecision(3) }],
    ], 15) : nothing("None."));
  }
}

// The timeline: a canvas that shows [from, to] in microseconds.
function timeline() {
  const t = profile.timeline, end = t.seconds * 1e6, rowHeight = 34, top = 22;
  const canvas = element("canvas", { tabindex: 0, role: "application", "aria-label": "Timeline: arrow keys move, plus and minus zoom, 0 shows all", height: top + rowHeight * t.tracks.length });
  const view = { from: 0, to: end };
  const tracks = t.tracks.map((_, k) => t.events.filter((e) => e[0] === k).sort((a, b) => a[2] - b[2]));
  // The longest event up to each one, so that a search finds all that reach into the view.
  const longest = tracks.map((all) => { let most = 0; return all.map((e) => (most = Math.max(most, e[3]))); });
  const about = element("p", { class: "quiet", "aria-live": "polite" });
  let wanted = false;
  const draw = () => { if (!wanted) { wanted = true; requestAnimationFrame(paint); } };
  function first(k, at) { // the first event that may end after `at`
    let low = 0, high = tracks[k].length;
    const most = longest[k].length ? longest[k][longest[k].length - 1] : 0;
    while (low < high) { const mid = (low + high) >> 1; if (tracks[k][mid][2] < at - most) low = mid + 1; else high = mid; }
    return low;
  }
  function paint() {
    wanted = false;
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = top + rowHeight * t.tracks.length;
    canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio); g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
    const scale = width / (view.to - view.from), x = (at) => (at - view.from) * scale;
    const step = 10 ** Math.ceil(Math.log10((view.to - view.from) / 8));
    g.fillStyle = ink("--quiet"); g.strokeStyle = ink("--line");
    for (let at = Math.ceil(view.from / step) * step; at < view.to; at += step) {
      g.beginPath(); g.moveTo(x(at), 14); g.lineTo(x(at), height); g.stroke();
      g.fillText(seconds(at / 1e6), x(at) + 3, 8);
    }
    t.tracks.forEach((name, k) => {
      const y = top + k * rowHeight;
      const share = t.busy[k], bin = end / share.length;
      g.fillStyle = colour(k); g.globalAlpha = 0.3;
      for (let b = Math.max(0, Math.floor(view.from / bin)); b < share.length && b * bin < view.to; b++)
        if (share[b] > 0) g.fillRect(x(b * bin), y + rowHeight - 4 - 20 * share[b], Math.max(bin * scale, 0.5), 20 * share[b]);
      g.globalAlpha = 1;
      let reached = -1;
      for (let i = first(k, view.from); i < tracks[k].length && tracks[k][i][2] < view.to; i++) {
        const e = tracks[k][i], left = x(e[2]), wide = Math.max(e[3] * scale, 0.7);
        if (left + wide < 0 || (wide < 1 && left < reached + 0.5)) continue;
        reached = left + wide;
        g.fillStyle = colour(k);
        g.fillRect(left, y + 4, wide, rowHeight - 10);
        if (wide > 30) {
          g.save(); g.beginPath(); g.rect(left, y, wide, rowHeight); g.clip();
          g.fillStyle = ink("--ground"); g.fillText(t.names[e[1]], Math.max(left, 0) + 3, y + rowHeight / 2 - 1);
          g.restore();
        }
      }
      g.fillStyle = ink("--ink"); g.fillText(name, 3, y);
    });
    about.textContent = `${seconds(view.from / 1e6)} to ${seconds(view.to / 1e6)}; ${count(t.shown)} of ${count(t.of)} events are here one by one, the shade behind them shows how busy each track was.`;
  }
  function zoom(factor, at = (view.from + view.to) / 2) {
    const length = Math.min(Math.max((view.to - view.from) * factor, 1), end);
    const share = (at - view.from) / (view.to - view.from);
    view.from = Math.min(Math.max(at - share * length, 0), end - length); view.to = view.from + length;
    draw();
  }
  function move(by) {
    const length = view.to - view.from;
    view.from = Math.min(Math.max(view.from + by, 0), end - length); view.to = view.from + length;
    draw();
  }
  const at = (e) => view.from + ((e.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * (view.to - view.from);
  canvas.addEventListener("wheel", (e) => { e.preventDefault(); if (e.shiftKey) move((e.deltaY / 500) * (view.to - view.from)); else zoom(Math.exp(e.deltaY / 400), at(e)); }, { passive: false });
  canvas.addEventListener("keydown", (e) => {
    const length = view.to - view.from;
    const keys = { ArrowLeft: () => move(-length / 5), ArrowRight: () => move(length / 5), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => zoom(Infinity), Home: () => move(-end), End: () => move(end) };
    if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
  });
  const fingers = new Map();
  canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, e.clientX); });
  for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (e) => fingers.delete(e.pointerId));
  canvas.addEventListener("pointermove", (e) => {
    const last = fingers.get(e.pointerId);
    if (last !== undefined) {
      const others = [...fingers].filter(([id]) => id !== e.pointerId);
      if (others.length) zoom(Math.max(Math.abs(last - others[0][1]), 1) / Math.max(Math.abs(e.clientX - others[0][1]), 1), at(e));
      else move(((last - e.clientX) / canvas.clientWidth) * (view.to - view.from));
      fingers.set(e.pointerId, e.clientX);
      return;
    }
    const k = Math.floor((e.clientY - canvas.getBoundingClientRect().top - top) / rowHeight), here = at(e);
    const near = (2 * (view.to - view.from)) / canvas.clientWidth;
    let found = null;
    for (let i = tracks[k] ? first(k, here) : 0; tracks[k] && i < tracks[k].length && tracks[k][i][2] <= here + near; i++) {
      const one = tracks[k][i];
      if (one[2] + one[3] + near >= here && (!found || one[3] < found[3])) found = one;
    }
    if (found) say(e, `${t.names[found[1]]}: ${seconds(found[3] / 1e6)}${t.lines[found[4]] ? `, ${t.lines[found[4]]}` : ""}`);
    else hush();
  });
  canvas.addEventListener("pointerleave", hush);
  const button = (text, run, name) => element("button", { type: "button", "aria-label": name, on: { click: run } }, text);
  body("timeline").append(element("div", { class: "tools" }, button("+", () => zoom(0.5), "zoom in"), button("−", () => zoom(2), "zoom out"),
    button("←", () => move(-(view.to - view.from) / 5), "earlier"), button("→", () => move((view.to - view.from) / 5), "later"), button("all", () => zoom(Infinity), "all of it"),
    element("span", { class: "quiet" }, "wheel zooms, drag or shift-wheel moves; arrows, +, − and 0 do on the keyboard")), canvas, about);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
}

// Operations a second over operations for a byte, on logarithmic scales, under the machine's roof.
function roofline(rows) {
  const m = profile.machine, width = 640, height = 300, left = 70, low = 30;
  const points = rows.filter((r) => r.bytes > 0 && r.operations > 0 && r.seconds > 0).slice(0, 150)
    .map((r) => ({ r, x: r.operations / r.bytes, y: (r.operations * r.count) / r.seconds }));
  if (!points.length || !m.bytes_per_second) return nothing("No kernel tells its operations.");
  const ridge = m.operations_per_second / m.bytes_per_second;
  const xs = [Math.min(0.05, ...points.map((p) => p.x)), Math.max(4 * ridge, ...points.map((p) => p.x))];
  const ys = [Math.min(...points.map((p) => p.y), m.operations_per_second / 1e4), 2 * m.operations_per_second];
  const place = (v, [a, b], from, to) => from + ((Math.log(v) - Math.log(a)) / (Math.log(b) - Math.log(a))) * (to - from);
  const x = (v) => place(v, xs, left, width - 10), y = (v) => place(v, ys, height - low, 10);
  const roof = [[xs[0], xs[0] * m.bytes_per_second], [ridge, m.operations_per_second], [xs[1], m.operations_per_second]];
  const most = points[0].r.seconds;
  const marks = [];
  for (let e = Math.ceil(Math.log10(ys[0])); 10 ** e < ys[1]; e += 1) marks.push(element("text", { x: left - 6, y: y(10 ** e) + 4, "text-anchor": "end" }, amount(10 ** e)));
  for (let e = Math.ceil(Math.log10(xs[0])); 10 ** e < xs[1]; e += 1) marks.push(element("text", { x: x(10 ** e), y: height - 12, "text-anchor": "middle" }, String(10 ** e)));
  return element("figure", {}, element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Kernels beside the machine's ceilings" },
    element("path", { d: `M${roof.map(([a, b]) => `${x(a)},${y(b)}`).join("L")}`, fill: "none", stroke: "var(--c3)", "stroke-width": 2 }), ...marks,
    ...points.map((p) => element("circle", { cx: x(p.x), cy: y(p.y), r: 3 + 9 * Math.sqrt(p.r.seconds / most), fill: "var(--c0)", "fill-opacity": 0.6,
      ...told(`${p.r.name} (${p.r.detail}): ${seconds(p.r.seconds)}, ${percent(p.r.share)} of the peak`) })),
    element("text", { x: width / 2, y: height - 1, "text-anchor": "middle" }, "operations for a byte"),
    element("text", { x: 4, y: 12 }, "operations/s")),
  element("figcaption", {}, "Each disc is a kernel, its size the time in it; the line is what this machine was measured to do. What lies left of its bend is bound by memory."));
}

function kernels() {
  const rows = profile.kernels, old = new Map((before ? before.kernels : []).map((r) => [`${r.name} ${r.detail}`, r]));
  if (!rows.length) return body("kernels").append(nothing("The device ran nothing."));
  const total = rows.reduce((sum, r) => sum + r.seconds, 0) || 1;
  body("kernels").append(roofline(rows), table(rows, [
    ["ops", (r) => r.name, { show: (name, r) => element("details", {}, element("summary", { class: "mono" }, name.length > 90 ? `${name.slice(0, 90)} …` : name),
      element("p", {}, name), element("p", { class: "quiet" }, `${r.kind}; ${r.detail}`),
      r.lines.length ? element("p", {}, "from ", ...r.lines.map((l) => element("code", {}, `${l} `))) : null, r.source ? element("pre", {}, r.source) : null) }],
    ["kind", (r) => r.kind, { wide: true, show: (kind) => kind.replace("_", " ") }], ["times", (r) => r.count, { number: true, show: count }],
    ["time", (r) => r.seconds, { number: true, show: seconds }], ["share", (r) => r.seconds / total, { number: true, show: percent }],
    ["each", (r) => r.seconds / r.count, { number: true, show: seconds }], ["bytes", (r) => r.bytes, { number: true, wide: true, show: bytes }],
    ["bytes/s", (r) => (r.bytes * r.count) / r.seconds, { number: true, wide: true, show: bytes }], ["operations", (r) => r.operations, { number: true, wide: true, show: (n) => (n ? amount(n) : "–") }],
    ["of the peak", (r) => r.share, { number: true, show: percent }],
    ...(before ? [["before", (r) => (old.get(`${r.name} ${r.detail}`) || { seconds: 0 }).seconds, { number: true, show: (v, r) => versus(r.seconds, v) }]] : []),
  ], 20));
}

function windows() {
  if (!profile.windows.length) return body("windows").append(nothing("Nothing was recorded."));
  body("windows").append(table(profile.windows, [
    ["ended for", (w) => w.why], ["windows", (w) => w.count, { number: true, show: count }], ["calls in one", (w) => w.calls / w.count, { number: true, show: (n) => n.toPrecision(3) }],
    ["time with their run", (w) => w.seconds, { number: true, show: seconds }], ["of which handing over", (w) => w.own, { number: true, wide: true, show: seconds }],
  ]));
}

// A plan's steps in rows by depth, with a line from each step to those that read its results.
function graph(steps) {
  const depth = [];
  steps.forEach((s, k) => { depth[k] = s[3].length ? 1 + Math.max(...s[3].map((i) => depth[i])) : 0; });
  const rows = [];
  steps.forEach((_, k) => { (rows[depth[k]] = rows[depth[k]] || []).push(k); });
  const wide = 150, high = 46, most = Math.max(...rows.map((r) => r.length)), place = [];
  rows.forEach((row, y) => row.forEach((k, x) => { place[k] = [20 + x * (wide + 16), 10 + y * (high + 22)]; }));
  const svg = element("svg", { viewBox: `0 0 ${40 + most * (wide + 16)} ${20 + rows.length * (high + 22)}`, style: `min-width:${Math.min(40 + most * (wide + 16), 4000)}px`, role: "img", "aria-label": "Steps of the plan" });
  steps.forEach((s, k) => s[3].forEach((i) => svg.append(element("path", { d: `M${place[i][0] + wide / 2},${place[i][1] + high}C${place[i][0] + wide / 2},${place[i][1] + high + 20} ${place[k][0] + wide / 2},${place[k][1] - 20} ${place[k][0] + wide / 2},${place[k][1]}`, fill: "none", stroke: "var(--quiet)" }))));
  steps.forEach(([name, detail, kind], k) => {
    const call = ["library", "fallback"].includes(kind);
    const box = element("g", told(`${name}: ${detail}${call ? ` (${kind})` : ""}`), element("rect", { x: place[k][0], y: place[k][1], width: wide, height: high, rx: 4, fill: "var(--panel)", stroke: `var(${kind === "fallback" ? "--c3" : call ? "--c1" : "--c0"})` }));
    for (let line = 0; line < 2; line++) box.append(element("text", { x: place[k][0] + 6, y: place[k][1] + 18 + 15 * line }, name.slice(22 * line, 22 * line + 22)));
    svg.append(box);
  });
  return element("div", { class: "scroll" }, svg);
}

function fusion() {
  const plans = profile.plans.filter((p) => p.steps);
  const failed = profile.plans.filter((p) => p.error);
  const waiting = profile.plans.filter((p) => !p.steps && !p.error).length;
  body("fusion").append(nothing(`${plans.length} plans that ran most; ${failed.length} windows have none for a reason, ${waiting} had none yet. A box is a kernel with the ops that fused in it (blue), a library call (orange) or a fallback (red); a line is memory that one writes and another reads.`));
  plans.slice(0, 20).forEach((p, k) => {
    const inside = element("div");
    const details = element("details", {}, element("summary", {}, `plan ${k + 1}: ${p.kernels} kernels and ${p.calls} calls, ran ${count(p.runs)} times (by reference ${count(p.by_reference)}), saves ${bytes(p.saved)} of memory traffic each time, took ${seconds(p.seconds)} to make`), inside);
    details.addEventListener("toggle", () => {
      if (!details.open || inside.firstChild) return;
      inside.append(graph(p.steps));
      if (p.rejected.length) inside.append(table(p.rejected, [["not fused", (r) => r[0], { show: (n) => element("code", {}, n) }], ["with", (r) => r[1], { show: (n) => element("code", {}, n) }], ["since", (r) => r[2]]], 10));
      const calls = Object.entries(p.fallbacks);
      if (calls.length) inside.append(table(calls, [["a call on the host", (r) => r[0]], ["since", (r) => r[1]]], 10));
    });
    if (k === 0) details.open = true;
    body("fusion").append(details);
  });
  if (failed.length) body("fusion").append(table(failed, [["no plan, since", (p) => p.error], ["runs", (p) => p.by_reference, { number: true, show: count }]], 10));
}

function memory() {
  const m = profile.memory, samples = m.samples, width = 640, height = 200, left = 70;
  body("memory").append(element("p", {}, `At most ${bytes(m.peak)} of ${bytes(m.limit)}.`));
  const owners = Object.entries(m.owners).sort((a, b) => b[1] - a[1]);
  if (owners.length) body("memory").append(table(owners, [["at the peak, held by", (o) => o[0]], ["bytes", (o) => o[1], { number: true, show: bytes }]]));
  if (samples.length < 2) return;
  const most = Math.max(...samples.map((s) => s[2]), 1), end = samples[samples.length - 1][0] || 1;
  const x = (t) => left + (t / end) * (width - left - 10), y = (b) => height - 24 - (b / most) * (height - 40);
  const line = (k) => `M${samples.map((s) => `${x(s[0]).toFixed(1)},${y(s[k]).toFixed(1)}`).join("L")}`;
  body("memory").append(element("figure", {}, element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Device memory over time, at most ${bytes(most)}` },
    ...[0, 0.5, 1].map((f) => element("text", { x: left - 6, y: y(f * most) + 4, "text-anchor": "end" }, bytes(f * most))), element("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, seconds(end)),
    element("path", { d: line(2), fill: "none", stroke: "var(--c7)" }), element("path", { d: line(1), fill: "none", stroke: "var(--c0)", "stroke-width": 2 })),
  element("figcaption", {}, "Blue: what tensors hold; grey: what the allocator holds from the target.")));
  const rows = profile.recorded.filter((r) => r.bytes);
  if (rows.length) body("memory").append(element("h3", {}, "Lines by the bytes of what they make"), table(rows, [
    ["line", (r) => r.line || "not known", { show: (l) => element("code", {}, l) }], ["calls", (r) => r.count, { number: true, show: count }],
    ["bytes", (r) => r.bytes, { number: true, show: bytes }], ["most at a time", (r) => r.most, { number: true, show: bytes }], ["op", (r) => r.op, { wide: true }]], 10));
}

for (const section of [run, time, advice, waits, timeline, kernels, windows, fusion, memory]) section();
document.documentElement.dataset.ready = "true";
