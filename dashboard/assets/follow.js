// Nobody looks at a hidden page: it asks for nothing, and catches up when it is seen again.
(function () {
  document.addEventListener("visibilitychange", function () {
    if (document.getElementById("main")) dash_clientside.set_props("tick", { disabled: document.hidden });
  });
})();
