/* The report's figures, drawn from the payload with Charts: the filter by run, tabs, selectors and downloads.

   sim/report/page.py and the modules of the sections describe the payload. */
"use strict";
(async () => {
const { el } = Charts;
const page = document.documentElement;

// ---- the payload ----------------------------------------------------------------------------------------------------------

const ARRAYS = { u8: Uint8Array, u16: Uint16Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const characters = atob(base64), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < characters.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}
/** Replace packed arrays, {type: base64}, by arrays. */
function unpacked(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    if (typeof value[0] === "object") for (let i = 0; i < value.length; i++) value[i] = unpacked(value[i]);
    return value;
  }
  const names = Object.keys(value);
  if (names.length === 1 && ARRAYS[names[0]] && typeof value[names[0]] === "string")
    return new ARRAYS[names[0]](bytesOf(value[names[0]]).buffer);
  if (names.length === 1 && names[0] === "i8" && typeof value.i8 === "string") // hundredths; -128 is not a number
    return Float32Array.from(new Int8Array(bytesOf(value.i8).buffer), (each) => (each === -128 ? NaN : each / 100));
  for (const name of names) value[name] = unpacked(value[name]);
  return value;
}
async function read() {
  const packed = bytesOf(document.getElementById("payload").textContent.trim());
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return unpacked(JSON.parse(await new Response(stream).text()));
}

// ---- runs -----------------------------------------------------------------------------------------------------------------

const place = document.getElementById("figures");
let data;
try {
  data = await read();
} catch (error) {
  place.append(el("p", { class: "hint" }, `This browser cannot draw the figures: ${error.message}. The text and the tables are complete without them.`));
  return;
}
const runs = data.runs;
const colours = new Map(runs.map((name, i) => [name, i]));
const visible = new Set(data.shown ?? runs);
const label = (name) => data.labels?.[name] ?? name;
const shared = sharedStart(runs.map(label));
const short = (name) => (colours.has(name) ? label(name).slice(shared.length) : String(name));
Charts.styled(data.styles);
const drawings = []; // functions that draw each figure again
const shownOf = (of) => runs.filter((name) => visible.has(name) && Object.hasOwn(of, name));

/** Return the common start of all names, up to a comma or a colon; it is shown once, before the chips. */
function sharedStart(names) {
  if (names.length < 2) return "";
  let start = names.reduce((a, b) => { let i = 0; while (i < a.length && a[i] === b[i]) i++; return a.slice(0, i); });
  start = /^.*[,:] /s.exec(start)?.[0] ?? "";
  return names.every((name) => name.length > start.length) ? start : "";
}
/** Fill the row of runs. If they need more than two lines, it shows the selected runs and a button. */
function chips(box) {
  if (runs.length < 2) return;
  box.hidden = false;
  const more = el("button", { type: "button", class: "more", "aria-controls": box.id });
  const every = el("button", { type: "button", class: "every" }, `Show all ${runs.length}`);
  const only = (name) => { visible.clear(); visible.add(name); };
  const buttons = runs.map((name, i) => {
    const chip = el("button", { type: "button", class: "chip", title: `${name}: click to show or hide, double-click to show it alone` },
      Charts.key(i), el("span", { class: "label" }, short(name)));
    chip.addEventListener("click", (event) => {
      if (event.altKey) only(name); else if (!visible.delete(name)) visible.add(name);
      apply();
    });
    const stand = () => Charts.emphasise(visible.has(name) && visible.size > 1 ? i : null);
    chip.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") stand(); });
    chip.addEventListener("focus", () => { if (chip.matches(":focus-visible")) stand(); });
    for (const end of ["pointerleave", "blur", "click"]) chip.addEventListener(end, () => Charts.emphasise(null));
    chip.addEventListener("dblclick", () => { only(name); apply(); });
    return chip;
  });
  every.addEventListener("click", () => { runs.forEach((name) => visible.add(name)); apply(); });
  const of = shared ? el("span", { class: "of" }, `${shared.slice(0, -2)}:`) : null;
  box.replaceChildren(...[more, of, ...buttons, every].filter(Boolean));
  const mark = () => {
    buttons.forEach((chip, i) => chip.setAttribute("aria-pressed", String(visible.has(runs[i]))));
    every.hidden = visible.size === runs.length;
    more.textContent = `${visible.size} of ${runs.length} runs`;
  };
  const apply = () => {
    const focused = box.contains(document.activeElement) ? document.activeElement : null;
    mark();
    if (focused && !focused.offsetParent) more.focus(); // the element is folded
    drawings.forEach((draw) => draw());
  };
  let opened = false;
  const fit = () => {
    more.hidden = true;
    box.classList.remove("folded");
    more.hidden = box.scrollHeight <= (innerWidth > 860 ? 90 : 50);
    box.classList.toggle("folded", !more.hidden && !opened);
    more.setAttribute("aria-expanded", String(opened));
  };
  more.addEventListener("click", () => { opened = !opened; fit(); });
  addEventListener("resize", fit);
  mark();
  fit();
}

// ---- kinds of figures, and their rows as CSV -------------------------------------------------------------------------------

const NONE_SHOWN = "No run of this figure is selected. Select one at the top of the page.";
const withUnit = (label, unit) => (unit ? `${label} (${unit})` : label);
const finite = (value) => value != null && Number.isFinite(value);

const KINDS = {
  lines: {
    half: () => true,
    tabs: (fig) => fig.views.map((view) => view.label),
    holds: (fig) => (fig.views.length ? fig.y : {}),
    logs: {
      "log x": (fig, tab) => logX(fig.views[tab]),
      "log y": (fig) => (fig.even ? "" : logOf(Object.values(fig.y), fig.y_unit)),
    },
    data: (fig, { names, tab, log }) => {
      const view = fig.views[tab];
      const series = names.filter((name) => view.x[name]).map((name) => ({
        name: fig.names?.[name] ?? short(name), colour: colours.get(name), x: view.x[name], y: fig.y[name], low: fig.low?.[name], high: fig.high?.[name],
      })).filter((one) => Array.prototype.some.call(one.y, finite));
      if (!series.length) return null;
      return { series, x: { label: view.label, unit: view.unit, log: log["log x"] }, y: { label: fig.y_label, unit: fig.y_unit, decimals: fig.decimals, log: log["log y"], whole: fig.even }, target: fig.target, named: runs.length > 1 };
    },
    csv: (fig) => {
      const bands = [["low", fig.low], ["high", fig.high]].filter(([, values]) => values);
      const rows = [["run", ...fig.views.map((view) => withUnit(view.label, view.unit)), fig.y_label, ...bands.map(([name]) => name)]];
      for (const name of Object.keys(fig.y)) for (let i = 0; i < fig.y[name].length; i++)
        rows.push([name, ...fig.views.map((view) => view.x[name]?.[i]), fig.y[name][i], ...bands.map(([, values]) => values[name]?.[i])]);
      return rows;
    },
  },
  scatter: {
    half: () => true,
    tabs: (fig) => viewsOf(fig).map((view) => view.label),
    holds: (fig) => Object.fromEntries(viewsOf(fig).flatMap((view) => view.points).map((point) => [point.run, true])),
    logs: { "log y": (fig, tab) => logOf([viewsOf(fig)[tab].points.map((p) => p.y)], fig.y_unit) },
    data: (fig, { names, tab, log }) => {
      const view = viewsOf(fig)[tab], kept = new Set(names);
      const points = view.points.filter((p) => kept.has(p.run) && (p.no_limit || finite(p.x)) && finite(p.y)).map((p) => ({
        name: short(p.label ?? p.run), run: short(p.run), colour: colours.get(p.run) ?? 0, x: p.no_limit ? Infinity : p.x, y: p.y, dev: p.y_dev, front: p.on_front,
        size: p.size, more: p.more,
      }));
      return points.length ? { points, joined: fig.joined, fronts: view.fronts, known: view.known, x: { label: view.x_label, unit: view.x_unit, log: view.x_log, none: points.some((p) => p.x === Infinity) }, y: { label: view.y_label, unit: view.y_unit, decimals: fig.decimals, log: log["log y"] } } : null;
    },
    csv: (fig) => {
      const views = viewsOf(fig), several = views.length > 1;
      const rows = [[...(several ? ["view"] : []), "run", "label", several ? "x" : withUnit(views[0].x_label, views[0].x_unit), several ? "y" : views[0].y_label, "deviation", "on front"]];
      for (const view of views) {
        for (const p of view.points) rows.push([...(several ? [view.label] : []), p.run, p.label, p.no_limit ? "none" : p.x, p.y, p.y_dev, p.on_front ? 1 : 0]);
        for (const [x, y] of view.known ?? []) rows.push([...(several ? [view.label] : []), "", "known front", x, y, "", 1]);
      }
      return rows;
    },
  },
  bars: {
    half: () => true,
    holds: (fig) => fig.runs,
    logs: { "log x": logBars },
    data: (fig, { names, log }) => ({
      label: fig.x_label, unit: fig.unit, decimals: fig.decimals, log: log["log x"],
      bars: names.map((name) => ({ name: short(name), colour: colours.get(name), limit: fig.limit?.[name], missing: fig.missing?.[name], ...amount(fig.runs[name]) })),
    }),
    csv: (fig) => {
      const rows = [["run", "part", withUnit(fig.x_label, fig.unit), "limit"]];
      for (const [name, entry] of Object.entries(fig.runs))
        for (const [part, value] of Object.entries(entry?.parts ?? { "": entry })) rows.push([name, part, value, fig.limit?.[name]]);
      return rows;
    },
  },
  distribution: {
    holds: (fig) => fig.runs,
    logs: { "log x": (fig) => logOf(Object.values(fig.runs).map((run) => run.values), fig.unit) },
    data: (fig, { names, log }) => {
      const strips = names.map((name) => ({ name: short(name), colour: colours.get(name), values: fig.runs[name].values,
        worst: worstOf(fig.runs[name]), mean: fig.runs[name].mean })).filter((strip) => Array.prototype.some.call(strip.values, finite));
      return strips.length ? { label: fig.x_label, unit: fig.unit, log: log["log x"], decimals: fig.decimals, of: fig.of, zero: fig.zero, strips, labels: fig.labels } : null;
    },
    csv: (fig) => {
      const rows = [["run", fig.of ?? "node", fig.x_label, "worst tenth"]];
      for (const [name, strip] of Object.entries(fig.runs)) {
        const worst = new Set(worstOf(strip));
        strip.values.forEach((value, i) => rows.push([name, fig.labels?.[i] ?? i, value, worst.has(i) ? 1 : 0]));
      }
      return rows;
    },
  },
  matrix: {
    half: (fig) => Object.values(fig.frames).flat().length === 1,
    holds: (fig) => fig.frames,
    picks: (fig) => Object.values(fig.frames).some((frames) => frames.length > 1),
    data: (fig, { names, chosen }) => {
      const one = KINDS.matrix.picks(fig);
      const frames = (one ? [chosen] : names).flatMap((name) => fig.frames[name].map((frame) => ({ frame, name })));
      if (!frames.length) return null;
      const { n, labels, groups } = fig.orders?.[frames[0].name] ?? fig;
      return {
        n, labels, groups, x: { label: fig.x_label }, y: { label: fig.y_label }, unit: fig.unit,
        most: Math.max(...frames.map(({ frame }) => frame.max)), least: fig.least,
        panels: frames.map(({ frame, name }) =>
          (one ? { name: frame.label, values: frame.values } : { name: short(name), colour: colours.get(name), values: frame.values })),
      };
    },
    csv: (fig) => {
      const rows = [["run", "frame", fig.y_label, fig.x_label, withUnit("value", fig.unit)]];
      for (const [name, frames] of Object.entries(fig.frames)) {
        const { n, labels } = fig.orders?.[name] ?? fig, label = (i) => labels?.[i] ?? i;
        for (const frame of frames) for (let i = 0; i < frame.values.length; i++)
          if (finite(frame.values[i])) rows.push([name, frame.label, label(Math.floor(i / n)), label(i % n), frame.values[i]]);
      }
      return rows;
    },
  },
  heatmap: {
    half: (fig) => Math.max(...viewsOf(fig).map((view) => view.columns.length)) <= 8,
    tabs: (fig) => viewsOf(fig).map((view) => view.label),
    holds: (fig) => Object.assign({}, ...viewsOf(fig).map((view) => view.cells)),
    data: (fig, { names, tab }) => {
      const view = viewsOf(fig)[tab];
      return {
        rows: view.rows, columns: view.columns, label: fig.label, unit: fig.unit, decimals: fig.decimals, log: fig.log, missing: fig.missing,
        x: { label: fig.x_label }, y: { label: fig.y_label },
        cells: names.filter((name) => view.cells[name]).map((name) => ({ ...view.cells[name], run: short(name), colour: colours.get(name) })),
      };
    },
    csv: (fig) => {
      const views = viewsOf(fig), several = views.length > 1;
      const rows = [[...(several ? ["view"] : []), "run", fig.y_label, fig.x_label, withUnit(fig.label, fig.unit), "deviation"]];
      for (const view of views) for (const [name, cell] of Object.entries(view.cells))
        rows.push([...(several ? [view.label] : []), name, view.rows[cell.row], view.columns[cell.column], cell.value, cell.dev]);
      return rows;
    },
  },
  lanes: {
    holds: (fig) => fig.runs,
    picks: () => true,
    data: (fig, { chosen }) => {
      const { rows, groups, row, from, to, key, block, blocks, brief, span } = fig.runs[chosen];
      const parts = Array.from(row, (at, i) => ({ row: at, from: from[i], to: to[i], key: key[i], block: block[i], label: blocks[block[i]], brief: brief?.[block[i]] }));
      const when = (p) => (fig.x_unit ? `${Charts.format(p.from, fig.x_unit)} to ${Charts.format(p.to, fig.x_unit)}`
        : p.to - p.from === 1 ? `${p.from + 0.5}` : `${p.from + 0.5} to ${p.to - 0.5}`);
      const tip = (p) => [...(groups ? [{ name: "group", value: groups[p.row] }] : []),
        { name: p.label, value: "" }, { name: fig.x_label, value: when(p) }];
      return { rows, groups, x: { label: fig.x_label, unit: fig.x_unit, span }, keys: fig.keys, none: fig.none, joined: fig.joined, inside: fig.inside, parts, tip };
    },
    csv: (fig) => {
      const rows = [["run", fig.row_label, "from", "to", fig.key_label, fig.block_label]], part = fig.x_unit ? 0 : 0.5;
      for (const [name, { rows: labels, row, from, to, key, block, blocks }] of Object.entries(fig.runs))
        for (let i = 0; i < row.length; i++)
          rows.push([name, labels[row[i]], from[i] + part, to[i] - part, fig.keys[key[i]] ?? "", blocks[block[i]]]);
      return rows;
    },
  },
  network: {
    half: (fig) => spanOf(fig.nodes.x) < 1.4 * spanOf(fig.nodes.y),
    holds: (fig) => fig.runs,
    picks: () => true,
    data: (fig, { chosen }) => ({ nodes: fig.nodes, edges: fig.edges, label: fig.value_label, unit: fig.unit,
      value: fig.runs[chosen].value, links: fig.runs[chosen].links ?? [] }),
    csv: (fig) => {
      const label = (i) => fig.nodes.label?.[i] ?? i;
      const rows = [["run", "what", "from", "to", fig.value_label, "weight", "x", "y"]];
      fig.edges.forEach(([i, j]) => rows.push(["", "edge", label(i), label(j), "", "", "", ""]));
      for (const [name, { value, links }] of Object.entries(fig.runs)) {
        for (let i = 0; i < fig.nodes.x.length; i++) rows.push([name, "node", label(i), "", value?.[i], "", fig.nodes.x[i], fig.nodes.y[i]]);
        for (const [src, dst, weight] of links ?? []) rows.push([name, "link", label(src), label(dst), "", weight, "", ""]);
      }
      return rows;
    },
  },
};
const viewsOf = (fig) => (fig.views ?? [fig]).map((view) => ({ ...fig, ...view }));
const total = (entry) => (entry?.parts ? Object.values(entry.parts).reduce((sum, part) => sum + (part ?? 0), 0) : entry);
const amount = (entry) => (entry?.parts ? { parts: entry.parts } : { value: entry });
function spanOf(values) {
  let least = Infinity, most = -Infinity;
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  return most - least;
}
/** Return the powers of ten between the smallest and the largest value; 0 if a value is below zero. */
function decades(arrays) {
  let least = Infinity, most = 0;
  for (const array of arrays) for (const value of array) {
    if (value < 0) return 0;
    if (value > 0) { least = Math.min(least, value); most = Math.max(most, value); }
  }
  return most ? Math.log10(most / least) : 0;
}
/** Return whether a view of lines gets a logarithmic x axis: "on" where the ends of its lines are a decade apart, as bytes are. */
function logX(view) {
  const all = Object.values(view?.x ?? {});
  if (view?.unit && decades([all.map((values) => values[values.length - 1])]) >= 1 && decades(all) > 0) return "on";
  return decades(all) > 2 ? "offered" : "";
}
/** Return whether values get a logarithmic axis: "on" by default, "offered", or "". Zeros get none. */
function logOf(arrays, unit) {
  let most = 0;
  for (const array of arrays) for (const value of array) { if (value === 0) return ""; if (value > most) most = value; }
  if (decades(arrays) <= 1.3) return "";
  return most > 1 && unit !== "%" ? "on" : "offered";
}
/** Return whether bars get a logarithmic axis: "on" where the longest one makes others too short to be seen. */
function logBars(fig) {
  const apart = decades([Object.values(fig.runs).map(total)]);
  return apart >= (["B", "s"].includes(fig.unit) ? 1 : 1.5) ? "on" : apart >= 1 ? "offered" : "";
}
/** Return the numbers of the nodes that are marked as the worst. */
const worstOf = ({ worst }) => [...worst.keys()].filter((i) => worst[i]);

// ---- figures --------------------------------------------------------------------------------------------------------------

function figure(fig) {
  const kind = KINDS[fig.kind], state = { tab: 0, chosen: fig.first ?? null };
  const box = el("div"), tools = el("div", { class: "tools" });
  const empty = !kind || !Object.keys(kind.holds(fig) ?? {}).length;
  const whole = el("figure", { id: fig.id, class: kind && (empty || kind.half?.(fig)) ? "half" : "" },
    el("div", { class: "figure-head" }, el("h3", {}, fig.title), tools), box,
    fig.note && !empty ? el("figcaption", {}, fig.note) : null);
  if (empty) {
    box.className = "chart";
    box.append(el("p", { class: "empty" }, fig.note || "There is no data for this figure."));
    return whole;
  }
  let chart, picker;
  const logs = [];
  const draw = () => {
    const holds = kind.holds(fig);
    let names = fig.unfiltered ? runs.filter((name) => Object.hasOwn(holds, name)) : shownOf(holds);
    if (!names.length && visible.size && kind.picks?.(fig)) names = runs.filter((name) => Object.hasOwn(holds, name)); // it has none of the selected runs
    if (picker) pick(picker, names, state);
    const log = {};
    for (const one of logs) {
      const offered = one.offered(fig, state.tab);
      one.label.hidden = !offered;
      if (!one.chosen) one.tick.checked = offered === "on";
      log[one.name] = one.tick.checked && !one.label.hidden;
    }
    const drawn = names.length ? kind.data(fig, { ...state, log, names }) ?? { empty: fig.note || "There is no data for this figure." } : { empty: NONE_SHOWN };
    const said = picker && state.chosen ? `${fig.title}, ${state.chosen}` : `${fig.title}: ${names.map(short).join(", ")}`;
    const full = { name: said, ...drawn };
    if (chart) chart.update(full); else chart = Charts[fig.kind](box, full);
  };
  const labels = kind.tabs?.(fig) ?? [];
  if (labels.length > 1) tools.append((labels.length > MOST_TABS ? offered : tabs)(labels, (tab) => { state.tab = tab; draw(); }));
  for (const [name, offered] of Object.entries(kind.logs ?? {})) {
    const tick = el("input", { type: "checkbox" }), label = el("label", {}, tick, name);
    const one = { name, offered, tick, label, chosen: false };
    tick.addEventListener("change", () => { one.chosen = true; draw(); });
    logs.push(one);
    tools.append(label);
  }
  if (kind.picks?.(fig) && Object.keys(kind.holds(fig)).length > 1) {
    picker = el("select", { "aria-label": `Run shown in: ${fig.title}` });
    picker.addEventListener("change", () => { state.chosen = picker.value; draw(); });
    tools.append(el("label", { class: "pick" }, picker));
  } else state.chosen = Object.keys(kind.holds(fig))[0];
  const save = el("button", { type: "button", class: "csv", title: `Download the data of this figure, all runs: ${fig.id}.csv` }, "CSV");
  save.addEventListener("click", () => Charts.download(`${fig.id}.csv`, Charts.csv(kind.csv(fig))));
  tools.append(save);
  drawings.push(draw);
  draw();
  return whole;
}
const MOST_TABS = 4; // more become a list
function offered(labels, choose) {
  const list = el("select", { "aria-label": "Axes" }, ...labels.map((label, i) => el("option", { value: i }, label)));
  list.addEventListener("change", () => choose(Number(list.value)));
  return el("label", { class: "pick" }, list);
}
function tabs(labels, choose) {
  const box = el("div", { class: "switch", role: "group", "aria-label": "Axes" });
  const buttons = labels.map((label, i) => {
    const tab = el("button", { type: "button", "aria-pressed": String(i === 0) }, label);
    tab.addEventListener("click", () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === tab)));
      choose(i);
    });
    return tab;
  });
  box.append(...buttons);
  return box;
}
/** List the selected runs; keep the current one if it is among them. */
function pick(picker, names, state) {
  if (!names.includes(state.chosen)) state.chosen = names[0];
  picker.replaceChildren(...names.map((name) => {
    const option = el("option", { value: name }, short(name));
    option.selected = name === state.chosen;
    return option;
  }));
  picker.hidden = !names.length;
}
/** Give a narrow figure without a neighbour the full width. */
function settle(figures) {
  let alone = null;
  for (const one of figures) {
    const half = one.classList.contains("half");
    if (!half && alone) alone.classList.remove("half");
    alone = half && !alone ? one : null;
  }
  alone?.classList.remove("half");
}

// ---- the page -------------------------------------------------------------------------------------------------------------

Charts.themeSwitch(document.getElementById("theme"));
chips(document.getElementById("filter"));
const labelled = new Map(runs.map((name, i) => [label(name), i]));
for (const row of document.querySelectorAll("#table tbody tr")) {
  const i = labelled.get(row.cells[0]?.textContent);
  if (i !== undefined && runs.length > 1) row.cells[0].prepend(Charts.key(i));
}
for (const section of data.sections) {
  const figures = section.figures.map(figure);
  settle(figures);
  place.append(el("section", { id: section.id }, el("h2", {}, section.title), ...(section.text ?? []).map((said) => el("p", {}, said)),
    figures.length ? fillGrid(figures) : ""));
}
function fillGrid(figures) {
  const grid = el("div", { class: "figures" });
  grid.append(...figures);
  return grid;
}
const titles = [...document.querySelectorAll("main section[id] h2")];
if (titles.length > 3) document.querySelector(".page-head").append(el("nav", { class: "contents", "aria-label": "Contents" },
  ...titles.map((title) => el("a", { href: `#${title.closest("section").id}` }, title.textContent))));

// Everything is open in print.
let opened = [];
matchMedia("print").addEventListener("change", ({ matches }) => {
  if (matches) opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((folded) => { folded.open = matches; });
});
for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", Charts.reachScrollers);
await Charts.drawn();
Charts.reachScrollers();
page.dataset.ready = "1";
})();
