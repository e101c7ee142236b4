// Starts Plotly while the server makes a page: 0.1 s of work, or 1 s in a browser that has not compiled it yet.
// Dash itself waits until the first chart has arrived.
(function () {
  function startPlotly() {
    if (window.Plotly || !window._dashPlotlyJSURL || location.pathname === "/") return;
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
