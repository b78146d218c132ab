// The page of one node: asks for its status every second and shows it.

import { bytes, clock, draw, el, figure, follow, meter, say, seconds, state as badge, svg } from "./live.js";

const SHOWN = 30; // rounds in the matrix
const MOST_POINTS = 120; // of a line; with more rounds, a point is the mean of several
const MOST = 20; // rows of a list, until the reader asks for all
const STATES = { // of a peer: the kind of its mark, and what it means
  connected: ["good", "connected"],
  connecting: ["idle", "connecting"],
  behind: ["warn", "connected, but in an earlier round; this node does not wait for it"],
  suspected: ["bad", "does not answer; this node does not wait for it"],
  "not connected": ["warn", "not reached since the start of this node"],
  "left out": ["bad", "its score is too high; this node neither learns from it nor serves it"],
  done: ["done", "has finished its rounds and left"],
};
const NODE_STATES = { starting: "starting", waiting: "waiting", running: "running", serving: "finished, serving its model", finished: "finished", stopped: "stopped", failed: "failed", revoked: "revoked" };

const $ = (id) => document.getElementById(id);
const history = new Map(); // the rows of the rounds, by round
let state = null; // as it came last
let lostSince = null;
let whole = 0; // when all rounds were asked for last
const charts = {};
const opened = new Set(); // lists of which the reader wants all rows, by their ids

function address() {
  const all = !history.size || Date.now() - whole > 60_000;
  if (all) whole = Date.now();
  return all ? "status.json" : "status.json?newest";
}

function got(news) {
  if (state && (state.name !== news.name || state.started !== news.started)) restarted(news);
  const rows = news.history ?? [];
  if (history.size && rows.length && rows[0].round > Math.max(...history.keys()) + 1) whole = 0; // some were missed: ask for all
  for (const row of rows) history.set(row.round, row);
  state = news;
  lostSince = null;
  show();
}

/** The node has begun anew: rounds that it will do again are not what they were. */
function restarted(news) {
  whole = 0;
  for (const round of [...history.keys()]) if (state.name !== news.name || round > (news.round ?? 0)) history.delete(round);
}

function lost(since) {
  lostSince = since;
  showLink();
}

function show() {
  document.querySelector("main").hidden = false;
  const rows = [...history.values()].sort((a, b) => a.round - b.round);
  say($("name"), state.name ?? "starting node");
  const about = [state.federation && `federation ${state.federation}`, state.task && `task ${state.task}`, state.policy && `policy ${state.policy}`, state.version && `p2pfl ${state.version}`];
  say($("about"), about.filter(Boolean).join(" · "));
  document.title = `${state.name ?? "p2pfl node"}: round ${progress()}`;
  showLink();
  showBanners();
  showTiles(rows);
  showLearning(rows);
  showPeers(rows);
  showChosen(rows);
  showWeights(rows);
  showBytes(rows);
  showTraffic();
  showRejected();
  say($("updated"), `as of ${clock(new Date())}`);
  Charts.reachScrollers();
}

/** Return the first MOST of a list by rank, in their order; or all if the reader wants all, which a button below the list offers. */
function firstOf(id, list, rank) {
  const button = $(id).nextElementSibling, all = list.length <= MOST || opened.has(id);
  button.hidden = list.length <= MOST;
  button.setAttribute("aria-expanded", String(all));
  say(button, all ? `Show ${MOST} of ${list.length}` : `Show all ${list.length}`);
  const first = new Set([...list].sort((a, b) => rank(a) - rank(b)).slice(0, MOST));
  return all ? list : list.filter((one) => first.has(one));
}
for (const button of document.querySelectorAll("button.more")) button.addEventListener("click", () => {
  const { id } = button.previousElementSibling;
  if (!opened.delete(id)) opened.add(id);
  show();
});

// ---- whether the node is there, and what is wrong

function showLink() {
  const link = $("link");
  link.className = `pill ${lostSince ? "bad" : "good"}`;
  say(link, lostSince ? `disconnected since ${clock(lostSince)}` : "live");
  document.body.classList.toggle("stale", Boolean(lostSince && state));
}

function showBanners() {
  const problems = [
    state.state === "failed" && ["bad", `The node failed: ${state.reason || "reason unknown"}`],
    state.state === "revoked" && ["bad", state.reason],
    state.state !== "revoked" && state.revoked_by?.length && ["bad", `The membership of this node was revoked, according to ${state.revoked_by.join(", ")}.`],
    state.disk && ["bad", `Disk: cannot write checkpoints (${state.disk}). The node continues in memory.`],
    state.broker && ["warn", `Broker: ${state.broker}`],
    ["waiting", "running"].includes(state.state) && state.election?.problem && ["warn", `Degraded: ${state.election.problem}. Until there is one, the node learns alone.`],
    Object.keys(state.faults ?? {}).length && ["warn", `Errors, please report them: ${Object.entries(state.faults).map(([part, n]) => `${part} ${n}`).join(", ")}. The log has the details.`],
    state.secure_sums?.problem && ["warn", `Secure sums: ${state.secure_sums.problem}.`],
    state.refused_by_budget && ["info", `${count(state.refused_by_budget, "model")} left out because of the budget so far.`],
  ].filter(Boolean);
  draw($("banners"), problems, () => problems.map(([kind, text]) => el("p", { class: `banner ${kind}` }, text)));
}

function showTiles(rows) {
  const last = rows.findLast((row) => "models" in row);
  const judged = rows.filter((row) => isNumber(row.validation));
  const best = isNumber(state.best?.validation) ? state.best : null; // the history has only the last rounds
  const peers = state.peers ?? [];
  const states = state.peer_counts?.states ?? countStates(peers), total = state.peer_counts?.total ?? peers.length;
  const left = last?.seconds ? Math.max(0, state.rounds - state.round) * median(rows.slice(-9).map((row) => row.seconds ?? 0)) : 0;
  const done = Math.min(1, (state.round ?? 0) / (state.rounds || 1));
  const budget = state.budget ?? {};
  const tiles = [
    ["State", NODE_STATES[state.state] ?? state.state, state.waiting ? `waiting for members: ${state.waiting.present} of ${state.waiting.needed}` : state.reason || state.ended_early || ""],
    ["Round", progress(), last?.seconds ? `${seconds(last.seconds)} for the last one${left && state.state === "running" ? `, about ${seconds(left)} left` : ""}` : "", done],
    [`Validation ${state.metric ?? "metric"}`, figure(judged.at(-1)?.validation), best ? `best model ${figure(best.validation)} in round ${best.round}, by validation ${state.best_by ?? "loss"}` : "not evaluated yet"],
    ["Connected peers", `${states.connected ?? 0} of ${total}`, tally(states)],
    ["Models in the last round", last ? `${last.models}` : "–", budget.models ? `budget ${budget.models.limit}` : "no limit", budget.models && last ? last.models / budget.models.limit : undefined],
    ["Received in the last round", last ? bytes(last.bytes_in) : "–", budget.bytes ? `models ${bytes(last?.budget_bytes ?? 0)} of ${bytes(budget.bytes.limit)}` : "no limit", budget.bytes && last ? (last.budget_bytes ?? 0) / budget.bytes.limit : undefined],
  ];
  if (state.election) tiles.push(["Coordinator", state.election.coordinator ?? "none", `term ${state.election.term}`]);
  if (state.secure_sums) {
    const { assigned, missed, threshold, latest } = state.secure_sums;
    const now = latest ? `round ${latest.round}: ${latest.submitted} of ${latest.announced} submitted, ${threshold} needed, ${latest.opened ? "opened" : "not opened"}` : `${threshold} members needed`;
    tiles.push(["Secure sums", `${assigned} assigned`, `${now}${missed ? `; ${count(missed, "round")} without one` : ""}`]);
  }
  const cost = state.cost ?? {};
  if (isNumber(cost.joules) && cost.trainings) { // only where the machine counts energy
    const share = budget.joules ? cost.joules / budget.joules.limit : undefined;
    tiles.push(["Energy of trainings", `${cost.joules.toLocaleString("en", { maximumFractionDigits: 1 })} J`, `${count(cost.trainings, "training")}, ${seconds(cost.train_s)} of computing${budget.joules ? `, budget ${budget.joules.limit} J` : ""}`, share]);
  }
  if (state.privacy) {
    const { epsilon, budget: most, delta, validation, refused, then, central, colluding } = state.privacy;
    const spent = refused ? `; spent: the node ${then === "stop" ? "ends its rounds" : "goes on without training"}` : "";
    tiles.push(["Privacy: epsilon spent", `${epsilon.toPrecision(3)} of ${most}`, `delta ${delta}, validation data ${validation}${central ? `, for sums of ${central.threshold} or more, with ${central.colluding} colluding` : colluding != null ? `, against ${colluding} colluding` : ""}${spent}`, Math.min(1, epsilon / most)]);
  }
  if (budget.held) tiles.push(["Models held now", `${budget.held.used}`, `budget ${budget.held.limit}`, budget.held.used / budget.held.limit]);
  draw($("tiles"), tiles, () => tiles.map(([name, value, note, part]) => el("div", { class: "tile" },
    el("span", { class: "quiet" }, name), el("strong", {}, value), meter(part, name), el("span", { class: "quiet note" }, note))));
}

/** Return the round and the total. A round beyond it, of an earlier federation, is shown without the total. */
function progress() {
  const round = state.round ?? 0;
  return round > state.rounds ? `${round}` : `${round} of ${state.rounds ?? "?"}`;
}

/** Return the number of peers in each state. A status with many peers lists only some, and counts all. */
function countStates(peers) {
  const counts = {};
  for (const peer of peers) counts[peer.state] = (counts[peer.state] ?? 0) + 1;
  return counts;
}

function tally(states) {
  return Object.keys(STATES).filter((name) => states[name] && name !== "connected").map((name) => `${states[name]} ${name}`).join(", ");
}

// ---- learning

function showLearning(rows) {
  const stages = [...new Set(rows.flatMap((row) => Object.keys(row.stages ?? {})))].sort((a, b) => (b === state.reported_stage) - (a === state.reported_stage));
  const series = stages.flatMap((stage, k) => ["validation", "test"].map((split, dash) => {
    return { name: `${stage}, ${split}`, colour: k + 8 * dash, ...line(rows, (row) => row.stages?.[stage]?.[split]) };
  })).filter((one) => one.x.length);
  const empty = series.length ? "" : "No round has been evaluated yet.";
  chart("learning", { name: "Learning", series, x: { label: "round" }, y: { label: `${state.metric ?? ""}${ofRounds(rows)}` }, empty });
}

// ---- peers

/** Return whether a node whose model counted is no longer a member. */
const removed = (name) => Boolean(state.federation && state.peers) && !((state.peer_counts?.total ?? 0) > state.peers.length) && name !== state.name && !state.peers.some((peer) => peer.name === name);
const called = (name) => (removed(name) ? `${name} (removed)` : name);

/** Return the removed members with the last round in which their models counted, the latest first. */
function removedMembers(rows) {
  const last = new Map();
  for (const row of rows) for (const name of Object.keys(row.weights ?? {})) if (removed(name)) last.set(name, row.round);
  return [...last].sort(([, a], [, b]) => b - a);
}

const allColumns = [
  ["peer", (peer) => peer.name],
  ["state", (peer) => peer.state],
  ["reason", (peer) => peer.reason || ""],
  ["score", (peer) => (peer.score ? `${peer.score} (${Object.entries(peer.penalties).map(([kind, n]) => (n > 1 ? `${kind} ${n}` : kind)).join(", ")})` : "0")],
  ["claims", (peer) => (peer.claims ? `epsilon ${peer.claims.epsilon}` : "–")],
  ["round", (peer) => `${peer.round ?? ""}`],
  ["weight", (peer, last) => (last?.weights?.[peer.name] === undefined ? "–" : percent(last.weights[peer.name]))],
  ["model age", (peer) => (isNumber(peer.staleness) ? seconds(peer.staleness) : "–")],
  ["link", (peer) => peer.link || "none"],
  ["in", (peer) => bytes(peer.bytes_in ?? 0)],
  ["out", (peer) => bytes(peer.bytes_out ?? 0)],
];

function showPeers(rows) {
  const last = rows.findLast((row) => row.weights);
  const rank = ({ name, state: now }) => { // those that need attention first, then those that counted
    const kind = STATES[now]?.[0] ?? "idle";
    return ["bad", "warn", "idle", "counted", "good", "done"].indexOf(kind === "good" && last?.weights[name] ? "counted" : kind);
  };
  const peers = firstOf("peers", state.peers ?? [], rank);
  const gone = removedMembers(rows).slice(0, MOST);
  const claims = peers.some((peer) => peer.claims), columns = allColumns.filter(([name]) => claims || name !== "claims");
  draw($("peers"), [state.federation, peers.map((peer) => peer.name), gone, claims, state.peer_counts?.total], () => {
    const former = gone.length ? el("p", { class: "quiet removed" }, `Removed, no longer members: ${gone.map(([name, round]) => `${name} (its model last counted in round ${round})`).join(", ")}.`) : null;
    const more = (state.peer_counts?.total ?? 0) - (state.peers ?? []).length;
    const omitted = more > 0 ? el("p", { class: "quiet" }, `${count(more, "more peer")} not shown.`) : null;
    if (!peers.length) return former ?? el("p", { class: "quiet" }, state.federation ? "No other members yet." : "This node belongs to no federation: it learns alone.");
    const head = el("tr", {}, ...columns.map(([name]) => el("th", { scope: "col", class: name.replace(/\W/g, "-") }, name)));
    const body = peers.map((peer) => el("tr", { "data-peer": peer.name }, ...columns.map(([name]) =>
      el(name === "peer" ? "th" : "td", { class: name.replace(/\W/g, "-"), "data-label": name, scope: name === "peer" ? "row" : undefined }))));
    return [el("table", { class: "peers" }, el("thead", {}, head), el("tbody", {}, ...body)), omitted, former].filter(Boolean);
  });
  const lines = $("peers").querySelectorAll("tbody tr");
  peers.forEach((peer, k) => {
    const line = lines[k];
    line.dataset.state = peer.state;
    columns.forEach(([name, value], i) => {
      const cell = line.children[i];
      if (name === "state") draw(cell, peer.state, () => badge(peer.state, ...(STATES[peer.state] ?? ["idle", ""])));
      else say(cell, value(peer, last));
    });
  });
}

// ---- who counted

function showChosen(rows) {
  const last = rows.findLast((row) => row.weights);
  const sorted = Object.entries(last?.weights ?? {}).sort(([a, x], [b, y]) => (b === state.name) - (a === state.name) || y - x || (a < b ? -1 : 1));
  const weights = firstOf("chosen", sorted, () => 0), others = sorted.slice(weights.length).reduce((sum, [, weight]) => sum + weight, 0);
  draw($("chosen"), [last?.round, weights.map(([name, weight]) => [called(name), weight])], () => {
    if (!last) return el("p", { class: "quiet" }, "No round has ended yet.");
    const bars = weights.map(([name, weight]) => el("tr", { class: name === state.name ? "own" : "" },
      el("th", { scope: "row" }, name === state.name ? `${name} (itself)` : called(name)),
      el("td", { class: "bar" }, svg("svg", { "aria-hidden": "true" }, svg("rect", { width: `${100 * weight}%`, height: "100%" }))),
      el("td", {}, percent(weight))));
    const rest = others && `; the ${sorted.length - weights.length} others together ${percent(others)}`;
    return [el("p", { class: "quiet" }, `Round ${last.round}: weight of each model in the average${rest || ""}.`), el("table", { class: "weights" }, el("tbody", {}, ...bars))];
  });
}

function showWeights(rows) {
  const shown = rows.filter((row) => row.weights).slice(-SHOWN);
  const sums = new Map([[state.name, Infinity]]); // the node itself is always shown
  for (const row of shown) for (const [name, weight] of Object.entries(row.weights)) sums.set(name, (sums.get(name) ?? 0) + weight);
  const sorted = [...sums.keys()].sort((a, b) => (b === state.name) - (a === state.name) || (a < b ? -1 : 1));
  const names = firstOf("weights", sorted, (name) => -sums.get(name));
  const drawn = draw($("weights"), [names.map(called), shown.map((row) => [row.round, row.weights])], () => matrix(names, shown));
  const scroll = $("weights").querySelector(".scroll");
  if (drawn && scroll) scroll.scrollLeft = scroll.scrollWidth; // the newest, where there is no room for all
}

// ---- bytes

function showBytes(rows) {
  const known = rows.filter((row) => "bytes_in" in row), into = line(known, (row) => row.bytes_in);
  const limit = state.budget?.bytes?.limit;
  const series = [{ name: "in", colour: 0, ...into }, { name: "out", colour: 1, ...line(known, (row) => row.bytes_out) }];
  if (limit) series.push({ name: "budget, in", colour: 15, x: into.x, y: into.x.map(() => limit) });
  const empty = known.length ? "" : "No round has ended yet.";
  chart("bytes", { name: "Bytes per round", series, x: { label: "round" }, y: { label: `bytes of models and requests${ofRounds(known)}`, unit: "B" }, empty });
}

function showTraffic() {
  const { sent = {}, received = {} } = state.traffic ?? {};
  const kinds = { models: "models", update: "bytes of models", get: "bytes of requests", score: "bytes of models for scoring", scored: "bytes of scores", submit: "bytes of submissions", assigned: "bytes of assignments", control: "bytes of control messages" };
  const lines = Object.entries(kinds).filter(([kind]) => kind === "models" || sent[kind] || received[kind]);
  draw($("traffic"), [sent, received], () => el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "kind"), el("th", { scope: "col" }, "sent"), el("th", { scope: "col" }, "received"))),
    el("tbody", {}, ...lines.map(([kind, words]) => el("tr", {}, el("th", { scope: "row" }, words),
      ...[sent, received].map((way) => el("td", {}, kind === "models" ? `${way[kind] ?? 0}` : bytes(way[kind] ?? 0))))))));
}

function showRejected() {
  const causes = Object.entries(state.rejected ?? {}).sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1));
  const expired = state.deadlines_expired ?? 0;
  draw($("rejected"), [causes, expired], () => [
    causes.length ? el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "cause"), el("th", { scope: "col" }, "messages"))),
      el("tbody", {}, ...causes.map(([cause, number]) => el("tr", {}, el("th", { scope: "row" }, cause), el("td", {}, number)))))
      : el("p", { class: "quiet" }, "No message was refused."),
    el("p", { class: "quiet" }, expired ? `${count(expired, "wait")} for a peer ended at the deadline.` : "No wait for a peer ended at the deadline."),
  ]);
}

/** A cell for each node and round: the darker, the more the node's model counted. */
function matrix(names, rows) {
  if (!rows.length) return el("p", { class: "quiet" }, "No round has ended yet.");
  const [cell, gap, high] = [14, 2, 18];
  const cells = rows.flatMap((row, x) => names.map((name, y) => {
    const weight = row.weights[name];
    const step = weight === undefined ? "none" : `step-${Math.min(5, Math.ceil(5 * weight))}`;
    return svg("rect", { x: x * cell, y: y * high, width: cell - gap, height: high - gap, rx: 2, class: step },
      svg("title", {}, `round ${row.round}, ${called(name)}: ${weight === undefined ? "not used" : percent(weight)}`));
  }));
  const width = rows.length * cell - gap;
  const ends = [svg("text", { x: 0, y: names.length * high + 14 }, rows[0].round), rows.length > 3 && svg("text", { x: (rows.length - 1) * cell + cell - gap, y: names.length * high + 14, "text-anchor": "end" }, rows.at(-1).round)];
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${names.length * high + 18}`, width, class: "cells", role: "img",
    "aria-label": `Weights of ${names.length} nodes in rounds ${rows[0].round} to ${rows.at(-1).round}` }, ...cells, ...ends.filter(Boolean));
  const labels = names.map((name) => el("span", { title: called(name), class: removed(name) ? "removed" : undefined }, called(name)));
  const key = ["none", 1, 2, 3, 4, 5].map((k) => svg("svg", { class: "cells", width: 12, height: 12, "aria-hidden": "true" }, svg("rect", { width: 12, height: 12, rx: 2, class: k === "none" ? k : `step-${k}` })));
  return [el("div", { class: "matrix" }, el("div", { class: "names" }, ...labels), el("div", { class: "scroll" }, drawing)),
    el("p", { class: "quiet legend" }, key[0], "not used", ...key.slice(1), "up to 20, 40, 60, 80, 100 %")];
}

/** Return how many rounds a point of a line stands for. */
const bundle = (rows) => Math.max(1, Math.ceil(((rows.at(-1)?.round ?? 0) - (rows[0]?.round ?? 0) + 1) / MOST_POINTS));
const ofRounds = (rows) => (bundle(rows) > 1 ? `, mean of ${bundle(rows)} rounds` : "");

/** Return the x and y of a line: the rounds with a number, or, if there are many, the last round and the mean of each bundle.

    Bundles end at multiples of their size, so that only the last point changes as rounds are added. */
function line(rows, value) {
  const size = bundle(rows), bundles = new Map();
  for (const row of rows) {
    if (!isNumber(value(row))) continue;
    const key = Math.ceil(row.round / size);
    if (!bundles.has(key)) bundles.set(key, []);
    bundles.get(key).push(row);
  }
  const parts = [...bundles.values()];
  return { x: parts.map((part) => part.at(-1).round), y: parts.map((part) => part.reduce((sum, row) => sum + value(row), 0) / part.length) };
}

/** Draw lines where they are not what they were. */
function chart(id, data) {
  const box = $(id);
  const key = JSON.stringify(data);
  if (charts[id]?.key === key) return;
  if (charts[id]) charts[id].of.update(data); else charts[id] = { of: Charts.lines(box, data) };
  charts[id].key = key;
}

// ---- small words

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (part) => `${(100 * part).toFixed(part < 0.0995 ? 1 : 0)}\u00a0%`;
const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;
function median(values) {
  const sorted = values.filter(Boolean).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

Charts.themeSwitch($("theme"));
follow(address, got, lost);
