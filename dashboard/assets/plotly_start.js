// Starts Plotly while the server makes a page: 0.1 s of work, or 1 s in a browser that has not compiled it yet.
// Dash itself waits until the first chart has arrived.
(function () {
  let isDrawn = false;
  function startPlotly() {
    const isThere = window.Plotly || document.querySelector('script[src*="plotly.min"]');
    if (isThere || !window._dashPlotlyJSURL || location.pathname === "/") return;
    // Pages that draw without it are drawn first: 1.5 MB would delay them through a tunnel.
    if (!window.vramscope.needsPlotly() && !isDrawn) { addEventListener("vs-timeline", () => setTimeout(() => { isDrawn = true; startPlotly(); }, 1500), { once: true }); return; }
    // Dash takes what is under this name for Plotly, and waits for a promise; the script replaces it.
    window.Plotly = new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.onload = () => resolve();
      script.onerror = (event) => { delete window.Plotly; reject(event); };
      script.src = window._dashPlotlyJSURL;
      // After the request of the page, of which this is the hook, has been sent.
      setTimeout(() => document.head.append(script));
    });
  }

  window.vramscope = Object.assign(window.vramscope || {}, { startPlotly });
})();
