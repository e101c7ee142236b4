// Starts Plotly while the server makes a page: 0.1 s of work, or 1 s in a browser that has not compiled it yet.
// Dash itself waits until the first chart has arrived.
(function () {
  const REST_MS = 1500, DRAWN_WITHIN_MS = 1500;
  // The first chart of these pages is our own: it would wait for Plotly, 1.3 s instead of 0.5 to its first picture.
  const OWN_CHART_FIRST = ["/fragmentation"];
  const INPUT = ["pointermove", "pointerdown", "wheel", "keydown", "scroll"];
  let isAwaited = false, isAtRest = false;

  // Nothing moves while it starts, so it starts once the hand rests: in the middle of panning it took a quarter of
  // the frames of three seconds.
  function whenAtRest(then) {
    let timer = null;
    const later = () => { clearTimeout(timer); timer = setTimeout(rested, REST_MS); };
    const rested = () => {
      for (const kind of INPUT) removeEventListener(kind, later, true);
      forget();
      then();
    };
    for (const kind of INPUT) addEventListener(kind, later, { capture: true, passive: true });
    const forget = window.vramscope.store.on("view", later);
    later();
  }

  function whenDrawn(then) {
    let isDone = false;
    const once = () => { if (!isDone) { isDone = true; then(); } };
    window.vramscope.store.on("columns", () => setTimeout(once, 50));
    setTimeout(once, DRAWN_WITHIN_MS);
  }

  function startPlotly() {
    const isThere = window.Plotly || document.querySelector('script[src*="plotly.min"]');
    if (isThere || !window._dashPlotlyJSURL || location.pathname === "/") return;
    // Pages that draw without it are drawn first: 1.5 MB would delay them through a tunnel.
    if (!window.vramscope.needsPlotly() && !isAtRest) {
      if (isAwaited) return;
      isAwaited = true;
      const forget = window.vramscope.store.on("columns", () => { forget(); whenAtRest(() => { isAtRest = true; startPlotly(); }); });
      return;
    }
    // Dash takes what is under this name for Plotly, and waits for a promise; the script replaces it.
    window.Plotly = /** @type {Promise<void>} */ (new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.onload = () => resolve();
      script.onerror = (event) => { delete window.Plotly; reject(event); };
      script.src = window._dashPlotlyJSURL;
      // After the request of the page, of which this is the hook, has been sent.
      const append = () => document.head.append(script);
      if (OWN_CHART_FIRST.includes(location.pathname)) whenDrawn(append); else setTimeout(append);
    }));
  }

  window.vramscope = Object.assign(window.vramscope || {}, { startPlotly });
})();
