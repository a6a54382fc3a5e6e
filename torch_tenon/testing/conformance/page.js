const report = embedded("data");
const statuses = ["pass", "fail", "crash", "hang", "not applicable"];
const classOf = (status) => (status === "not applicable" ? "na" : status);
const by = (id) => document.getElementById(id);
const dtypes = [...new Set(report.results.map((r) => r.d))];

// What stands above the table

function summary() {
  by("title").textContent = document.title;
  by("run").textContent = `PyTorch ${report.torch}, ${report.machine}, ${report.time}, ${Math.round(report.seconds)} s; ` +
    `${Object.keys(report.worse).length} worse and ${Object.keys(report.better).length} better than the baseline`;
  for (const [kind, k] of Object.entries(report.kinds)) {
    const found = statuses.filter((s) => k[s]);
    const text = found.map((s) => `${count(k[s])} ${s}`).join(", ");
    by("cards").append(element("div", { class: "card" }, kind,
      element("b", {}, k["pass rate"] === null ? "–" : `${k["pass rate"].toFixed(2)} %`),
      element("div", { class: "bar", role: "img", "aria-label": text },
        ...found.map((s) => element("span", { class: classOf(s), style: `width:${(100 * k[s]) / k.cases}%`, ...told(`${count(k[s])} ${s}`) }))),
      element("span", { class: "quiet" }, text), makers(k.made)));
  }
  by("keys").append(...statuses.map((s) => element("span", {}, element("span", { class: `key ${classOf(s)}` }), s)));
}

function makers(made) {
  const found = Object.entries(made || {}).filter(([, n]) => n).map(([maker, n]) => `${maker} ${count(n)}`);
  return found.length ? element("div", { class: "quiet" }, `results by who computed them: ${found.join(", ")}`) : null;
}

function failures() {
  if (!report.failures.length) return;
  by("groups").append(element("details", {}, element("summary", {}, `${report.failures.length} kinds of failure, most frequent first`),
    ...report.failures.map((g) => element("details", {},
      element("summary", {}, element("b", {}, `${g.cases.length} `), `${g.reason}: `, element("code", {}, g.message)),
      element("pre", {}, g.cases.join("\n"))))));
}

function choices() {
  by("kind").append(element("option", { value: "" }, "all databases"), ...Object.keys(report.kinds).map((k) => element("option", { value: k }, k)));
  by("status").append(element("option", { value: "" }, "any status"), element("option", { value: "!" }, "does not pass"),
    ...statuses.map((s) => element("option", { value: s }, s)));
}

// One case

let asked = null; // the cell whose case is shown
function show(r, cell) {
  asked = cell;
  const tag = (status) => element("span", { class: `tag ${classOf(status)}` }, status);
  by("body").replaceChildren(element("h2", {}, `${r.n} · ${r.d}`), tag(r.s),
    element("span", { class: "quiet" }, `  ${r.i[0]} of ${r.i[1]} inputs, ${r.t} s${r.r ? `, route: ${r.r.join(", ")}` : ""}`));
  if (r.b) by("body").append(makers(r.b));
  if (r.w) by("body").append(element("pre", {}, `${r.w}\n${r.m || ""}`));
  for (const [name, c] of Object.entries(r.c)) {
    const line = element("div", {}, tag(c.status || c), ` ${name} `);
    if (c.reason) line.append(element("b", {}, c.reason), element("pre", {}, [c.message, c.sample && `input ${c.sample}`].filter(Boolean).join("\n")));
    if (c.traceback) line.append(element("details", {}, element("summary", {}, "traceback"), element("pre", {}, c.traceback)));
    by("body").append(line);
  }
  by("body").append(...(r.o || []).map((note) => element("p", { class: "quiet" }, `note: ${note}`)));
  if (r.x) by("body").append(element("pre", {}, r.x));
  by("detail").hidden = false;
  by("detail").focus();
}
function close() {
  by("detail").hidden = true;
  if (asked) asked.focus();
  asked = null;
}

// The table: a row for each entry, a cell for each dtype

for (const r of report.results) {
  const checks = Object.entries(r.c).map(([n, c]) => (c.reason ? `${n} ${c.reason} ${c.message}` : ""));
  r.text = [r.k, r.n, r.d, r.s, r.w, r.m, (r.r || []).join(" "), ...checks].join(" ").toLowerCase();
}

function chosen() {
  const words = by("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kind = by("kind").value, status = by("status").value;
  return report.results.filter((r) => (!kind || r.k === kind) && words.every((w) => r.text.includes(w)) &&
    (status === "!" ? r.s !== "pass" && r.s !== "not applicable" : !status || r.s === status));
}

function draw() {
  const found = chosen(), rows = new Map();
  for (const r of found) {
    const key = `${r.k}/${r.n}`;
    if (!rows.has(key)) rows.set(key, { name: r.n, cells: {}, routes: new Set() });
    rows.get(key).cells[r.d] = r;
    for (const route of r.r || []) rows.get(key).routes.add(route);
  }
  by("shown").textContent = `${count(found.length)} cases, ${count(rows.size)} entries`;
  const all = [...rows.values()];
  const used = dtypes.filter((d) => all.some((row) => row.cells[d]));
  const routed = all.some((row) => row.routes.size);
  const cell = (r) => {
    const button = element("button", { type: "button", class: `cell ${classOf(r.s)}`, tabindex: -1, "aria-label": `${r.n} ${r.d} ${r.s}`,
      ...told(`${r.n} ${r.d}: ${r.s}${r.w ? `, ${r.w}: ${(r.m || "").slice(0, 300)}` : ""}`) });
    button.addEventListener("click", () => show(r, button));
    return button;
  };
  by("table").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, element("th", { class: "name", scope: "col" }, "name"),
      ...used.map((d) => element("th", { class: "dtype", scope: "col" }, d)), routed ? element("th", { class: "route", scope: "col" }, "route") : null)),
    element("tbody", {}, ...all.map((row) => element("tr", {}, element("td", { class: "name mono" }, row.name),
      ...used.map((d) => element("td", {}, row.cells[d] ? cell(row.cells[d]) : null)),
      routed ? element("td", { class: "route" }, [...row.routes].join(", ")) : null)))));
  const first = by("table").querySelector("button.cell");
  if (first) first.tabIndex = 0;
}

// One stop of the Tab key for the whole table; the arrows go from cell to cell.
function walk(event) {
  const here = event.target.closest("button.cell");
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  if (!here || !steps[event.key]) return;
  event.preventDefault();
  const [down, right] = steps[event.key];
  let row = here.closest("tr"), column = here.closest("td").cellIndex, next = null;
  while (row && row.cells[column] && !next) {
    if (down) row = down > 0 ? row.nextElementSibling : row.previousElementSibling;
    column += right;
    next = row && row.cells[column] && row.cells[column].querySelector("button.cell");
  }
  if (!next) return;
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

let timer;
by("filter").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(draw, 150); });
for (const id of ["kind", "status"]) by(id).addEventListener("change", draw);
by("table").addEventListener("keydown", walk);
by("close").addEventListener("click", close);
document.addEventListener("keydown", (e) => { if (e.key === "Escape") close(); });
for (const part of [summary, failures, choices, draw]) part();
ready();
