// When a page asks the server: never while it is hidden, and for slow answers only after the chart is drawn.
(function () {
  document.addEventListener("visibilitychange", function () {
    if (document.getElementById("main")) dash_clientside.set_props("tick", { disabled: document.hidden || "connection" in document.documentElement.dataset });
  });

  // The store gets a value when the timeline is drawn, which so does not wait for what is requested then.
  function seen(later) {
    if (later) whenDrawn(window.dash_clientside.callback_context.outputs_list.id);
    return window.dash_clientside.no_update;
  }
  function whenDrawn(store) {
    const figure = document.querySelector(".track");
    if (figure) setTimeout(() => (figure.dataset.ready ? dash_clientside.set_props(store, { data: 1 }) : whenDrawn(store)), figure.dataset.ready ? 0 : 30);
  }

  // A page that had nothing to show of a run is laid out again when the run has grown.
  function waited(version) {
    if (!version || !document.querySelector("[data-waits]")) return window.dash_clientside.no_update;
    return { version: version.version, has_grown: true };
  }

  // The phases of a run that grows appear in the key as they occur.
  window.vramscope.store.on("columns", function ({ phases }) {
    for (const kind of phases) {
      for (const entry of document.querySelectorAll(`.lane-key [data-phase="${kind}"][hidden]`)) {
        entry.hidden = false;
        for (const none of entry.parentElement.querySelectorAll("[data-none]")) none.remove();
      }
    }
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { seen, waited });
})();
