// What pages that follow a running program share: asking again and again, marks of states, words for numbers.
// charts.js comes before it. Text is only ever put in as text: names and reasons come from elsewhere.

const PERIOD = 1000; // milliseconds between questions
const PATIENCE = 5000; // for an answer

export const { el, svg } = Charts;

/** Put text into an element, without touching it where it is there already: a selection or a reader's place is kept. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const drawn = new WeakMap();

/** Fill an element anew with what `make` returns, but only where `data` is not what it was drawn from; return whether it was. */
export function draw(element, data, make) {
  const key = JSON.stringify(data);
  if (drawn.get(element) === key) return false;
  drawn.set(element, key);
  element.replaceChildren(...[make()].flat());
  return true;
}

/**
 * Ask for JSON again and again, for as long as the page is open; a page that nobody sees asks again when it is seen.
 * `address()` says what to ask for; `got(json)` and `lost(since)` are told, the latter with the Date of the first failure.
 * When `got` returns false nothing more is asked. Returns what asks at once.
 */
export function follow(address, got, lost) {
  let since = null;
  let timer = 0;
  let asking = false;
  let ended = false;
  async function ask() {
    clearTimeout(timer);
    if (asking || ended) return;
    asking = true;
    let answered = false;
    try {
      const answer = await fetch(address(), { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
      if (!answer.ok) throw new Error(`answered ${answer.status}`);
      const state = await answer.json();
      since = null;
      answered = true;
      if (got(state) === false) ended = true;
    } catch (error) {
      if (answered) throw error; // a fault of this page, not of the way to the program
      since ??= new Date();
      lost(since);
    } finally {
      asking = false;
    }
    if (!document.hidden && !ended) timer = setTimeout(ask, since ? 2 * PERIOD : PERIOD);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
  addEventListener("online", ask);
  ask();
  return ask;
}

/** A bar for a part of a whole; none where there is no part. */
export function meter(part, name) {
  if (part === undefined) return null;
  const inside = svg("rect", { width: `${Math.min(100, 100 * part)}%`, height: "100%", class: part > 1 ? "over" : "full" });
  return svg("svg", { class: "meter", role: "img", "aria-label": `${name}: ${Math.round(100 * part)} %` }, inside);
}

const MARKS = { // a shape for each kind of state, so that nobody needs the colour
  good: "M2 8a6 6 0 1 0 12 0a6 6 0 1 0-12 0z",
  idle: "M3 8a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
  bad: "M8 1.5 15 14H1z",
  warn: "M3 3 13 13M13 3 3 13",
  done: "M3 3h10v10H3z",
};

/** A state in a word, with the mark and the colour of its kind. */
export function state(name, kind, meaning) {
  const mark = svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: MARKS[kind] }));
  return el("span", { class: `state ${kind}`, title: meaning }, mark, name);
}

export const bytes = (count) => Charts.format(count, "B", 3);
export const seconds = (count) => Charts.format(count, "s", 2);

/** A metric's value: three decimals, or four digits where it is large. */
export function figure(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 2 ? value.toFixed(3) : value.toPrecision(4);
}

export function clock(date) {
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
