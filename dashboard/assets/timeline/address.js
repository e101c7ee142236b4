// What all pages of a run share: zoom, instant and selection. The URL holds it, so links, reload and back restore it.
(function () {
  const SETTLE_MS = 30, ADDRESS_MS = 60, LATEST_MS = 200, ALONE_MS = 200;
  const CARRIED = ["rank", "device", "axis", "t0", "t1", "at", "sel"];
  const known = new Map();
  const T = { a: null, b: null, lo: null, hi: null, at: null, scrubbed: null, sel: "", axis: "time", reveal: false, of: {}, laidOut: "" };
  let resting = null, timer = null, movedMs = -Infinity;

  const params = () => new URLSearchParams(location.search);
  const integer = (text) => (/^-?\d{1,18}$/.test(text || "") ? Number(text) : null);
  const scale = () => (T.axis === "events" ? 1 : 1e9);

  // The zoom of the address in units of the axis, whatever the page.
  function read(axis) {
    const url = params();
    T.axis = axis;
    const edges = ["t0", "t1"].map((name) => integer(url.get(name)));
    const isZoomed = edges[0] !== null && edges[1] !== null && edges[1] > edges[0];
    [T.a, T.b] = isZoomed ? edges.map((edge) => edge / scale()) : [null, null];
    const heights = ["b0", "b1"].map((name) => integer(url.get(name)));
    [T.lo, T.hi] = heights[1] !== null && heights[1] > (heights[0] || 0) ? [heights[0] || 0, heights[1]] : [null, null];
    Object.assign(T, { at: integer(url.get("at")), scrubbed: null });
    T.sel = url.get("sel") || "";
  }

  // The address follows the view, without an entry in the history and without drawing the page again.
  function remember(changes) {
    const url = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") url.searchParams.delete(name);
      else url.searchParams.set(name, String(value));
    }
    if (url.href !== location.href) history.replaceState(history.state, "", url);
  }

  const edges = () => (T.a === null ? [null, null] : [Math.round(T.a * scale()), Math.round(T.b * scale())]);

  // The browser takes 5 to 8 ms for another address: not between a reply and the frame that shows it.
  const whenIdle = window.requestIdleCallback || ((then) => setTimeout(then));
  function writeView() {
    const [t0, t1] = edges(), has = document.querySelector(".track.bands");
    remember({ t0, t1, ...(has ? { b0: T.lo === null ? null : Math.max(0, Math.round(T.lo)), b1: T.hi === null ? null : Math.round(T.hi) } : {}) });
  }

  // What a page asks for follows the frame of the first of several moves, and when the view rests, two frames after
  // the hand. Browsers limit how often the address changes, to 20 times a second: it follows later.
  function moved() {
    const now = performance.now(), isFirst = now - movedMs > ALONE_MS;
    movedMs = now;
    window.dispatchEvent(new CustomEvent("vs-moved"));
    if (isFirst) requestAnimationFrame(() => setTimeout(() => window.dispatchEvent(new CustomEvent("vs-begun", { detail: edges() }))));
    clearTimeout(resting);
    clearTimeout(timer);
    resting = setTimeout(() => window.dispatchEvent(new CustomEvent("vs-settled", { detail: edges() })), SETTLE_MS);
    timer = setTimeout(() => whenIdle(writeView, { timeout: LATEST_MS }), ADDRESS_MS);
  }

  function choose(at, x) {
    if (x !== undefined && x !== null) known.set(at, x);
    if (known.size > 2000) known.clear();
    if (at === T.at) return false;
    Object.assign(T, { at, scrubbed: null });
    remember({ at });
    window.dispatchEvent(new CustomEvent("vs-instant", { detail: at }));
    return true;
  }

  function select(what) {
    T.sel = what || "";
    remember({ sel: T.sel });
    window.dispatchEvent(new CustomEvent("vs-selected", { detail: T.sel }));
  }

  // A link within the run keeps what the reader looks at. It was written when the page was laid out, so what
  // it repeats of that moment is old; what it says of its own, such as the instant of the peak, stays.
  function carried(link) {
    const to = new URL(link.href, location.href), here = params(), there = to.searchParams;
    if (to.origin !== location.origin || !there.get("run") || there.get("run") !== here.get("run")) return null;
    const own = (name) => there.get(name) || "";
    if (["rank", "device", "axis"].some((name) => there.has(name) && own(name) !== (here.get(name) || String(T.of[name] ?? "")))) return null;
    const names = to.pathname === location.pathname ? [...CARRIED, "b0", "b1"] : CARRIED;
    if (link.closest("#menu")) there.delete("at");
    const isOwnInstant = there.has("at") && own("at") !== T.laidOut;
    T.reveal = isOwnInstant && own("at") !== (here.get("at") || "");
    for (const name of names) {
      if (name === "at" && isOwnInstant) continue;
      if (here.get(name)) there.set(name, here.get(name));
      else there.delete(name);
    }
    return to;
  }

  const internal = (target) => target && target.closest && target.closest("a[href]:not([download]):not([target=_blank])");
  document.addEventListener("click", function (event) {
    const link = internal(event.target);
    if (!link || !document.querySelector(".track") || link.closest("[data-own-view]") || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const to = carried(link);
    if (!to || to.href === link.href) return;
    event.preventDefault();
    event.stopPropagation();
    history.pushState({}, "", to);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  }, true);
  // Opened in a new tab, it keeps the same.
  document.addEventListener("auxclick", (event) => {
    const link = internal(event.target), to = link && carried(link);
    if (to) link.href = to.href;
  }, true);

  Object.assign(T, { read, remember, moved, choose, select, edges, known });
  window.vramscope = Object.assign(window.vramscope || {}, { timeline: T, remember });
})();
