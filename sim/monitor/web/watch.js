// Page of a scenario's runs: fetches their state every second, and shows it.

import { bytes, clock, draw, el, figure, follow, meter, say, seconds, state as badge } from "./live.js";

const MOST = 12; // curves drawn by default
const STATES = { waiting: "idle", running: "good", finished: "done", kept: "done", stopped: "bad" };
const MEANINGS = {
  waiting: "not started", running: "in progress", finished: "finished", kept: "finished by an earlier command", stopped: "ended before it was finished",
};

const $ = (id) => document.getElementById(id);
const charts = {};
let seen = null; // the newest data
let drawn = null; // numbers of the drawn runs, if the user has selected some
let chosen = null; // the run whose matrix is shown, if the user has selected one

function got(news) {
  seen = news;
  show(null);
  showWeights();
  return !news.end; // no more requests after the end
}

function lost(since) {
  show(since);
}

function show(since) {
  const link = $("link");
  const words = since ? `disconnected since ${clock(since)}` : seen.end ? "ended" : "live";
  link.className = `pill ${since ? "bad" : seen?.end ? "" : "good"}`;
  say(link, words);
  if (!seen) return;
  document.querySelector("main").hidden = false;
  document.body.classList.toggle("stale", Boolean(since));
  const runs = seen.runs;
  const finished = runs.filter(({ state }) => state === "finished" || state === "kept").length;
  say($("name"), seen.scenario);
  say($("about"), seen.description);
  document.title = `${seen.scenario}: ${finished} of ${runs.length} runs finished`;
  draw($("banners"), seen.end, () => (seen.end ? el("p", { class: `banner ${/^results: /.test(seen.end) ? "info" : "bad"}` }, `${finished} of ${runs.length} runs finished; ${seen.end}`) : []));
  showTiles(runs, finished);
  showChips(runs);
  showLearning(runs);
  showRuns(runs);
  say($("updated"), `as of ${clock(new Date())}`);
  Charts.reachScrollers();
}

function showTiles(runs, finished) {
  const done = runs.reduce((sum, run) => sum + run.round * run.nodes, 0);
  const all = runs.reduce((sum, run) => sum + run.rounds * run.nodes, 0);
  const sent = runs.reduce((sum, run) => sum + (run.bytes ?? 0), 0);
  const left = seen.end ? "ended" : finished === runs.length ? "writing the results" : seen.left === null ? "no forecast yet" : `about ${seconds(seen.left)} left`;
  const tiles = [
    ["Runs finished", `${finished} of ${runs.length}`, `${runs.filter(({ state }) => state === "running").length} running`, finished / runs.length],
    ["Node-rounds", done.toLocaleString("en"), `of ${all.toLocaleString("en")}`, done / all],
    ["Time", seconds(seen.elapsed), left],
    ["Node-rounds per second", Math.round(seen.node_rounds_per_s).toLocaleString("en"), "total of all runs"],
    ["Bytes sent", bytes(sent), "by all nodes, in their rounds"],
  ];
  draw($("tiles"), tiles, () => tiles.map(([name, value, note, part]) => el("div", { class: "tile" },
    el("span", { class: "quiet" }, name), el("strong", {}, value), meter(part, name), el("span", { class: "quiet note" }, note))));
}

const several = (runs) => new Set(runs.map((run) => run.seed)).size > 1;
const label = (run, runs) => (several(runs) ? `${run.name}, seed ${run.seed}` : run.name);

/** Return the numbers of the runs that have started. */
const begun = (runs) => runs.map((_, k) => k).filter((k) => runs[k].state !== "waiting");

/** Return the numbers of the runs to draw: the selected ones, or else the ones that started last. */
const toDraw = (runs) => drawn ?? new Set(begun(runs).slice(-MOST));

function showChips(runs) {
  const now = toDraw(runs);
  draw($("chips"), begun(runs).map((k) => [k, label(runs[k], runs)]), () => runs.length < 2 ? [] : begun(runs).map((k) => {
    const name = label(runs[k], runs);
    const chip = el("button", { type: "button", class: "chip", "data-run": k, title: `${name}: click to show or hide, double-click to show it alone` }, Charts.key(k), el("span", {}, name));
    chip.addEventListener("click", () => {
      drawn ??= toDraw(seen.runs);
      if (!drawn.delete(k)) drawn.add(k);
      show(null);
    });
    chip.addEventListener("dblclick", () => { drawn = new Set([k]); show(null); });
    return chip;
  }));
  for (const chip of $("chips").children) chip.setAttribute("aria-pressed", String(now.has(Number(chip.dataset.run))));
}

function showLearning(runs) {
  const now = toDraw(runs);
  const series = runs.map((run, k) => ({ name: label(run, runs), colour: k, x: run.x ?? [], y: run.values ?? [] })).filter((one, k) => one.x.length && now.has(k));
  const metric = [...new Set(runs.map((run) => run.metric).filter(Boolean))].join(", ");
  const never = runs.every((run, k) => !now.has(k) || !run.evaluate_every);
  const empty = series.length ? "" : !now.size ? "No run is selected." : never ? "Only the model of the last round is evaluated (evaluate_every = 0)." : "No selected run has evaluated a round yet.";
  chart("lines", $("learning"), { name: "Learning", series, x: { label: "round" }, y: { label: `test ${metric}` }, empty });
}

const columns = [
  ["run", (run, runs, k) => [Charts.key(k), run.name]],
  ["seed", (run) => run.seed],
  ["state", (run) => badge(run.state, STATES[run.state], MEANINGS[run.state])],
  ["round", (run) => [`${run.round} of ${run.rounds}`, meter(run.round / run.rounds, "rounds")], "progress"],
  ["test metric", (run) => figure(run.result ?? run.values?.at(-1))],
  ["sent", (run) => (run.bytes === undefined ? "–" : bytes(run.bytes))],
  ["models per round", (run) => (run.models === undefined ? "–" : `${run.models.toFixed(1)}, at most ${run.most_models}`)],
  ["budget", (run) => (run.limit ? [...new Set(run.limit)].join(" to ") : run.models === undefined ? "–" : "no limit")],
  ["virtual time", (run) => (run.virtual_s === undefined ? "–" : seconds(run.virtual_s))],
  ["node-rounds/s", (run) => (run.speed ? Math.round(run.speed).toLocaleString("en") : "–")],
];

function showRuns(runs) {
  const box = $("runs");
  draw(box, runs.length, () => el("table", {}, el("thead", {}, el("tr", {}, ...columns.map(([name]) => el("th", { scope: "col", class: name }, name)))),
    el("tbody", {}, ...runs.map((_, k) => el("tr", { "data-run": k }, ...columns.map(([name, , kind]) => el(name === "run" ? "th" : "td", { class: kind ?? name, scope: name === "run" ? "row" : null })))))));
  box.querySelectorAll("tbody tr").forEach((line, k) => {
    line.dataset.state = runs[k].state;
    columns.forEach(([, make], i) => draw(line.children[i], runs[k], () => make(runs[k], runs, k)));
  });
}

/** Show the matrix if it is the one of the selected run; otherwise the next answer has it. */
function showWeights() {
  const { runs, matrix, end } = seen;
  const select = $("chosen");
  draw(select, runs.map((run) => [run.name, run.seed]), () => runs.map((run, k) => el("option", { value: k }, label(run, runs))));
  const number = chosen ?? matrix.run;
  select.value = String(number);
  if (number === matrix.run) drawWeights(runs[number], matrix);
  else if (end) drawWeights(runs[number], { lost: true });
}

function drawWeights(run, { cells = 0, nodes, groups, weights, lost }) {
  const values = cells ? new Float32Array(Uint8Array.from(atob(weights), (c) => c.charCodeAt(0)).buffer) : [];
  const most = values.length ? Math.max(...values) : 0;
  const shared = nodes > cells ? ` Each row and column is a bin of about ${(nodes / cells).toFixed(1)} nodes.` : "";
  say($("weights-note"), most ? `Mean weight of the model of the column's node in the merges of the row's node. A node's own model is excluded.${shared}` : "");
  const empty = lost ? "The command has ended. The report of the runs has this figure." : most ? "" : "No node has merged the model of another node yet.";
  const marked = groups?.length && nodes === cells ? groups.map(([name, count]) => ({ label: name, count })) : undefined;
  chart("matrix", $("weights"), { name: "Sources of each node", n: cells, most, groups: marked, empty, x: { label: "learned from" }, y: { label: "node" },
    panels: [{ name: `${run.name}, seed ${run.seed}`, values }] });
}

/** Draw a chart if its data has changed. */
function chart(kind, box, data) {
  const key = JSON.stringify(data, (_, value) => (value instanceof Float32Array ? [...value] : value));
  if (charts[kind]?.key === key) return;
  if (charts[kind]) charts[kind].of.update(data); else charts[kind] = { of: Charts[kind](box, data) };
  charts[kind].key = key;
}

Charts.themeSwitch($("theme"));
const ask = follow(() => (chosen === null ? "runs.json" : `runs.json?${chosen}`), got, lost);
$("chosen").addEventListener("change", (event) => { chosen = Number(event.target.value); showWeights(); ask(); });
