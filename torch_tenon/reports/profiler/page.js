const profile = embedded("profile");
const before = embedded("before");
const body = (section) => document.querySelector(`#${section} .body`);

// Sections

function run() {
  const m = profile.machine, e = profile.events;
  document.getElementById("run").append(
    element("code", {}, profile.script.join(" ")), ` ran for ${seconds(profile.seconds)} on the target ${m.target} (${m.processor}; `,
    `${bytes(m.bytes_per_second)}/s, ${amount(m.operations_per_second)} operations/s at most). ${count(e.seen)} events`,
    e.kept < e.seen ? `, of which ${percent(e.kept / e.seen)}, spread over the run, were kept for the timeline and the lines of kernels; all sums are of all of them` : "",
    profile.left_out ? `. To stay small this page leaves out: ${profile.left_out.join(", ")}; the JSON beside it has all` : "",
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
ready();
