// @ts-check
// The parts of a page that show the chosen instant (components/instant_parts.py): one answer has them all, requested
// with the input itself.
(function () {
  const S = window.vramscope.store;
  // What a frame shows: the address of its parts, and their instant. Attributes would not do: React leaves one as it is
  // that is what it was at the last layout, whatever a script has made of it since.
  /** @type {WeakMap<any, {url: string, at: number}>} */
  const shown = new WeakMap();
  let isBusy = false, isDue = false, hasGrown = false;

  function address(asks, at) {
    const url = new URLSearchParams();
    for (const name of ["page", "run", "rank", "device", "restart", "axis"]) if (asks[name] !== null && asks[name] !== "") url.set(name, asks[name]);
    if (at !== null) url.set("at", String(at));
    return `/api/parts?${url}`;
  }

  async function refresh() {
    const frame = document.querySelector("[data-parts]");
    if (!frame) return;
    if (isBusy) { isDue = true; return; }
    const asks = JSON.parse(frame.dataset.parts), url = address(asks, S.state.at);
    if (!shown.has(frame)) shown.set(frame, { url: address(asks, asks.at), at: asks.shown });
    const its = shown.get(frame);
    if (url === its.url && !hasGrown) return;
    isBusy = true;
    hasGrown = false;
    try {
      const root = new URLSearchParams(location.search).get("root");
      const answer = await fetch(`${url}&shown=${its.at}${root ? `&root=${root}` : ""}`);
      if (!answer.ok) throw new Error(String(answer.status));
      if (answer.status === 204) its.url = url;
      else if (frame.isConnected) show(frame, url, await answer.json());
    } catch {
      // The banner says what is wrong with the server; what is shown stays.
    } finally {
      isBusy = false;
      if (isDue) { isDue = false; refresh(); }
    }
  }

  function show(frame, url, { at, attributes, props, exact }) {
    shown.set(frame, { url, at });
    for (const [id, named] of Object.entries(attributes)) {
      const element = document.getElementById(id);
      for (const [name, value] of Object.entries(named)) if (element) element.setAttribute(name, value);
    }
    for (const [id, named] of Object.entries(props)) dash_clientside.set_props(id, named);
    window.vramscope.timeline.learn(exact);
  }

  S.on("instant", refresh);
  // The page was laid out anew, for another rank perhaps: only what differs from its last layout is as it says.
  new MutationObserver(refresh).observe(document.documentElement, { subtree: true, attributes: true, attributeFilter: ["data-parts"] });
  S.on("grows", () => { hasGrown = true; refresh(); });

  window.vramscope = Object.assign(window.vramscope || {}, { instantParts: { isBusy: () => isBusy } });
})();
