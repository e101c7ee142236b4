// @ts-check
// The parts of a page that show the chosen instant (components/instant_parts.py): one answer has them all, requested
// with the frame that marks the instant.
(function () {
  const S = window.vramscope.store;
  // What a frame shows: the address of its parts, their instant, and up to which instant no later version of a live run
  // changes them. Attributes would not do: React leaves one as it is that is what it was at the last layout, whatever a
  // script has made of it since.
  /** @type {WeakMap<any, {url: string, at: number | null, n_events: number, final: number}>} */
  const shown = new WeakMap();
  let isBusy = false, isDue = false, hasGrown = false, isFrameDue = false;

  // Without an instant, a page may show that of the highest level in view.
  function address(asks, at, [t0, t1]) {
    const url = new URLSearchParams(), zoom = at === null && "t0" in asks ? { t0, t1 } : { t0: null, t1: null };
    for (const [name, value] of Object.entries({ ...asks, ...zoom, at, shown: null, final: null }))
      if (value !== null && value !== "") url.set(name, String(value));
    return `/api/parts?${url}`;
  }

  async function refresh() {
    const frame = document.querySelector("[data-parts]");
    if (!frame) return;
    if (isBusy) { isDue = true; return; }
    const asks = JSON.parse(frame.dataset.parts), url = address(asks, S.state.at, S.edges());
    if (!shown.has(frame)) shown.set(frame, { url: address(asks, asks.at, [asks.t0 ?? null, asks.t1 ?? null]), at: asks.shown, n_events: asks.final, final: asks.final });
    const its = shown.get(frame);
    if (url === its.url && its.at !== null && !hasGrown) return;
    isBusy = true;
    hasGrown = false;
    try {
      const root = new URLSearchParams(location.search).get("root");
      const answer = await fetch(`${url}&shown=${its.at}&final=${its.final}${root ? `&root=${root}` : ""}`);
      if (!answer.ok) throw new Error(String(answer.status));
      const made = await answer.json();
      Object.assign(its, { url, at: made.at ?? its.at, n_events: made.n_events, final: its.n_events });
      if (made.attributes && frame.isConnected) show(made);
    } catch {
      // The banner says what is wrong with the server; what is shown stays.
    } finally {
      isBusy = false;
      if (isDue) { isDue = false; refresh(); }
    }
  }

  function show({ attributes, props, exact }) {
    for (const [id, named] of Object.entries(attributes)) {
      const element = document.getElementById(id);
      for (const [name, value] of Object.entries(named)) if (element) element.setAttribute(name, value);
    }
    for (const [id, named] of Object.entries(props)) dash_clientside.set_props(id, named);
    window.vramscope.timeline.learn(exact);
  }

  // Not before the frame: the server would take from it one of few cores.
  S.on("instant", function () {
    isFrameDue = true;
    requestAnimationFrame(() => { isFrameDue = false; refresh(); });
  });
  S.on(["view begins", "view rests"], refresh);
  // Parts that are to come follow the first picture of the timeline.
  S.on("columns", refresh);
  // The page was laid out anew, for another rank perhaps: only what differs from its last layout is as it says.
  new MutationObserver(refresh).observe(document.documentElement, { subtree: true, attributes: true, attributeFilter: ["data-parts"] });
  S.on("grows", () => { hasGrown = true; refresh(); });

  window.vramscope = Object.assign(window.vramscope || {}, { instantParts: { isBusy: () => isBusy || isFrameDue } });
})();
