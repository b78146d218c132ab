/* Drawing for the project's pages: lines, scatter, bars, distributions, lanes and networks as SVG, matrices on a canvas.

   Charts.lines(box, data) and so on draw into an element and return {update(data), remove()}; they draw again when the element's
   width or the colours change. What `data` holds is said at each kind. `colour` is the number of a run: its colour, dash and
   mark. All text is put in as text, never as markup. Colours and fonts are those of style.css. */
"use strict";
const Charts = (() => {

// ---- elements -------------------------------------------------------------------------------------------------------------

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) if (value != null && value !== false) element.setAttribute(name, value);
  element.append(...children.filter((child) => child != null));
  return element;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
const text = (x, y, content, attributes) => svg("text", { x: round(x), y: round(y), ...attributes }, String(content));
const round = (value) => Math.round(value * 10) / 10;
/** Return the looks of a run: by its number, or as `styled` has set it for all runs: [[hue, tint, dash, mark], ...]. */
let styles = null;
const styled = (all) => { styles = all ?? null; };
function run(colour) {
  const own = styles?.[colour];
  return own ? `run-${own[0] % 8} tint-${own[1]} of-${colour}` : `run-${colour % 8} of-${colour}`;
}
const dashed = (colour) => `dash-${styles?.[colour]?.[2] ?? Math.floor(colour / 8) % 4}`;
const shaped = (colour) => styles?.[colour]?.[3] ?? colour;

let pen, family;
function widthOf(content, size = 12) {
  pen ??= document.createElement("canvas").getContext("2d");
  family ??= getComputedStyle(document.body).fontFamily;
  pen.font = `${size}px ${family}`;
  return pen.measureText(content).width;
}
/** Shorten what is too wide: the keys of settings such as "models=4, lr=0.1", which differ in their values; else the middle,
    because names often differ at their ends. */
function shortened(content, width) {
  if (widthOf(content) <= width) return content;
  const parts = content.split(", ").map((part) => ({ key: part.split("=")[0], rest: part.slice(part.split("=")[0].length) }));
  const written = () => parts.map(({ key, kept, rest }) => `${kept ? `${key.slice(0, kept)}…` : key}${rest}`).join(", ");
  const left = (part) => (part.rest ? part.kept ?? part.key.length - 1 : 0);
  for (;;) {
    const longest = parts.reduce((best, part) => (left(part) > left(best) ? part : best));
    if (left(longest) < 2) break;
    longest.kept = left(longest) - 1;
    if (widthOf(written()) <= width) return written();
  }
  const initials = written().replaceAll("…=", "=");
  if (widthOf(initials) <= width) return initials;
  for (let kept = content.length - 1; kept > 2; kept--) {
    const shorter = `${content.slice(0, Math.floor(kept * 0.45)).trimEnd()}…${content.slice(content.length - Math.ceil(kept * 0.55)).trimStart()}`;
    if (widthOf(shorter) <= width) return shorter;
  }
  return "…";
}

// ---- numbers --------------------------------------------------------------------------------------------------------------

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const TIMES = [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "µs"]];

/** Return by what values of a unit are divided, and the name of that unit, so that `value` reads well. */
function scaled(value, unit) {
  const size = Math.abs(value);
  if (unit === "s") {
    const found = size ? TIMES.find(([from]) => size >= from) : TIMES[3];
    return { factor: found[1], unit: found[2] };
  }
  const [factor, prefix] = unit === "B" || size >= 1e6 ? PREFIXES.find(([from]) => size >= from) ?? [1, ""] : [1, ""];
  return { factor, unit: `${prefix}${unit ?? ""}` };
}
function plain(value, digits = 4) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-4 || size >= 1e15) return value.toExponential(Math.min(digits - 1, 2)).replace("-", "−").replace("e+", "e");
  const places = Math.max(0, Math.min(8, digits - 1 - Math.floor(Math.log10(size))));
  return value.toLocaleString("en", { maximumFractionDigits: places }).replace("-", "−");
}
/** Return a number with so many decimals, as all others of its column have them. */
const fixed = (value, decimals) =>
  value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }).replace("-", "−");
/** Return a value with its unit as a reader would write it: with `decimals` if given, else 4 digits, SI prefixes, minutes and hours. */
function format(value, unit = "", digits = 4, decimals = null) {
  if (value == null || Number.isNaN(value)) return "–";
  if (decimals != null) return `${fixed(value, decimals)}${unit && unit !== "%" ? " " : ""}${unit ?? ""}`;
  const by = scaled(value, unit);
  const gap = by.unit && by.unit !== "%" ? " " : "";
  return `${plain(value / by.factor, digits)}${gap}${by.unit}`;
}
function extent(arrays, positive = false) {
  let least = Infinity, most = -Infinity;
  for (const array of arrays) {
    if (!array) continue;
    for (let i = 0; i < array.length; i++) {
      const value = array[i];
      if (value == null || !Number.isFinite(value) || (positive && value <= 0)) continue;
      if (value < least) least = value;
      if (value > most) most = value;
    }
  }
  return least <= most ? [least, most] : null;
}
function ticksBetween(least, most, count, finest = 0) {
  const rough = Math.max((most - least) / Math.max(count, 1), finest), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= rough * 0.999 && (!finest || Number.isInteger(each * power))) ?? 10);
  const ticks = [];
  for (let i = Math.ceil(least / step - 1e-9); i * step <= most + step * 1e-9; i++) ticks.push(i * step);
  return { step, ticks };
}

/** Return an axis: where values stand (at), which ticks it has, and its label with its unit.

    `asked` is {least, most, label, unit, log, count, loose, whole, none, amount}; a loose axis is widened to whole ticks; one of
    whole numbers has no ticks between them; one with `none` has a place for Infinity, apart from the others, at its end; one of
    an amount says in its label where it starts if zero is not on it. */
function axis(asked) {
  let { least, most } = asked;
  const { log, count = 6, unit = "" } = asked;
  const by = log ? { factor: 1, unit: "" } : scaled(Math.max(Math.abs(least), Math.abs(most)), unit);
  let ticks;
  if (log) {
    const from = Math.floor(Math.log10(least) + 1e-9), to = Math.ceil(Math.log10(most) - 1e-9);
    const every = Math.max(1, Math.ceil((to - from) / count));
    const parts = to - from <= 3 ? [1, 2, 5] : [1];
    if (asked.loose) {
      least = Math.max(...parts.map((part) => part * 10 ** from).filter((tick) => tick <= least * 1.001));
      most = Math.min(...[...parts, 10].map((part) => part * 10 ** (to - 1)).filter((tick) => tick >= most * 0.999));
    }
    ticks = [];
    for (let power = from; power <= to; power += every) for (const part of parts) ticks.push(part * 10 ** power);
    ticks = ticks.filter((tick) => tick >= least * 0.999 && tick <= most * 1.001);
    if (ticks.length < 2) ticks = ticksBetween(least, most, 4).ticks;
    ticks = ticks.map((value) => ({ value, text: format(value, unit, 2) }));
  } else {
    if (least === most) { least = Math.min(0, least); most = Math.max(0, most) || (least ? 0 : 1); } // one value is seen from zero
    const finest = asked.whole && by.factor === 1 ? 1 : 0, found = ticksBetween(least / by.factor, most / by.factor, count, finest);
    if (asked.loose) {
      least = Math.floor(least / by.factor / found.step + 1e-9) * found.step * by.factor;
      most = Math.ceil(most / by.factor / found.step - 1e-9) * found.step * by.factor;
      found.ticks = ticksBetween(least / by.factor, most / by.factor, Math.round((most - least) / by.factor / found.step)).ticks;
    }
    const first = -Math.floor(Math.log10(found.step) + 1e-9), digits = Math.max(0, first + (Math.round(found.step * 10 ** (first + 1)) === 25));
    const style = { minimumFractionDigits: Math.min(digits, 8), maximumFractionDigits: Math.min(digits, 8) };
    ticks = found.ticks.map((tick) =>
      ({ value: tick * by.factor, text: (tick || 0).toLocaleString("en", style).replace("-", "−") }));
  }
  const start = asked.amount && !log && (least > 0 || most < 0) && `axis from ${asked.loose ? ticks[0].text : plain(least / by.factor, 2)}`;
  const aside = [by.unit, start].filter(Boolean).join(", "), label = aside ? `${asked.label} (${aside})` : asked.label;
  const a = log ? Math.log(least) : least, b = log ? Math.log(most) : most;
  const share = asked.none ? 0.86 : 1;
  const part = (value) => (value === Infinity ? 1 : (share * ((log ? Math.log(value) : value) - a)) / (b - a || 1));
  if (asked.none) ticks.push({ value: Infinity, text: "none" });
  return { least, most, ticks, label, unit, log, part, gap: asked.none ? (1 + share) / 2 : null };
}

/** Return an SVG with a grid, ticks and labels, and at(x, y) for the place of a value in it. */
function frame(width, height, x, y, { right = 12, name }) {
  const left = y ? Math.ceil(Math.max(...y.ticks.map((tick) => widthOf(tick.text)), 8)) + 8 : 6;
  const box = { left, right: width - right, top: y ? 26 : 6, bottom: height - 40 };
  const root = surface(width, height, name);
  const px = (value) => box.left + x.part(value) * (box.right - box.left);
  const py = y && ((value) => box.bottom - y.part(value) * (box.bottom - box.top));
  if (y) {
    root.append(text(0, 11, y.label, { class: "strong" }));
    for (const tick of y.ticks) {
      const at = Math.round(py(tick.value));
      root.append(svg("path", { class: "grid", d: `M${box.left} ${at}H${round(box.right)}` }));
      root.append(text(left - 8, at + 4, tick.text, { "text-anchor": "end" }));
    }
  }
  let end = -Infinity;
  for (const tick of x.ticks) {
    const at = px(tick.value), half = widthOf(tick.text) / 2;
    if (!y) root.append(svg("path", { class: "grid", d: `M${round(at)} ${box.top}V${round(box.bottom)}` }));
    else root.append(svg("path", { class: "axis", d: `M${round(at)} ${box.bottom}v4` }));
    const inside = Math.min(Math.max(at, half), width - half);
    if (inside - half < end + 6) continue;
    root.append(text(inside, box.bottom + 17, tick.text, { "text-anchor": "middle" }));
    end = inside + half;
  }
  const gap = x.gap && round(box.left + x.gap * (box.right - box.left)), low = Math.round(box.bottom);
  root.append(svg("path", { class: "axis", d: gap ? `M${box.left} ${low}H${gap - 4}M${gap + 4} ${low}H${round(box.right)}` : `M${box.left} ${low}H${round(box.right)}` }));
  if (gap) root.append(svg("path", { class: "break", d: `M${gap - 6} ${low + 4}l4 -8m4 8l4 -8` }));
  if (y && crosses(y)) root.append(svg("path", { class: "zero", d: `M${box.left} ${Math.round(py(0))}H${round(box.right)}` }));
  if (crosses(x)) root.append(svg("path", { class: "zero", d: `M${Math.round(px(0))} ${box.top}V${round(box.bottom)}` }));
  root.append(text(box.right, box.bottom + 34, x.label, { "text-anchor": "end", class: "strong" }));
  return { root, box, px, py };
}
/** Return whether an axis has values on both sides of zero. */
const crosses = ({ least, most, log }) => !log && least < 0 && most > 0;
const surface = (width, height, name) =>
  svg("svg", { class: "drawing", viewBox: `0 0 ${round(width)} ${round(height)}`, role: "img", "aria-label": name, tabindex: 0 });

// ---- marks ----------------------------------------------------------------------------------------------------------------

const MARKS = [
  (r) => `m${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => `m${-r * 0.9} ${-r * 0.9}h${r * 1.8}v${r * 1.8}h${-r * 1.8}z`,
  (r) => `m0 ${-r * 1.2}l${r * 1.15} ${r * 2}h${-r * 2.3}z`,
  (r) => `m0 ${-r * 1.3}l${r * 1.3} ${r * 1.3}l${-r * 1.3} ${r * 1.3}l${-r * 1.3} ${-r * 1.3}z`,
  (r) => `m0 ${r * 1.2}l${r * 1.15} ${-r * 2}h${-r * 2.3}z`,
  (r) => `m${-r * 0.45} ${-r * 1.3}h${r * 0.9}v${r * 0.85}h${r * 0.85}v${r * 0.9}h${-r * 0.85}v${r * 0.85}h${-r * 0.9}v${-r * 0.85}h${-r * 0.85}v${-r * 0.9}h${r * 0.85}z`,
];
const mark = (x, y, shape, r) => `M${round(x)} ${round(y)}${MARKS[shape % MARKS.length](r)}`;

/** Return a small drawing of how a run is drawn: the key of legends, chips and tips. */
function key(colour, kind = "line") {
  const inside = kind === "line" ? svg("path", { class: `line ${dashed(colour)}`, d: "M0 5H18" })
    : svg("path", { class: "mark full", d: mark(9, 5, kind === "mark" ? shaped(colour) : 0, 4.5) });
  return svg("svg", { class: `key ${run(colour)}`, width: 18, height: 10, viewBox: "0 0 18 10", "aria-hidden": "true" }, inside);
}
function legend(entries) {
  return el("div", { class: "legend" }, ...entries.map(([sign, name]) => el("span", {}, sign, name)));
}
/** Return a sign of a legend: a path of the given class in a small drawing. */
const sign = (kind, d, attributes) =>
  svg("svg", { width: 18, height: 12, viewBox: "0 0 18 12", "aria-hidden": "true" }, svg("path", { class: kind, d, ...attributes }));

/** Return heights for labels that want to stand at `wanted` but not nearer to each other than `gap`, between top and bottom. */
function spread(wanted, gap, top, bottom) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = wanted.slice();
  const blocks = [];
  for (const i of order) {
    blocks.push({ of: [i], sum: wanted[i] });
    for (let last = blocks.at(-1), before = blocks.at(-2); before; last = blocks.at(-1), before = blocks.at(-2)) {
      if (start(before) + before.of.length * gap <= start(last)) break;
      blocks.splice(-2, 2, { of: [...before.of, ...last.of], sum: before.sum + last.sum });
    }
  }
  function start(block) {
    const room = (block.of.length - 1) * gap;
    return Math.max(top, Math.min(bottom - room, block.sum / block.of.length - room / 2));
  }
  for (const block of blocks) block.of.forEach((i, k) => { placed[i] = start(block) + k * gap; });
  return placed;
}

// ---- colours of values ----------------------------------------------------------------------------------------------------

const ramps = new Map(); // by the name of their custom properties
function ramp(of = "ramp") {
  if (ramps.has(of)) return ramps.get(of);
  const probe = el("i");
  document.body.append(probe);
  const stops = [0, 1, 2, 3, 4, 5].map((k) => {
    probe.style.color = `var(--${k ? of : "ramp"}-${k}, var(--${of}-4))`; // all begin with the colour of nothing
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * 5, low = Math.min(4, Math.floor(at));
    for (let c = 0; c < 3; c++) table[3 * i + c] = stops[low][c] + (stops[low + 1][c] - stops[low][c]) * (at - low);
  }
  ramps.set(of, table);
  return table;
}
function coloured(part) {
  const table = ramp(), i = 3 * Math.round(255 * Math.max(0, Math.min(1, part)));
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}
const rampLegend = (least, most, name) =>
  el("div", { class: "legend" }, el("span", {}, least, el("i", { class: "ramp" }), most), name ? el("span", {}, name) : null);

// ---- tips: by pointer, touch and keys -------------------------------------------------------------------------------------

let tip, owner, standing;
function showTip(from, said) {
  const { title, rows = [] } = said;
  tip ??= document.body.appendChild(el("div", { class: "tip", role: "status" }));
  tip.replaceChildren(title ? el("b", {}, title) : "", rows.length ? el("table", {}, ...rows.map(tipRow)) : "");
  tip.hidden = false;
  owner = from;
  standing = said;
  placeTip(from, said);
}
function placeTip(from, { x, y, clear = y - 16 }) {
  const box = from.getBoundingClientRect(), view = from.viewBox?.baseVal;
  const by = view?.width ? box.width / view.width : 1;
  const left = box.left + x * by, top = box.top + y * by, { offsetWidth: w, offsetHeight: h } = tip;
  const room = document.documentElement.clientWidth - 8;
  const beside = left + 14 + w <= room ? left + 14 : left - 14 - w;
  tip.style.left = `${Math.max(8, Math.min(beside, room - w))}px`;
  // Where it fits neither to the right nor to the left it stands above, so that a finger does not cover it.
  const above = beside < 8 ? box.top + clear * by - h - 6 : top - h / 2;
  tip.style.top = `${Math.max(8, Math.min(above, innerHeight - h - 8))}px`;
}
function tipRow({ colour, kind, name, value, range }) {
  const sign = colour == null ? null : key(colour, kind);
  return el("tr", {}, el("td", {}, sign, name), el("td", {}, value), range ? el("td", { class: "range" }, range) : null);
}
function hideTip(from) {
  if (tip && (!from || owner === from)) tip.hidden = true;
}

/** Let pointer, touch and arrow keys walk over a drawing.

    at(x, y) gives the number of the place under a point, or -1; show(i) marks a place and returns its tip; clear() takes the
    mark away; step(i, dx, dy) gives the next place by key. `state` lives as long as the chart, so that a new drawing goes on. */
function explore(surface, state, { count, at, show, clear, step = (i, dx, dy) => i + dx + dy, start = 0 }) {
  if (!count) return;
  const go = (i) => {
    if (i < 0 || i >= count) return leave();
    state.place = i;
    const said = show(i);
    if (said) showTip(surface, said); else leave();
  };
  const leave = () => { state.place = -1; clear(); hideTip(surface); };
  const local = (event) => {
    const box = surface.getBoundingClientRect(), view = surface.viewBox.baseVal;
    return at((event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height);
  };
  state.again = () => go(Math.min(state.place, count - 1));
  surface.addEventListener("pointermove", (event) => go(local(event)));
  surface.addEventListener("pointerdown", (event) => go(local(event)));
  surface.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") leave(); });
  surface.addEventListener("focus", () => { if (surface.matches(":focus-visible")) go(state.place >= 0 ? state.place : start); });
  surface.addEventListener("blur", leave);
  surface.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Escape") leave();
    else if (event.key === "Home") go(0);
    else if (event.key === "End") go(count - 1);
    else if (moves[event.key]) {
      const next = state.place < 0 ? start : step(state.place, ...moves[event.key]);
      go(Math.max(0, Math.min(count - 1, next)));
    } else return;
    event.preventDefault();
  });
}
document.addEventListener("pointerdown", (event) => { if (owner && !owner.contains(event.target)) hideTip(); });
document.addEventListener("scroll", () => {
  if (!tip || tip.hidden) return;
  const { top, bottom } = owner.getBoundingClientRect();
  if (bottom < 0 || top > innerHeight) hideTip(); else placeTip(owner, standing);
}, { passive: true });

function nearest(points, x, y, reach) {
  let found = -1, best = reach * reach;
  for (let i = 0; i < points.length; i++) {
    const d = (points[i].x - x) ** 2 + (points[i].y - y) ** 2;
    if (d <= best) { best = d; found = i; }
  }
  return found;
}

// ---- life of a chart ------------------------------------------------------------------------------------------------------

const charts = new Map(); // element -> chart
let waiting = [], frameAsked = false;
const watch = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const chart = charts.get(target);
    if (!chart || (chart.measured && Math.abs(chart.width - contentRect.width) < 1)) continue;
    Object.assign(chart, { width: contentRect.width, measured: true, stale: true });
  }
  askFrame();
});
function askFrame() {
  if (frameAsked) return;
  frameAsked = true;
  requestAnimationFrame(() => {
    frameAsked = false;
    for (const chart of charts.values()) if (chart.stale) redraw(chart);
    if (waiting.length && [...charts.values()].every((chart) => chart.measured)) {
      waiting.forEach((done) => done());
      waiting = [];
    }
  });
}
function redraw(chart) {
  chart.stale = false;
  if (!chart.width) return;
  const focused = chart.box.contains(document.activeElement);
  const pointed = tip && !tip.hidden && chart.box.contains(owner); // new data does not take away what a reader looks at
  if (pointed) hideTip(); else chart.place = -1;
  chart.again = null;
  const drawn = chart.data.empty ? el("p", { class: "empty" }, chart.data.empty) : chart.draw(chart.data, chart.width, chart);
  chart.box.replaceChildren(...[drawn].flat());
  if (focused) chart.box.querySelector("[tabindex]")?.focus({ preventScroll: true });
  if (pointed) chart.again?.();
}
function kind(draw) {
  return (box, data) => {
    const chart = { box, data, draw, width: 0, measured: false, place: -1 };
    box.classList.add("chart");
    charts.set(box, chart);
    watch.observe(box);
    return {
      update(next) { chart.data = next; if (chart.measured) redraw(chart); },
      remove() { watch.unobserve(box); charts.delete(box); box.replaceChildren(); },
    };
  };
}
/** Let all that belongs to one run stand out from the others in all drawings; null ends it. */
function emphasise(colour) {
  document.documentElement.classList.toggle("one", colour != null);
  for (const element of document.querySelectorAll(".drawing .lit-run")) element.classList.remove("lit-run");
  if (colour != null) for (const element of document.querySelectorAll(`.drawing .of-${colour}`)) element.classList.add("lit-run");
}
function redrawAll() {
  ramps.clear();
  for (const chart of charts.values()) if (chart.measured) redraw(chart);
}
/** Return a promise that is kept when all charts have been drawn. */
const drawn = () => new Promise((done) => { waiting.push(done); askFrame(); });

// ---- theme ----------------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
function setTheme(theme) {
  if (theme === "auto" || !THEMES.includes(theme)) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}
setTheme(remembered());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
matchMedia("print").addEventListener("change", redrawAll);

/** Put the three buttons that choose the colours into an element. */
function themeSwitch(box) {
  const chosen = () => document.documentElement.dataset.theme ?? "auto";
  const buttons = THEMES.map((theme) => {
    const button = el("button", { type: "button", "data-theme-choice": theme }, theme[0].toUpperCase() + theme.slice(1));
    button.addEventListener("click", () => {
      setTheme(theme);
      try { localStorage.setItem("theme", theme); } catch { /* then it is not remembered */ }
      mark();
      redrawAll();
    });
    return button;
  });
  const mark = () => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.themeChoice === chosen())));
  mark();
  box.replaceChildren(...buttons);
}

// ---- kinds ----------------------------------------------------------------------------------------------------------------

/** Lines: {name, series: [{name, colour, x, y, low?, high?}], x: {label, unit, log?}, y: {label, unit?}, target?, named?}.

    Each has its name at its end, or in a legend where there is no room; none has where `named` is false. */
const lines = kind(({ name, series, x, y, target, named = true }, width, state) => {
  const spanX = extent(series.map((one) => one.x), x.log);
  const spanY = extent([...series.flatMap((one) => [one.y, one.low, one.high]), [target]], y.log);
  const own = extent([...series.map((one) => one.y), [target]], y.log);
  if (!spanX || series.every((one) => lastOf(one.y) < 0)) return el("p", { class: "empty" }, "There is nothing to draw.");
  within(spanY, own, y.log);
  if (!y.log && ["B", "s"].includes(y.unit)) spanY[0] = Math.min(0, spanY[0]); // heights of bytes and seconds are compared
  const inside = (value) => Math.max(spanY[0], Math.min(spanY[1], value));
  const widest = Math.max(...series.map((one) => widthOf(one.name))) + 18;
  const height = Math.max(240, Math.min(330, width * 0.58));
  const fits = series.length * 14 <= height - 60;
  const labelled = named && fits && (widest <= width * 0.34 || (width > 480 && series.length > 1));
  const right = labelled ? Math.min(widest, width * 0.34) : 14;
  const whole = series.every((one) => one.x.every((value) => value == null || Number.isInteger(value)));
  const X = axis({ ...x, least: spanX[0], most: spanX[1], whole, count: Math.max(3, Math.round((width - right) / 90)) });
  const Y = axis({ ...y, least: spanY[0], most: spanY[1], count: 5, loose: true, amount: true });
  const { root, box, px, py } = frame(width, height, X, Y, { right, name });
  const drawable = (one, i) => one.x[i] != null && one.y[i] != null && Number.isFinite(one.y[i]) && (!x.log || one.x[i] > 0)
    && (!y.log || one.y[i] > 0);

  if (target != null && !(y.log && target <= 0)) {
    const at = round(py(target));
    root.append(svg("path", { class: "aim", d: `M${box.left} ${at}H${round(box.right)}` }));
    root.append(text(box.left + 4, at - 5, `target ${plain(target)}`, { class: "strong" }));
  }
  for (const one of series) if (one.low && one.high) root.append(svg("path", { class: `band ${series.length > 4 ? "faint" : ""} ${run(one.colour)}`, d: band(one) }));
  for (const one of series) {
    const d = path(one);
    root.append(svg("path", { class: `line ${run(one.colour)} ${dashed(one.colour)}`, d }));
    if (/^M[^ML]*$/.test(d)) root.append(svg("path", { class: `mark full ${run(one.colour)}`, d: mark(px(one.x[lastOf(one.y)]), py(one.y[lastOf(one.y)]), 0, 3.5) }));
  }
  if (labelled) nameEnds(root, box, right, series.filter((one) => lastOf(one.y) >= 0).map((one) => {
    const last = lastOf(one.y);
    return { x: px(one.x[last]), y: py(one.y[last]), name: one.name, colour: one.colour };
  }));

  // A place is a value on the x axis: those of the run that has most of them.
  const longest = series.reduce((a, b) => (b.x.length > a.x.length ? b : a)).x;
  const xs = [...longest].filter((value) => value != null && (!x.log || value > 0));
  const hair = svg("g");
  root.append(hair);
  const indexAt = (one, value) => {
    let found = -1, best = Infinity;
    for (let i = 0; i < one.x.length; i++) {
      const away = Math.abs(px(one.x[i]) - px(value));
      if (away < best && drawable(one, i)) { best = away; found = i; }
    }
    return best <= Math.max(12, (box.right - box.left) / Math.max(xs.length, 1)) ? found : -1;
  };
  explore(root, state, {
    count: xs.length, start: xs.length - 1,
    step: (i, dx, dy) => i + (dx || -dy),
    at: (atX) => {
      if (atX < box.left - 12 || atX > box.right + 12) return -1;
      return xs.reduce((best, value, i) => (Math.abs(px(value) - atX) < Math.abs(px(xs[best]) - atX) ? i : best), 0);
    },
    show: (i) => {
      const at = px(xs[i]);
      hair.replaceChildren(svg("path", { class: "axis", d: `M${round(at)} ${box.top}V${round(box.bottom)}` }));
      const found = series.map((one) => [one, indexAt(one, xs[i])]).filter(([, k]) => k >= 0);
      found.sort(([a, j], [b, k]) => b.y[k] - a.y[j]);
      for (const [one, k] of found)
        hair.append(svg("path", { class: `dot ${run(one.colour)}`, d: mark(px(one.x[k]), py(one.y[k]), 0, 4) }));
      const rows = found.map(([one, k]) => ({
        colour: one.colour, name: one.name, value: format(one.y[k], y.unit, 4, y.decimals),
        range: one.low && one.high ? `${format(one.low[k], y.unit, 3, y.decimals)} to ${format(one.high[k], y.unit, 3, y.decimals)}` : null,
      }));
      return { x: at, y: (box.top + box.bottom) / 2, clear: box.top, title: `${x.label} ${format(xs[i], x.unit)}`, rows };
    },
    clear: () => hair.replaceChildren(),
  });
  const keys = labelled || !named || series.length < 2 ? null : legend(series.map((one) => [key(one.colour), one.name]));
  return [root, keys].filter(Boolean);

  function path(one) {
    let d = "", open = false;
    for (let i = 0; i < one.y.length; i++) {
      if (drawable(one, i)) d += `${open ? "L" : "M"}${round(px(one.x[i]))} ${round(py(one.y[i]))}`;
      open = drawable(one, i);
    }
    return d;
  }
  function band(one) {
    let d = "", part = [];
    const close = () => {
      if (part.length) d += `M${part.map((i) => `${round(px(one.x[i]))} ${round(py(inside(one.high[i])))}`).join("L")}L` +
        `${part.reverse().map((i) => `${round(px(one.x[i]))} ${round(py(inside(one.low[i])))}`).join("L")}Z`;
      part = [];
    };
    for (let i = 0; i < one.y.length; i++) {
      if (drawable(one, i) && Number.isFinite(one.low[i] ?? NaN) && Number.isFinite(one.high[i] ?? NaN)) part.push(i); else close();
    }
    close();
    return d;
  }
});
/** Write names to the right of a frame, each beside the end of its line, which is at x and y. */
function nameEnds(root, box, right, ends) {
  const places = spread(ends.map((end) => end.y), 14, box.top + 2, box.bottom - 2), to = box.right + 12;
  ends.forEach(({ x, y, name, colour }, k) => {
    if (Math.abs(places[k] - y) > 3 || to - x > 20)
      root.append(svg("path", { class: `leader ${run(colour)}`, d: `M${round(x + 3)} ${round(y)}L${round(Math.max(to - 8, x + 4))} ${round(y)}L${round(to)} ${round(places[k])}` }));
    root.append(text(to + 3, places[k] + 4, shortened(name, right - 16), { class: `run ${run(colour)}` }));
  });
}
/** A deviation may reach below nothing or above all: its axis does not, as long as no value does. */
function within(span, values, log) {
  if (log) span[0] = Math.max(span[0], values[0] / 2);
  else if (values[0] >= 0) span[0] = Math.max(0, span[0]);
  if (values[0] >= 0 && values[1] <= 1) span[1] = Math.min(1, span[1]);
}
function lastOf(values) {
  for (let i = values.length - 1; i >= 0; i--) if (values[i] != null && Number.isFinite(values[i])) return i;
  return -1;
}

/** Scatter: {name, x: {label, unit, log?, none?}, y: {label, unit?}, points: [{name, run, colour, x, y, dev?, front?, size?, more?}],
    joined?, fronts?, known?}.

    With `none`, a point whose x is Infinity has no limit: it stands at the right, apart from the others.
    Points of the front are full and joined by steps: nothing lies above and to the left of the line. Where `joined` is true,
    points of the same name are joined in the order of x, and the name stands at the end. With `fronts`, {x: more of x is
    better, stepped}, each run has a front of its own, a point stands for `size` nodes, `known` is a front [[x, y], ...] that
    is drawn behind, and points that coincide stand around their place. */
const scatter = kind(({ name, x, y, points, joined, fronts, known = [] }, width, state) => {
  const placeable = (p) => (Number.isFinite(p.x ?? NaN) && (!x.log || p.x > 0)) || (x.none && p.x === Infinity);
  const shown = points.filter((p) => placeable(p) && Number.isFinite(p.y ?? NaN) && (!y.log || p.y > 0));
  const spanX = extent([shown.map((p) => p.x), known.map((p) => p[0])]);
  const spanY = extent([shown.flatMap((p) => [p.y - (p.dev || 0), p.y + (p.dev || 0)]), known.map((p) => p[1])]);
  if (!spanX) return el("p", { class: "empty" }, "There is nothing to draw.");
  const values = extent([shown.map((p) => p.y), known.map((p) => p[1])]);
  const height = Math.max(260, Math.min(380, width * 0.64), joined ? 14 * new Set(shown.map((p) => p.name)).size + 60 : 0);
  const room = x.log ? (spanX[1] / spanX[0]) ** 0.06 || 1 : (spanX[1] - spanX[0]) * 0.06;
  const wide = x.log ? [spanX[0] / Math.max(room, 1.1), spanX[1] * Math.max(room, 1.1)] : [spanX[0] - room, spanX[1] + room];
  if (!x.log && spanX[0] >= 0) wide[0] = Math.max(0, wide[0]);
  const tall = y.log ? 0 : (spanY[1] - spanY[0]) * 0.08;
  spanY[0] -= tall;
  spanY[1] += tall;
  within(spanY, values, y.log);
  const whole = shown.every((p) => Number.isInteger(p.x) || p.x === Infinity);
  const X = axis({ ...x, least: wide[0], most: wide[1], whole, count: Math.max(3, Math.round(width / 90)), amount: true });
  const Y = axis({ ...y, least: spanY[0], most: spanY[1], count: 5, loose: true, amount: true });
  const right = joined ? Math.min(Math.max(...shown.map((p) => widthOf(p.name))) + 18, width * 0.34) : 16;
  const { root, box, px, py } = frame(width, height, X, Y, { right, name });
  const places = shown.map((p) => ({ ...p, x: px(p.x), y: py(p.y), of: p }));
  if (fronts) besideEachOther(places, width < 480 ? 11 : 20);
  const lines = new Map();
  if (joined) for (const p of [...places].sort((a, b) => a.x - b.x)) lines.set(p.of.name, [...(lines.get(p.of.name) ?? []), p]);
  for (const line of lines.values()) root.append(svg("path", { class: "join", d: `M${line.map((p) => `${round(p.x)} ${round(p.y)}`).join("L")}` }));
  if (known.length) {
    const steps = [...known].sort((a, b) => a[0] - b[0]).map(([a, b]) => ({ x: px(a), y: py(b) }));
    root.append(svg("path", { class: "known", d: steps.map((p) => `M${round(p.x - 4)} ${round(p.y - 4)}l8 8m0 -8l-8 8`).join("") }));
  }
  const front = (fronts ? shown.map((of) => ({ x: px(of.x), y: py(of.y), of })) : places).filter((p) => p.of.front).sort((a, b) => a.x - b.x);
  const own = (colour) => front.filter((p) => p.of.colour === colour);
  for (const line of !fronts ? [front] : fronts.stepped ? [...new Set(front.map((p) => p.of.colour))].map(own) : []) {
    const [flat, steep] = [(p) => `H${round(p.x)}`, (p) => `V${round(p.y)}`], turns = fronts?.x ? [steep, flat] : [flat, steep];
    if (line.length > 1) root.append(svg("path", { class: `front ${fronts ? `${run(line[0].of.colour)} ${dashed(line[0].of.colour)}` : ""}`,
      d: line.map((p, i) => (i ? turns.map((turn) => turn(p)).join("") : `M${round(p.x)} ${round(p.y)}`)).join("") }));
  }
  for (const p of places) {
    const colour = run(p.of.colour);
    if (p.of.dev) root.append(svg("path", { class: `whisker ${colour}`, d: `M${round(p.x)} ${round(py(Math.max(p.of.y - p.of.dev, Y.least)))}V${round(py(Math.min(p.of.y + p.of.dev, Y.most)))}` }));
  }
  for (const p of places)
    root.append(svg("path", { class: `mark ${p.of.front ? "full" : ""} ${run(p.of.colour)}`, d: mark(p.x, p.y, shaped(p.of.colour), (p.of.front ? 5.5 : 4.5) * (fronts && width < 480 ? 0.75 : 1) + 0.6 * Math.log2(p.of.size ?? 1)) }));
  const steps = front.slice(1).flatMap((p, i) => [[front[i].x, front[i].y - 2, p.x, front[i].y + 2], [p.x - 2, p.y, p.x + 2, front[i].y]]);
  if (joined) nameEnds(root, box, right, [...lines.values()].map((line) => ({ ...line.at(-1).of, x: line.at(-1).x, y: line.at(-1).y })));
  else if (!fronts) for (const label of placed(places, steps, box, width)) root.append(text(label.x, label.y, label.text, { class: `run ${run(label.colour)}` }));

  const lit = svg("g");
  root.append(lit);
  const order = places.map((_, i) => i).sort((a, b) => places[a].x - places[b].x);
  explore(root, state, {
    count: places.length,
    at: (atX, atY) => order.indexOf(nearest(places, atX, atY, 28)),
    show: (i) => {
      const { x: atX, y: atY, of } = places[order[i]];
      lit.replaceChildren(svg("path", { class: "lit", d: mark(atX, atY, 0, 9) }));
      const dev = of.dev ? `± ${format(of.dev, y.unit, 2, y.decimals)}` : null;
      const rows = [{ name: y.label, value: format(of.y, y.unit, 4, y.decimals), range: dev }, { name: x.label, value: of.x === Infinity ? "none" : format(of.x, x.unit) }];
      for (const [what, value] of of.more ?? []) rows.push({ name: what, value: typeof value === "number" ? format(value) : value });
      if (of.run !== of.name) rows.unshift({ colour: of.colour, kind: "mark", name: of.run, value: "" });
      return { x: atX, y: atY, title: of.name, rows };
    },
    clear: () => lit.replaceChildren(),
  });
  if (!fronts) return root;
  const runs = new Map(shown.map((p) => [p.run, p.colour])), keys = [...runs].map(([of, colour]) => [key(colour, "mark"), of]);
  keys.push([sign("mark full run-7", mark(9, 6, 0, 4.5)), "on the front of its run"]);
  if (shown.some((p) => !p.front)) keys.push([sign("mark run-7", mark(9, 6, 0, 4)), "not on it"]);
  if (known.length) keys.push([sign("known", "M5 2l8 8m0 -8l-8 8"), "known front"]);
  return [root, legend(keys)];
});
/** Move points of the same place around it, so that all are seen. */
function besideEachOther(places, reach) {
  const there = new Map();
  for (const p of places) {
    const where = `${Math.round(p.x / 3)} ${Math.round(p.y / 3)}`;
    there.set(where, [...(there.get(where) ?? []), p]);
  }
  for (const some of there.values()) {
    if (some.length < 2) continue;
    const away = Math.max(6, Math.min(some.length * 2, reach));
    some.forEach((p, i) => {
      const angle = (2 * Math.PI * i) / some.length - Math.PI / 2;
      p.x += away * Math.cos(angle);
      p.y += away * Math.sin(angle);
    });
  }
}
/** Return labels of points where there is room for them: those of the front first, then in their order. */
function placed(points, steps, box, width) {
  const taken = [...points.map((p) => [p.x - 6, p.y - 6, p.x + 6, p.y + 6]), ...steps], labels = [];
  for (const p of [...points].sort((a, b) => Boolean(b.of.front) - Boolean(a.of.front))) {
    if (!p.of.name || labels.length >= 40) continue;
    const label = shortened(p.of.name, width * 0.34), w = widthOf(label);
    for (const [x, y] of [[9, 4], [-9 - w, 4], [-w / 2, -10], [-w / 2, 19], [7, -7], [7, 15], [-7 - w, -7], [-7 - w, 15]]) {
      const area = [p.x + x, p.y + y - 11, p.x + x + w, p.y + y + 3];
      if (area[0] < box.left || area[2] > width || area[1] < box.top - 8 || area[3] > box.bottom) continue;
      if (taken.some((t) => t[0] < area[2] && area[0] < t[2] && t[1] < area[3] && area[1] < t[3])) continue;
      taken.push(area);
      labels.push({ x: p.x + x, y: p.y + y, text: label, colour: p.of.colour });
      break;
    }
  }
  return labels;
}

/** Bars: {name, label, unit?, log?, decimals?, bars: [{name, colour, value: number | null, missing?, parts?: {name: number}, limit?}]}.

    A bar of parts is as long as their sum, and one below zero goes to the left. On a logarithmic axis there is a dot instead,
    because there a length means nothing, and none at zero. `missing` is said where its value is null. */
const bars = kind(({ name, label, unit, log, bars: all, decimals }, width, state) => {
  const sum = (bar) => (bar.parts ? Object.values(bar.parts).reduce((a, b) => a + (b ?? 0), 0) : bar.value);
  const values = all.map(sum), span = extent([values, all.map((bar) => bar.limit)], log) ?? [0, 0];
  const said = values.map((v, i) => (v == null || Number.isNaN(v) ? all[i].missing ?? "–" : format(v, unit, 3, decimals)));
  const wanted = Math.max(...all.map((bar) => widthOf(bar.name))) + 12;
  const above = wanted > width * 0.34, tall = above ? 38 : 26;
  const left = above ? 0 : wanted, right = width - Math.max(...said.map((s) => widthOf(s))) - 10;
  const bottom = 22 + all.length * tall, height = bottom + (log ? 22 : 0);
  const X = log ? axis({ label, unit, log, least: 10 ** Math.floor(Math.log10(span[0]) - 0.05), most: span[1], count: Math.max(3, Math.round((right - left) / 60)) })
    : axis({ label, unit, least: Math.min(0, span[0]), most: Math.max(0, span[1]) });
  const root = surface(width, height, name), px = (value) => left + X.part(value) * (right - left);
  root.append(text(left, 11, label, { class: "strong" }));
  let taken = -Infinity;
  if (log) for (const tick of X.ticks) {
    const at = Math.max(px(tick.value), widthOf(tick.text) / 2), half = widthOf(tick.text) / 2;
    if (at - half < taken + 6) continue;
    root.append(svg("path", { class: "grid", d: `M${round(px(tick.value))} 20V${bottom + 4}` }));
    root.append(text(at, bottom + 17, tick.text, { "text-anchor": "middle" }));
    taken = at + half;
  }
  const parts = [...new Set(all.flatMap((bar) => Object.keys(bar.parts ?? {})))];
  const tops = all.map((_, i) => 22 + i * tall + (above ? 17 : 5));
  all.forEach((bar, i) => {
    const top = tops[i], middle = top + 8;
    root.append(above ? text(0, top - 5, shortened(bar.name, width), { class: "strong" })
      : text(left - 10, middle + 4, bar.name, { class: "strong", "text-anchor": "end" }));
    const end = log ? dot(bar, i, middle) : lengths(bar, top);
    const ahead = bar.limit == null ? -1 : px(bar.limit) - end; // a limit that would stand in the number is stepped over
    root.append(text((ahead >= 0 && ahead < widthOf(said[i]) + 12 ? px(bar.limit) + 2 : end) + 6, middle + 4, said[i], { class: "strong" }));
    if (bar.limit != null) root.append(svg("path", { class: "limit", d: `M${round(px(bar.limit))} ${top - 3}v22` }));
  });
  const zero = log ? left : px(0);
  root.append(svg("path", { class: crosses(X) ? "zero" : "axis", d: above && !crosses(X) ? tops.map((top) => `M0 ${top - 1}v18`).join("") : `M${round(zero)} 20V${bottom}` }));
  explore(root, state, {
    count: all.length,
    at: (_, y) => Math.max(-1, Math.min(all.length - 1, Math.floor((y - 22) / tall))),
    step: (i, dx, dy) => i + dx + dy,
    show: (i) => {
      const bar = all[i], rows = Object.entries(bar.parts ?? {}).map(([part, v]) => ({ name: part, value: format(v, unit) }));
      rows.push({ name: bar.parts ? "together" : label, value: said[i] });
      if (bar.limit != null) rows.push({ name: "limit", value: format(bar.limit, unit) });
      return { x: Math.min(values[i] == null ? zero : px(values[i]), right), y: tops[i] + 8, title: bar.name, rows };
    },
    clear: () => {},
  });
  const keys = parts.length < 2 || log ? [] : parts.map((part, k) => [sign(`bar part-${k % 4} run-7`, "M0 1h16v10h-16z"), part]);
  if (all.some((bar) => bar.limit != null)) keys.push([sign("limit", "M9 0v12"), "limit"]);
  return keys.length ? [root, legend(keys)] : root;

  /** Draw a dot on a thin line, and return its right end. */
  function dot(bar, i, middle) {
    if (!(values[i] > 0)) return left;
    const at = px(values[i]);
    root.append(svg("path", { class: `stem ${run(bar.colour)}`, d: `M${round(left)} ${middle}H${round(at)}` }));
    root.append(svg("path", { class: `bar ${run(bar.colour)}`, d: mark(at, middle, 0, 5) }));
    return at + 4;
  }
  /** Draw a bar, or one for each part, and return the right end of all. */
  function lengths(bar, top) {
    let from = 0;
    for (const [k, value] of bar.parts ? parts.map((part, k) => [k, bar.parts[part] ?? 0]) : [[0, bar.value ?? 0]]) {
      if (!value) continue;
      const [a, b] = [px(from), px(from + value)].sort((one, other) => one - other), inset = from ? 1 : 0;
      root.append(svg("rect", { class: `bar part-${k % 4} ${run(bar.colour)}`, x: round(a + inset), y: top, width: round(Math.max(b - a - inset, 1)), height: 16, rx: 1.5 }));
      from += value;
    }
    return px(Math.max(from, 0));
  }
});

/** Distribution: {name, label, unit?, log?, of?, zero?, strips: [{name, colour, values, worst: [index], mean}], labels?}.

    A strip is a swarm of one dot per value, each for a node or for what `of` says, with those in `worst` as open diamonds and the mean as a line.
    With `zero` the axis contains zero. */
const distribution = kind(({ name, label, unit, log, of = "node", zero, strips, labels, decimals }, width, state) => {
  const span = extent([...strips.map((strip) => strip.values), zero ? [0] : null]);
  if (!span) return el("p", { class: "empty" }, "There is nothing to draw.");
  const most = Math.max(...strips.map((strip) => strip.values.length));
  const r = most > 400 ? 1.8 : most > 150 ? 2.4 : width < 480 ? 2.8 : 3.3;
  const wanted = Math.max(...strips.map((strip) => widthOf(strip.name))) + 14;
  const above = strips.length > 1 && wanted > width * 0.24;
  const left = above || strips.length === 1 ? 0 : wanted;
  const tall = (strips.length > 6 ? 44 : strips.length > 1 ? 58 : 90) + (above ? 16 : 0) + (most > 400 ? 14 : 0);
  const height = 8 + strips.length * tall + 44;
  const X = axis({ label, unit, log, least: span[0], most: span[1], count: Math.max(3, Math.round((width - left) / 90)), loose: true, amount: true });
  const { root, box, px } = frame(width - left, height, X, null, { right: 8, name });
  if (left) {
    for (const child of root.children) child.setAttribute("transform", `translate(${left} 0)`);
    root.setAttribute("viewBox", `0 0 ${round(width)} ${height}`);
  }
  const at = (value) => left + px(value), points = [];
  strips.forEach((strip, i) => {
    const top = 8 + i * tall + (above ? 16 : 0), bottom = 8 + (i + 1) * tall, middle = (top + bottom) / 2;
    const names = above ? text(0, top - 2, strip.name, { class: `run ${run(strip.colour)}` })
      : text(0, middle + 4, strip.name, { class: `run ${run(strip.colour)}` });
    if (strips.length > 1) root.append(names);
    const worst = new Set(strip.worst);
    let dots = "", rings = "";
    for (const [k, x, y] of swarm(strip.values, at, middle, (bottom - top) / 2 - 4, r)) {
      points.push({ x, y, strip, node: k, worst: worst.has(k) });
      if (worst.has(k)) rings += mark(x, y, 3, r); else dots += `M${round(x)} ${round(y)}h0`;
    }
    root.append(svg("path", { class: `swarm ${run(strip.colour)}`, "stroke-width": 2 * r, d: dots }));
    root.append(svg("path", { class: `rings ${run(strip.colour)}`, d: rings }));
    if (strip.mean != null) root.append(svg("path", { class: "mean", d: `M${round(at(strip.mean))} ${round(top + 3)}V${round(bottom - 3)}` }));
  });
  const lit = svg("g");
  root.append(lit);
  const first = strips.map((strip) => points.findIndex((p) => p.strip === strip));
  explore(root, state, {
    count: points.length,
    at: (x, y) => nearest(points, x, y, 22),
    step: (i, dx, dy) => (dy ? first[strips.indexOf(points[i].strip) + dy] ?? i : i + dx),
    show: (i) => {
      const { x, y, strip, node, worst } = points[i];
      lit.replaceChildren(svg("path", { class: "lit", d: mark(x, y, 0, r + 3) }));
      const rows = [{ name: label, value: format(strip.values[node], unit, 4, decimals) }, { name: "mean", value: format(strip.mean, unit, 4, decimals) }];
      if (strips.length > 1) rows.unshift({ colour: strip.colour, kind: "dot", name: strip.name, value: "" });
      return { x, y, title: `${nameOf(node, labels)}${worst ? ", among the worst tenth" : ""}`, rows };
    },
    clear: () => lit.replaceChildren(),
  });
  const keys = [[sign("swarm run-7", "M9 6h0", { "stroke-width": 7 }), of], [sign("mean", "M9 0v12"), "mean"]];
  if (strips.some((strip) => strip.worst.length)) keys.splice(1, 0, [sign("rings run-7", mark(9, 6, 3, 4)), "worst tenth"]);
  return [root, legend(keys)];
});
/** Yield [index, x, y] of each value: at its exact x, beside its neighbours, within `room` of the middle. */
function* swarm(values, at, middle, room, r) {
  const order = [...values.keys()].filter((k) => Number.isFinite(values[k] ?? NaN)).sort((a, b) => values[a] - values[b]);
  const column = (k) => Math.round(at(values[k]) / (2 * r)), heights = new Map();
  for (const k of order) heights.set(column(k), (heights.get(column(k)) ?? 0) + 1);
  const highest = Math.max(...heights.values()), gap = Math.min(2 * r, (2 * (room - r)) / Math.max(highest - 1, 1));
  const used = new Map();
  for (const k of order) {
    const c = column(k), n = used.get(c) ?? 0, total = heights.get(c);
    used.set(c, n + 1);
    yield [k, at(values[k]), middle + (n - (total - 1) / 2) * gap];
  }
}
const nameOf = (node, labels) => labels?.[node] ?? `node ${node}`;

/** Matrix: {name, n, panels: [{name, colour?, values}], most, least?, labels?, groups?: [{label, count}], x: {label},
    y: {label}, unit?}.

    Values stand row by row; all panels have one scale, from 0 to `most`, and where `least` is below 0, in another hue as far
    below. */
const matrix = kind(({ name, n, panels, most, least = 0, labels, groups, x, y, unit }, width, state) => {
  const named = groups?.length > 1 && groups.length <= 12;
  const gutter = 18 + (named ? Math.min(84, Math.max(...groups.map((g) => widthOf(String(g.label)))) + 6) : 0), gap = 14;
  const atMost = Math.max(1, Math.floor((width - gutter + gap) / ((width < 480 ? 110 : 172) + gap)));
  const columns = Math.ceil(panels.length / Math.ceil(panels.length / atMost));
  const room = Math.min(panels.length === 1 ? 460 : 320, (width - gutter - gap * (columns - 1)) / columns);
  // Cells of whole device pixels where that costs little room.
  const dots = window.devicePixelRatio || 1, whole = (Math.floor((room * dots) / n) * n) / dots;
  const size = whole > 0.9 * room ? whole : Math.floor(room);
  const box = el("div", { class: "panels" });
  box.style.gap = `14px ${gap}px`;
  box.style.maxWidth = `${gutter + columns * size + (columns - 1) * gap}px`; // where there is less, as on paper, all shrinks alike
  box.style.gridTemplateColumns = [size + gutter, ...Array(columns - 1).fill(size)].map((part) => `minmax(0, ${part}fr)`).join(" ");
  const states = (state.panels ??= []);
  panels.forEach((panel, k) => {
    const left = k % columns ? 0 : gutter; // names stand before the first of a row
    const canvas = el("canvas", { "aria-hidden": "true" });
    paint(canvas, panel.values, n, most, Math.ceil((size * dots) / n), least < 0);
    const root = surface(size + left, size + (left ? 20 : 2), `${name}: ${panel.name}`);
    const lines = [`M${left} 0h${round(size)}v${round(size)}h${round(-size)}z`];
    let from = 0;
    for (const group of groups ?? []) {
      const middle = ((from + group.count / 2) / n) * size;
      if (left && named && (group.count * size) / n >= 11)
        root.append(text(left - 6, middle + 4, shortened(String(group.label), left - 22), { "text-anchor": "end" }));
      from += group.count;
      const place = round((from / n) * size);
      if (from < n) lines.push(`M${left} ${place}h${round(size)}M${round(left + place)} 0v${round(size)}`);
    }
    root.append(svg("path", { class: "axis", d: lines.join("") }));
    if (left) {
      root.append(text(0, 0, `← ${y.label}`, { transform: `translate(11 ${round(size)}) rotate(-90)`, class: "strong" }));
      root.append(text(left, size + 15, `${x.label} →`, { class: "strong" }));
    }
    const lit = svg("g");
    root.append(lit);
    const percent = (part) => `${(100 * part) / (size + left)}%`;
    Object.assign(canvas.style, { left: percent(left), width: percent(size), top: "0" });
    const cell = size / n;
    explore(root, (states[k] ??= { place: -1 }), {
      count: n * n,
      step: (i, dx, dy) => {
        const row = Math.floor(i / n) + dy, column = (i % n) + dx;
        return row < 0 || row >= n || column < 0 || column >= n ? i : row * n + column;
      },
      at: (atX, atY) => {
        const column = Math.floor((atX - left) / cell), row = Math.floor(atY / cell);
        return column < 0 || column >= n || row < 0 || row >= n ? -1 : row * n + column;
      },
      show: (i) => {
        const row = Math.floor(i / n), column = i % n, value = panel.values[i];
        const from = round(left + column * cell), top = round(row * cell), side = round(cell);
        lit.replaceChildren(svg("path", { class: "lit", d: `M${from - 1} ${top - 1}h${side + 2}v${side + 2}h${-side - 2}z` }));
        const rows = [{ name: y.label, value: cellName(row, labels, groups) }, { name: x.label, value: cellName(column, labels, groups) }];
        return { x: from + side, y: top + side / 2, title: Number.isFinite(value ?? NaN) ? format(value, unit) : "no value", rows };
      },
      clear: () => lit.replaceChildren(),
    });
    const title = el("p", { class: `name ${panel.colour == null ? "" : `run ${run(panel.colour)}`}`, title: panel.name }, panel.name);
    title.style.marginLeft = percent(left);
    box.append(el("div", { class: "panel" }, title, fill(el("div"), { class: "panel" }, [canvas, root])));
  });
  if (least >= 0) return [box, rampLegend("0", format(most, unit, 3))];
  const [below, above] = ["ramp below", "ramp above"].map((side) => el("i", { class: side }));
  return [box, el("div", { class: "legend" }, el("span", {}, format(-most, unit, 3), below, "0", above, format(most, unit, 3)))];
});
/** Heat map: {name, rows: [label], columns: [label], cells: [{row, column, value, dev?, missing?, best?, bold?, run, colour}], label,
    unit?, log?, x: {label}, y: {label}, missing}.

    A cell has its value in it; those without a value say what is missing, the best has a frame, and some are bold. Labels of
    columns that are too long for their column stand upright. */
const heatmap = kind(({ name, rows, columns, cells, label, unit, log, x, y, missing, decimals }, width, state) => {
  const span = extent([cells.map((cell) => cell.value)]);
  if (!span) return el("p", { class: "empty" }, "There is nothing to draw.");
  const gutter = Math.min(Math.max(...rows.map((row) => widthOf(row)), widthOf(y.label) + 14) + 10, width * 0.34);
  const side = (width - gutter - 2) / columns.length, tall = 34, longest = Math.max(...columns.map((column) => widthOf(column)));
  const upright = longest > side - 4 && side < 60, top = upright ? 26 + Math.min(longest, 90) : 40, height = top + rows.length * tall + 2;
  const root = surface(width, height, name), scale = log ? Math.log : (value) => value;
  const share = !unit && Math.max(Math.abs(span[0]), Math.abs(span[1])) < 2, places = decimals ?? (share ? 3 : null);
  const figure = (value, less = 0) => format(value, unit, 3 - less, places == null ? null : Math.max(0, places - less));
  const less = cells.some((cell) => Number.isFinite(cell.value ?? NaN) && widthOf(figure(cell.value)) > side - 4) ? 1 : 0; // all alike
  const part = (value) => (span[1] > span[0] ? (scale(value) - scale(span[0])) / (scale(span[1]) - scale(span[0])) : 0.5);
  root.append(text(gutter, 12, `${x.label} →`, { class: "strong" }), text(0, top - 8, `${y.label} ↓`, { class: "strong" }));
  columns.forEach((column, k) => {
    const middle = gutter + (k + 0.5) * side;
    root.append(upright ? text(0, 0, shortened(column, 92), { transform: `translate(${round(middle + 4)} ${top - 6}) rotate(-90)` })
      : text(middle, top - 8, shortened(column, side - 4), { "text-anchor": "middle" }));
  });
  rows.forEach((row, k) => root.append(text(gutter - 10, top + (k + 0.5) * tall + 4, shortened(row, gutter - 10), { "text-anchor": "end" })));
  const area = ({ row, column }, inset) =>
    `M${round(gutter + column * side + inset)} ${top + row * tall + inset}h${round(side - 2 * inset)}v${tall - 2 * inset}h${round(2 * inset - side)}z`;
  const frames = [];
  for (const cell of cells) {
    const there = Number.isFinite(cell.value ?? NaN), paint = there ? coloured(0.06 + 0.94 * part(cell.value)) : null;
    root.append(svg("path", { class: there ? "cell" : "cell none", fill: paint, d: area(cell, 1) }));
    const said = there ? figure(cell.value, less) : cell.missing ?? missing, fits = widthOf(said) <= side - 4 ? said : "";
    if (fits) root.append(text(gutter + (cell.column + 0.5) * side, top + (cell.row + 0.5) * tall + 4, fits, { "text-anchor": "middle", class: there ? `${readable(paint)}${cell.bold ? " bold" : ""}` : "" }));
    if (there && cell.best) frames.push(svg("path", { class: "lit best", d: area(cell, 1) }), svg("path", { class: "inner", d: area(cell, 3) }));
  }
  const lit = svg("g");
  root.append(...frames, lit);
  const order = cells.map((_, i) => i).sort((a, b) => cells[a].row - cells[b].row || cells[a].column - cells[b].column);
  const find = (row, column) => order.findIndex((i) => cells[i].row === row && cells[i].column === column);
  explore(root, state, {
    count: cells.length,
    at: (atX, atY) => find(Math.floor((atY - top) / tall), Math.floor((atX - gutter) / side)),
    step: (i, dx, dy) => {
      const next = find(cells[order[i]].row + dy, cells[order[i]].column + dx);
      return next < 0 ? i : next;
    },
    show: (i) => {
      const cell = cells[order[i]], there = Number.isFinite(cell.value ?? NaN);
      lit.replaceChildren(svg("path", { class: "lit", d: area(cell, 0) }));
      const said = [{ name: y.label, value: rows[cell.row] }, { name: x.label, value: columns[cell.column] },
        { name: label, value: there ? format(cell.value, unit, 4, decimals) : cell.missing ?? missing, range: there && cell.dev != null ? `± ${format(cell.dev, unit, 2, decimals)}` : null }];
      return { x: gutter + (cell.column + 1) * side, y: top + (cell.row + 0.5) * tall, clear: top + cell.row * tall, title: cell.run, rows: said };
    },
    clear: () => lit.replaceChildren(),
  });
  return [root, rampLegend(format(span[0], unit, 3, decimals), format(span[1], unit, 3, decimals), log ? `${label}, logarithmic` : label)];
});
/** Return the class of text that is read best on a colour: black or white, one of which has 4.5:1 on every colour. */
function readable(paint) {
  const light = paint.match(/[\d.]+/g).slice(0, 3).map((c) => (c /= 255, c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0.05);
  return light / 0.05 >= 1.05 / light ? "black" : "white";
}
function cellName(index, labels, groups) {
  let from = 0;
  for (const group of groups ?? []) {
    from += group.count;
    if (index < from) return `${nameOf(index, labels)} (${group.label})`;
  }
  return nameOf(index, labels);
}
/** Paint n x n cells, each `scale` dots wide, so that the browser makes them smaller and never larger. With `both`, values
    are below nothing too, and the ends of the two ramps, which look alike, are left out. */
function paint(canvas, values, n, most, scale, both) {
  const cells = el("canvas", { width: n, height: n }), pen = cells.getContext("2d");
  const image = pen.createImageData(n, n), above = ramp(), below = both ? ramp("below") : above;
  for (let i = 0; i < n * n; i++) {
    const value = values[i];
    if (value == null || Number.isNaN(value)) continue; // stays clear
    const table = value < 0 ? below : above, at = 3 * Math.round(255 * (both ? 0.8 : 1) * Math.max(0, Math.min(1, Math.abs(value) / (most || 1))));
    image.data[4 * i] = table[at];
    image.data[4 * i + 1] = table[at + 1];
    image.data[4 * i + 2] = table[at + 2];
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  canvas.width = canvas.height = n * scale;
  const large = canvas.getContext("2d");
  large.imageSmoothingEnabled = false;
  large.drawImage(cells, 0, 0, n * scale, n * scale);
}

/** Lanes: {name, rows: [label], x: {label, unit, span?}, keys: [label], none?, joined?, inside?,
    parts: [{row, from, to, key, block, label, brief?}], tip: (part) => [row of a tip, ...], groups?: [label of each row]}.

    What each row was from when to when: a part has the colour of its key, -1 being `none`. With `joined`, neighbouring rows of
    the same block touch, as the members of a cluster; with `inside`, parts have their label in them where there is room, or else what is brief. */
const lanes = kind(({ name, rows, groups, x, keys, none, joined, inside, parts, tip: said }, width, state) => {
  const span = extent([parts.map((p) => p.from), parts.map((p) => p.to), x.span ?? []]);
  if (!span) return el("p", { class: "empty" }, "There is nothing to draw.");
  const n = rows.length, tall = Math.max(1, Math.min(inside ? 24 : 18, Math.floor((inside ? 520 : 460) / n))), named = tall >= 11;
  const titles = named && !groups ? rows.map(String) : blocksOf(groups ?? []).map((block) => String(block.of));
  const gutter = titles.length ? Math.min(Math.max(...titles.map((title) => widthOf(title))) + 10, width * 0.3) : 0;
  const X = axis({ ...x, least: span[0], most: span[1], whole: !x.unit, count: Math.max(3, Math.round((width - gutter) / 90)) });
  const height = 6 + n * tall + 40, { root, px: at } = frame(width - gutter, height, X, null, { right: 8, name });
  if (gutter) {
    for (const child of root.children) child.setAttribute("transform", `translate(${round(gutter)} 0)`);
    root.setAttribute("viewBox", `0 0 ${round(width)} ${height}`);
  }
  const px = (value) => gutter + at(value), top = (row) => 6 + row * tall;
  if (named && !groups) rows.forEach((row, i) =>
    root.append(text(gutter - 8, top(i) + tall / 2 + 4, shortened(String(row), gutter - 8), { "text-anchor": "end" })));
  else for (const block of blocksOf(groups ?? [])) if (block.count * tall >= 11)
    root.append(text(gutter - 8, top(block.from + block.count / 2) + 4, shortened(String(block.of), gutter - 8), { "text-anchor": "end" }));
  const gap = joined || tall < 5 ? 0 : 2, drawn = new Map();
  for (const p of parts) {
    const d = `M${round(px(p.from))} ${top(p.row)}H${round(px(p.to))}v${tall - gap}H${round(px(p.from))}z`;
    drawn.set(p.key, (drawn.get(p.key) ?? "") + d);
  }
  for (const [k, d] of drawn) root.append(svg("path", { class: k < 0 ? "lane none" : `lane ${run(k)} tone-${Math.floor(k / 8) % 3}`, d }));
  const of = Array.from({ length: n }, () => []);
  for (const p of parts) of[p.row].push(p);
  for (const row of of) row.sort((a, b) => a.from - b.from);
  let ends = "", cuts = "", hairs = "";
  for (let i = 0; i < n; i++) {
    for (const p of of[i].slice(1)) ends += `M${round(px(p.from))} ${top(p.row)}v${tall - gap}`;
    if (!joined || !i) continue;
    for (const p of of[i]) for (const q of of[i - 1]) { // where both were at the same time
      const a = Math.max(p.from, q.from), b = Math.min(p.to, q.to);
      if (a >= b) continue;
      const line = `M${round(px(a))} ${top(i)}H${round(px(b))}`;
      if (p.block === q.block) hairs += line; else cuts += line;
    }
  }
  if (tall >= 7) root.append(svg("path", { class: "cut hair", d: hairs }));
  root.append(svg("path", { class: `cut ${tall < 7 ? "thin" : ""}`, d: ends + cuts }));
  if (inside && tall >= 13) for (const p of parts) {
    const room = px(p.to) - px(p.from) - 8, fits = [p.label, p.brief].find((label) => label && widthOf(label) <= room);
    if (fits) root.append(text(px(p.from) + 5, top(p.row) + (tall - gap) / 2 + 4, fits, { class: p.key < 0 ? "" : "on" }));
  }
  const lit = svg("g");
  root.append(lit);
  const ordered = of.flat(), first = of.map((row) => ordered.indexOf(row[0]));
  explore(root, state, {
    count: ordered.length,
    at: (atX, atY) => ordered.findIndex((p) => p.row === Math.floor((atY - 6) / tall) && atX >= px(p.from) && atX <= px(p.to)),
    step: (i, dx, dy) => (dy ? first[ordered[i].row + dy] ?? i : ordered[i + dx]?.row === ordered[i].row ? i + dx : i),
    show: (i) => {
      const here = ordered[i], all = ordered.filter((p) => p.block === here.block), places = [...new Set(all.map((p) => p.row))].sort((a, b) => a - b);
      const outline = joined ? blocksOf(places.map((row, k) => row - k)).map((block) => {
        const [a, b] = [places[block.from], places[block.from + block.count - 1]];
        return `M${round(px(here.from))} ${top(a)}H${round(px(here.to))}V${top(b + 1)}H${round(px(here.from))}z`;
      }).join("") : `M${round(px(here.from))} ${top(here.row)}H${round(px(here.to))}v${tall - gap}H${round(px(here.from))}z`;
      lit.replaceChildren(svg("path", { class: "lit", d: outline }));
      const middle = (Math.max(px(here.from), gutter) + px(here.to)) / 2;
      return { x: middle, y: top(here.row) + tall / 2, clear: top(here.row) - 4, title: String(rows[here.row]), rows: said(here) };
    },
    clear: () => lit.replaceChildren(),
  });
  const used = [...drawn.keys()].filter((k) => k >= 0).sort((a, b) => a - b);
  const signs = used.map((k) => [sign(`lane ${run(k)} tone-${Math.floor(k / 8) % 3}`, "M1 1h16v10h-16z"), keys[k]]);
  if (drawn.has(-1)) signs.push([sign("lane none", "M1 1h16v10h-16z"), none ?? "none"]);
  return signs.length > 1 ? [root, legend(signs)] : root;
});
/** Return what stands beside its like in an array: [{of, from, count}]. */
function blocksOf(values) {
  const found = [];
  values.forEach((of, i) => { if (found.length && found.at(-1).of === of) found.at(-1).count++; else found.push({ of, from: i, count: 1 }); });
  return found;
}

/** Network: {name, nodes: {x, y, label?, group?}, edges: [[i, j]], value: array?, label, unit?, links: [[src, dst, weight]]}.

    Edges are the topology; a link is an arrow from whom a node learned. Nodes are coloured by value, their mark is the group.
    Names stand beside the nodes where there is room, those with most edges first; numbers are left out. */
const network = kind(({ name, nodes, edges, value, label, unit, links }, width, state) => {
  const n = nodes.x.length, spanX = extent([nodes.x]) ?? [0, 1], spanY = extent([nodes.y]) ?? [0, 1];
  const aspect = (spanY[1] - spanY[0]) / (spanX[1] - spanX[0] || 1);
  const height = Math.round(Math.min(560, width * 1.1, Math.max(220, width * aspect)));
  const r = n > 400 ? 3 : n > 120 ? 4 : width < 480 ? 4.4 : 6, pad = r + 4;
  const by = Math.min((width - 2 * pad) / (spanX[1] - spanX[0] || 1), (height - 2 * pad) / (spanY[1] - spanY[0] || 1));
  const px = (v) => width / 2 + (v - (spanX[0] + spanX[1]) / 2) * by;
  const py = (v) => height / 2 + (v - (spanY[0] + spanY[1]) / 2) * by; // downwards, as in the data: north is up
  const places = Array.from({ length: n }, (_, i) => ({ x: px(nodes.x[i]), y: py(nodes.y[i]) }));
  const root = surface(width, height, name);
  root.append(svg("path", { class: "edges", "stroke-opacity": edges.length > 1500 ? 0.18 : 0.45,
    d: edges.map(([i, j]) => `M${round(places[i].x)} ${round(places[i].y)}L${round(places[j].x)} ${round(places[j].y)}`).join("") }));
  // Four classes of weight, one path each, so that many links cost little.
  const top = Math.max(...links.map((link) => link[2]), 1e-12);
  const classes = [[], [], [], []];
  for (const link of links) classes[Math.max(0, Math.min(3, Math.ceil((4 * link[2]) / top) - 1))].push(link);
  classes.forEach((some, k) => {
    if (some.length) root.append(svg("path", { class: "links", "fill-opacity": (0.14 + 0.1 * k) * (links.length > 250 ? 0.75 : 1),
      d: some.map(([src, dst]) => wedge(places[src], places[dst], (0.4 + 0.2 * k) * Math.min(r / 2, 2))).join("") }));
  });
  const groups = [...new Set(nodes.group ?? [])];
  const shape = (i) => (groups.length > 1 && groups.length <= MARKS.length ? groups.indexOf(nodes.group[i]) : 0);
  const span = value && extent([value]);
  const part = (v) => (span[1] > span[0] ? (v - span[0]) / (span[1] - span[0]) : 1);
  places.forEach((p, i) => {
    const paint = span && Number.isFinite(value[i] ?? NaN) ? coloured(part(value[i])) : "none";
    root.append(svg("path", { class: "node", fill: paint, d: mark(p.x, p.y, shape(i), r) }));
  });
  const degree = new Array(n).fill(0);
  for (const [i, j] of edges) { degree[i]++; degree[j]++; }
  const called = (nodes.label ?? []).some((label, i) => label !== String(i)) ? nodes.label : [];
  const ends = places.map((p, i) => ({ ...p, of: { name: called[i] }, degree: degree[i] })).sort((a, b) => b.degree - a.degree);
  for (const label of placed(ends, [], { left: 0, top: 8, bottom: height }, width))
    root.append(text(label.x, label.y, label.text, { class: "place" }));
  const lit = svg("g");
  root.append(lit);
  explore(root, state, {
    count: n,
    at: (x, y) => nearest(places, x, y, 24),
    show: (i) => {
      const from = links.filter((link) => link[1] === i).sort((a, b) => b[2] - a[2]);
      const to = links.filter((link) => link[0] === i).length;
      lit.replaceChildren(
        svg("path", { class: "lit-links", d: from.map(([src]) => wedge(places[src], places[i], 2.6)).join("") }),
        svg("path", { class: "lit-heads", d: from.map(([src]) => mark(places[src].x, places[src].y, shape(src), r + 1)).join("") }),
        svg("path", { class: "lit", d: mark(places[i].x, places[i].y, shape(i), r + 2) }));
      const rows = [];
      if (nodes.group) rows.push({ name: "group", value: nodes.group[i] });
      if (value) rows.push({ name: label, value: format(value[i], unit) });
      for (const [src, , weight] of from.slice(0, 6)) rows.push({ name: `learned from ${nameOf(src, nodes.label)}`, value: plain(weight, 2) });
      if (from.length > 6) rows.push({ name: `and from ${from.length - 6} more`, value: "" });
      rows.push({ name: "others that learned from it", value: to });
      return { x: places[i].x, y: places[i].y, title: nameOf(i, nodes.label), rows };
    },
    clear: () => lit.replaceChildren(),
  });
  const keys = [];
  if (groups.length > 1 && groups.length <= MARKS.length)
    groups.forEach((group, k) => keys.push([sign("node", mark(9, 6, k, 5), { fill: "none" }), group]));
  if (edges.length) keys.push([sign("edges", "M0 6H18"), "topology"]);
  if (links.length) keys.push([sign("links", "M0 2.5L18 6L0 9.5z", { "fill-opacity": 0.55 }), "learned from, the wide end"]);
  const values = span ? rampLegend(format(span[0], unit, 3), format(span[1], unit, 3), label) : null;
  return [root, values, legend(keys)].filter(Boolean);

  /** A link is wide at the node that was learned from and pointed at the one that learned, and bends to one side of its way. */
  function wedge(a, b, w) {
    const dx = b.x - a.x, dy = b.y - a.y, long = Math.hypot(dx, dy) || 1, sx = (-dy / long) * w, sy = (dx / long) * w;
    const mx = (a.x + b.x) / 2 - dy * 0.1, my = (a.y + b.y) / 2 + dx * 0.1;
    return `M${round(a.x + sx)} ${round(a.y + sy)}Q${round(mx + sx / 2)} ${round(my + sy / 2)} ${round(b.x)} ${round(b.y)}` +
      `Q${round(mx - sx / 2)} ${round(my - sy / 2)} ${round(a.x - sx)} ${round(a.y - sy)}z`;
  }
});

// ---- what scrolls ---------------------------------------------------------------------------------------------------------

/** Let the keyboard reach what scrolls sideways, under the heading above it; call it again when the page has changed. */
function reachScrollers() {
  for (const box of document.querySelectorAll(".scroll, pre")) {
    const scrolls = box.scrollWidth > box.clientWidth, heading = box.closest("section")?.querySelector("h2");
    if (!scrolls) for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
    else if (!box.hasAttribute("tabindex")) fill(box, { tabindex: 0, role: "group", "aria-label": heading?.textContent ?? "wide content" }, []);
  }
}
addEventListener("resize", reachScrollers);

// ---- downloads ------------------------------------------------------------------------------------------------------------

/** Return rows of cells as CSV (RFC 4180). Texts that a spreadsheet would take for a formula are led by an apostrophe. */
function csv(rows) {
  const cell = (value) => {
    if (value == null || Number.isNaN(value)) return "";
    if (typeof value === "number") return String(Number.isInteger(value) || Math.fround(value) !== value ? value : Number(value.toPrecision(7)));
    let written = String(value);
    if (/^[=+\-@\t\r]/.test(written)) written = `'${written}`;
    return /[",\r\n]/.test(written) ? `"${written.replaceAll('"', '""')}"` : written;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
function download(name, content) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob([content], { type: "text/csv" })) });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

return { lines, scatter, bars, distribution, matrix, heatmap, lanes, network, el, svg, key, styled, format, csv, download, drawn, emphasise, themeSwitch, redrawAll, reachScrollers };
})();
