// @ts-check
// What the reader looks at: the zoom, the instant and the selection of a run. All pictures subscribe to this store;
// nothing else keeps any of it. The URL is its projection, so links, reload and back restore it.
(function () {
  const SETTLE_MS = 30, ADDRESS_MS = 60, LATEST_MS = 200, ALONE_MS = 200, MOST_POSITIONS = 2000;

  /** @type {State} */
  const state = { a: null, b: null, lo: null, hi: null, at: null, scrubbed: null, sel: "", axis: "time" };
  // Where instants lie on the axis, as the server has said.
  /** @type {Map<number, number>} */
  const positions = new Map();
  /** @type {Map<Topic, Set<(detail?: any) => void>>} */
  const subscribers = new Map();
  let restTimer = 0, addressTimer = 0, movedMs = -Infinity;

  /** @type {Store["on"]} */
  function on(topics, listener) {
    for (const topic of [topics].flat()) {
      if (!subscribers.has(topic)) subscribers.set(topic, new Set());
      subscribers.get(topic).add(listener);
    }
    return () => { for (const topic of [topics].flat()) subscribers.get(topic).delete(listener); };
  }

  // A listener that fails takes no other listener with it.
  /** @type {Store["tell"]} */
  function tell(topic, detail) {
    for (const listener of subscribers.get(topic) || []) {
      try { listener(detail); } catch (error) { setTimeout(() => { throw error; }); }
    }
  }

  // ---------------------------------------------------------------------------------- URL
  const params = () => new URLSearchParams(location.search);
  /** @param {string | null} text */
  const integer = (text) => (/^-?\d{1,18}$/.test(text || "") ? Number(text) : null);
  // Instants of time are whole nanoseconds in the URL and in requests, and seconds on the axis.
  const scale = () => (state.axis === "events" ? 1 : 1e9);

  /** @type {Store["read"]} */
  function read(axis) {
    const url = params();
    state.axis = axis;
    const [t0, t1, b0, b1] = ["t0", "t1", "b0", "b1"].map((name) => integer(url.get(name)));
    const isZoomed = t0 !== null && t1 !== null && t1 > t0, hasHeights = b1 !== null && b1 > (b0 || 0);
    [state.a, state.b] = isZoomed ? [t0 / scale(), t1 / scale()] : [null, null];
    [state.lo, state.hi] = hasHeights ? [b0 || 0, b1] : [null, null];
    Object.assign(state, { at: integer(url.get("at")), scrubbed: null, sel: url.get("sel") || "" });
  }

  // The address follows without an entry in the history and without drawing the page again.
  /** @type {Store["remember"]} */
  function remember(changes) {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") url.searchParams.delete(name);
      else url.searchParams.set(name, String(value));
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  /** @type {Store["edges"]} */
  const edges = () => (state.a === null ? [null, null] : [Math.round(state.a * scale()), Math.round(state.b * scale())]);

  // The browser takes 5 to 8 ms for another address: not between a reply and the frame that shows it.
  const whenIdle = window.requestIdleCallback || ((then) => setTimeout(then));
  function writeView() {
    const [t0, t1] = edges(), whole = (y) => (y === null ? null : Math.max(0, Math.round(y)));
    const hasHeights = document.querySelector(".track.bands");
    remember({ t0, t1, ...(hasHeights ? { b0: whole(state.lo), b1: whole(state.hi) } : {}) });
  }

  // ------------------------------------------------------------------------------- changes
  // What a page asks for follows the frame of the first of several moves, and when the view rests, two frames after
  // the hand. Browsers limit how often the address changes, to 20 times a second: it follows later.
  /** @type {Store["look"]} */
  function look(changes) {
    Object.assign(state, changes);
    const now = performance.now(), isFirst = now - movedMs > ALONE_MS;
    movedMs = now;
    tell("view");
    if (isFirst) requestAnimationFrame(() => setTimeout(() => tell("view begins", edges())));
    clearTimeout(restTimer);
    clearTimeout(addressTimer);
    restTimer = setTimeout(rest, SETTLE_MS);
    addressTimer = setTimeout(() => whenIdle(writeView, { timeout: LATEST_MS }), ADDRESS_MS);
  }

  /** @type {Store["rest"]} */
  function rest() {
    if (!restTimer) return;
    clearTimeout(restTimer);
    restTimer = 0;
    tell("view rests", edges());
  }

  /** @type {Store["choose"]} */
  function choose(at, x) {
    if (x !== undefined && x !== null) place(at, x);
    if (at === state.at) return false;
    Object.assign(state, { at, scrubbed: null });
    remember({ at });
    tell("instant", at);
    return true;
  }

  /** @type {Store["place"]} */
  function place(at, x) {
    if (positions.size > MOST_POSITIONS) positions.clear();
    positions.set(at, x);
  }

  // While a slider moves: where its thumb is, whose instant only the server knows.
  /** @type {Store["scrub"]} */
  function scrub(x) {
    if (x === state.scrubbed) return;
    state.scrubbed = x;
    tell("scrub");
  }

  /** @type {Store["select"]} */
  function select(what) {
    state.sel = what || "";
    remember({ sel: state.sel });
    tell("selection", state.sel);
  }

  /** @type {Store["positionOf"]} */
  const positionOf = (at) => (at === null ? null : positions.get(at) ?? null);

  window.vramscope = Object.assign(window.vramscope || {}, {
    store: { state, on, tell, read, remember, edges, look, rest, choose, place, positionOf, scrub, select },
  });
})();
