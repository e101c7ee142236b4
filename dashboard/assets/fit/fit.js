// The page "Fit": the address follows the slider; the page is not drawn again.
(function () {
  function addressed(by) {
    if (by) window.vramscope.store.remember({ by });
    return window.dash_clientside.no_update;
  }
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.vramscope = Object.assign({}, window.dash_clientside.vramscope, { addressed });
})();
