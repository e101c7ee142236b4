// Sets the theme before the first paint, so that a dark page does not flash. Asks early for what every page needs,
// and for Plotly where it is needed.
(function () {
  let kept = null;
  try { kept = localStorage.getItem("vramscope-theme"); } catch (e) { /* storage switched off */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  // These pages draw without Plotly, which is 60 % of what a first visit loads; the others need it at once.
  const needsPlotly = () => !["/", "/overview", "/phases", "/allocations", "/peak"].includes(location.pathname);
  // Dash asks for both once all scripts have run, 0.1 s later.
  const ask = (name) => [name, fetch(name, { credentials: "same-origin" }).catch(() => null)];
  const asked = Object.fromEntries(["_dash-layout", "_dash-dependencies"].map(ask));
  window.vramscope = Object.assign(window.vramscope || {}, { needsPlotly, asked });
  for (const path of needsPlotly() ? ["plotly/package_data/plotly.min.js", "dash/dcc/async-graph.js"] : []) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "preload", as: "script", href: `_dash-component-suites/${path}` }));
  }
  document.documentElement.dataset.theme = kept === "dark" || kept === "light" ? kept : dark ? "dark" : "light";
})();
