// When a page asks the server: never while it is hidden, and for slow answers only after the chart is drawn.
(function () {
  document.addEventListener("visibilitychange", function () {
    if (document.getElementById("main")) dash_clientside.set_props("tick", { disabled: document.hidden });
  });

  // Called once for every chart when it is drawn, so that the chart does not wait for what is requested then.
  function seen(figure) {
    requestAnimationFrame(function () {
      const gd = document.querySelector("#ov-graph .js-plotly-plot");
      if (!gd || !gd._fullData) { if (document.getElementById("ov-graph")) seen(figure); return; }
      if (gd.vramscopeSeen) return;
      gd.vramscopeSeen = true;
      setTimeout(() => dash_clientside.set_props("ov-drawn", { data: 1 }), 0);
    });
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { seen });
})();
