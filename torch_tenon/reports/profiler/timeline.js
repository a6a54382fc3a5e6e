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
      const own = colour(k), over = ink("--ground");
      let reached = -1;
      for (let i = first(k, view.from); i < tracks[k].length && tracks[k][i][2] < view.to; i++) {
        const e = tracks[k][i], left = x(e[2]), wide = Math.max(e[3] * scale, 0.7);
        if (left + wide < 0 || (wide < 1 && left < reached + 0.5)) continue;
        reached = left + wide;
        g.fillStyle = own;
        g.fillRect(left, y + 4, wide, rowHeight - 10);
        if (wide > 30) {
          g.save(); g.beginPath(); g.rect(left, y, wide, rowHeight); g.clip();
          g.fillStyle = over; g.fillText(t.names[e[1]], Math.max(left, 0) + 3, y + rowHeight / 2 - 1);
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
